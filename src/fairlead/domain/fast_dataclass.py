"""`fast_dataclass`: an immutable dataclass for the hot path. `StringEnum`: an enumeration with fast hashing.

A frozen dataclass sets each field through `object.__setattr__`, which is four times slower than plain assignment: 2.5
µs for a `Move`, and every job makes two or three. Here the type checker enforces immutability, not the interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def fast_dataclass(cls: type[T]) -> type[T]:
    return dataclass(slots=True, unsafe_hash=True)(cls)


class StringEnum(StrEnum):
    __hash__ = str.__hash__  # Enum.__hash__ is a Python function, called on every dict or set lookup
