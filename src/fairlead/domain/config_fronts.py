"""The settings of fronts, which speak the protocols of other systems: what their apps and models are here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from fairlead.domain.config_checks import known
from fairlead.domain.config_sections import Section
from fairlead.domain.config_types import APP, Name, Number

AppName = Annotated[str, StringConstraints(pattern=APP, max_length=255)]
AppTable = dict[AppName, Name]
"""The pipeline or service of each app, which other systems name `owner/name`, with a path or a version after it."""


class FalConfig(Section):
    """fal's protocol below `/fal`. A status request of a client that polls is held for up to `hold` seconds."""

    apps: AppTable = {}
    hold: Annotated[Number, Field(ge=0, le=100)] = 15.0


class ReplicateConfig(Section):
    """Replicate's protocol below `/replicate/v1`."""

    models: AppTable = {}


class FrontsConfig(Section):
    fal: FalConfig = FalConfig()
    replicate: ReplicateConfig = ReplicateConfig()


def unknown_features(fronts: FrontsConfig, features: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield a (key, problem) for every app or model that is mapped to a pipeline or service that does not exist."""
    tables: Mapping[str, Mapping[str, Any]] = {"fal.apps": fronts.fal.apps, "replicate.models": fronts.replicate.models}
    for section, table in tables.items():
        for app, feature in table.items():
            if feature not in features:
                yield (
                    f"fronts.{section}.{app}",
                    f"no pipeline or service is called {feature!r}; {known(features)}",
                )
