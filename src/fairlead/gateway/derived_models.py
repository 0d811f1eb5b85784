"""Derives response models from the views (dataclasses) that the application returns."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo


class Shape(BaseModel):
    """A model that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


def example(**fields: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [fields]})


M = TypeVar("M", bound=BaseModel)
_models: dict[type, type[BaseModel]] = {}
"""Maps each view to its response model. Used for views whose fields contain other views."""


def fields_of(view: type, *, omit: Collection[str] = (), **descriptions: str) -> Callable[[type[M]], type[M]]:
    """Class decorator: give a response model the fields of `view`, a dataclass, in the order of the dataclass.

    The model's body declares only what differs: fields that `view` lacks, and fields whose types `view` does not spell
    out. `omit` names fields of `view` that the model does not get. `descriptions` maps fields to their descriptions.
    """

    def derive(model: type[M]) -> type[M]:
        hints = get_type_hints(view)
        fields: dict[str, tuple[Any, FieldInfo]] = {
            field.name: (_json_type(field.name, hints[field.name]), Field(description=descriptions.get(field.name)))
            for field in dataclasses.fields(view)
            if field.name not in omit
        }
        for name, declared in model.model_fields.items():
            declared.description = descriptions.get(name, declared.description)
            fields[name] = declared.annotation, declared
        derived: Any = create_model(
            model.__name__,
            __config__=model.model_config,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **fields,  # type: ignore[call-overload]
        )
        _models[view] = derived
        return derived  # type: ignore[no-any-return]

    return derive


def _json_type(name: str, hint: Any) -> Any:
    """Return the type that the field of a view has in JSON: a time becomes an ISO 8601 string, a tuple a list, and a
    nested view its response model."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, (_json_type(name, each) for each in arguments))
    if origin is tuple:
        return list[_json_type(name, arguments[0])]  # type: ignore[misc]
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, arguments[1]]  # type: ignore[valid-type]
    if hint is datetime or (hint is float and (name == "at" or name.endswith("_at"))):
        return str
    return _models.get(hint, hint)
