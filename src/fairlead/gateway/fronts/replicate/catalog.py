"""Models, versions and deployments: the pipelines and services of the application, by Replicate's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fairlead.domain.config import Config
from fairlead.domain.replicate import version_of
from fairlead.errors import InvalidInput, NotFound
from fairlead.gateway.fronts import apps

OWNER = "fairlead"
"""The owner of models that the configuration does not name."""
TABLE = "fronts.replicate.models"
CREATED_AT = "1970-01-01T00:00:00.000Z"
"""Versions have no date here, and the clients need one."""
COG = "none"
"""The clients compare the version of Cog, and ignore one that is not a number."""


class Chosen(NamedTuple):
    """A model as the caller named it, its version, and the pipeline or service that runs it."""

    model: str
    version: str
    feature: str


def table_of(config: Config) -> Mapping[str, str]:
    return config.fronts.replicate.models


def feature_of(config: Config, model: str) -> str:
    """The pipeline or service of a model, `owner/name`. A model that the table has only with versions is the first of
    them. Raises UnknownModel."""
    table = table_of(config)
    versions = (feature for each, feature in table.items() if each.startswith(f"{model}:"))
    feature = table.get(model) or next(versions, None) or apps.feature_of(config, table, model)
    if feature is None:
        raise apps.unknown_app(config, table, model, TABLE)
    return feature


def features(config: Config) -> list[str]:
    """All pipelines and services that are models."""
    return [each for each in {**config.pipelines, **config.services} if apps.is_offered(config, each)]


def model_of(config: Config, feature: str) -> str:
    """The first name of a pipeline or service as a model."""
    for model, named in table_of(config).items():
        if named == feature:
            return model.partition(":")[0]
    return f"{OWNER}/{feature}"


def named_versions(config: Config) -> dict[str, tuple[str, str]]:
    """The models and features of versions that the configuration names, as `owner/name:version`, by the version."""
    split = [(*model.partition(":"), feature) for model, feature in table_of(config).items()]
    return {version: (model, feature) for model, _, version, feature in split if version}


def of_version(config: Config, version: str) -> Chosen:
    """What the field `version` names: the id of a version, a model, or both as `owner/name:id`."""
    model, colon, version_id = version.rpartition(":")
    if not colon and "/" in version:
        return of_model(config, version)
    named = named_versions(config).get(version_id)
    if named is not None and model in ("", named[0]):
        return Chosen(named[0], version_id, named[1])
    found = next((feature for feature in features(config) if version_of(feature) == version_id), None)
    if found is None or (model and feature_of(config, model) != found):
        raise InvalidInput(
            f"there is no version {version[:150]!r}; GET /replicate/v1/models lists the models and their versions",
            pointer="/version",
        )
    return Chosen(model or model_of(config, found), version_id, found)


def of_model(config: Config, model: str) -> Chosen:
    feature = feature_of(config, model)
    return Chosen(model, version_of(feature), feature)


def models(config: Config) -> list[str]:
    """All models: those of the configuration, and the other pipelines and services by their own names."""
    named = {model.partition(":")[0]: None for model in table_of(config)}
    others = [feature for feature in features(config) if feature not in table_of(config).values()]
    return [*named, *(f"{OWNER}/{feature}" for feature in others)]


def shown_version(feature: str, version_id: str | None = None) -> dict[str, Any]:
    schemas = {"Input": {"type": "object", "title": "Input"}, "Output": {"title": "Output"}}
    return {
        "id": version_id or version_of(feature),
        "created_at": CREATED_AT,
        "cog_version": COG,
        "openapi_schema": {
            "openapi": "3.0.2",
            "info": {"title": feature, "version": "1"},
            "paths": {},
            "components": {"schemas": schemas},
        },
    }


def check_version(config: Config, model: str, version_id: str) -> str:
    """The feature of a version of a model. Raises NotFound."""
    try:
        return of_version(config, f"{model}:{version_id}").feature
    except InvalidInput as error:
        raise NotFound(error.message) from None


def shown_model(config: Config, model: str, base: str) -> dict[str, Any]:
    owner, _, name = model.partition("/")
    feature = feature_of(config, model)
    return {
        "url": f"{base}/models/{model}",
        "owner": owner,
        "name": name,
        "description": " → ".join(config.steps_of(feature) or (feature,)),
        "visibility": "private",
        "github_url": None,
        "paper_url": None,
        "license_url": None,
        "run_count": 0,
        "cover_image_url": None,
        "default_example": None,
        "latest_version": shown_version(feature),
    }


def shown_deployment(config: Config, name: str) -> dict[str, Any]:
    owner, _, rest = name.partition("/")
    feature = feature_of(config, name)
    release = {
        "number": 1,
        "model": model_of(config, feature),
        "version": version_of(feature),
        "created_at": CREATED_AT,
        "created_by": None,
        "configuration": {"hardware": "cpu", "min_instances": 0, "max_instances": 1},
    }
    return {"owner": owner, "name": rest, "current_release": release}
