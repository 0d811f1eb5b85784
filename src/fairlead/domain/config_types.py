"""The types of settings: names, URLs, durations, limits and headers, each with its valid range."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StringConstraints, Tag
from pydantic_core import PydanticKnownError

from fairlead.domain.groups import GROUP_NAME
from fairlead.domain.user_priority import MAX_WEIGHT

NAME, REGION_NAME = r"^[a-z_][a-z0-9_]{0,62}$", r"^[A-Za-z_][A-Za-z0-9_]{0,62}$"
URL = r"^https?://[^\s/]+\S*$"
FUNCTION = r"^[\w.]+:[\w.]+$"
TASK = r"^[^\s:]+$"
MODEL = r"^[^\s\x00-\x1f\x7f]+$"
APP = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*(:[A-Za-z0-9_.-]+)?$"
# Error messages for values that do not match these patterns.
MEANING = {
    NAME: "must be lower-case letters, digits and _, not begin with a digit, and have at most 63 characters",
    REGION_NAME: "must be letters, digits and _, not begin with a digit, and have at most 63 characters",
    GROUP_NAME: "must be letters, digits, _ . @ : and -, begin with a letter or digit, and have at most 100 characters",
    URL: "must begin with http:// or https:// and a host name",
    FUNCTION: "must be module:name, for example myapp.tasks:thumbnail",
    MODEL: "must be the name of a model without spaces, for example llama-3.1-70b",
    APP: "must be owner/name, with a path or a version after it, for example acme/flux/dev or acme/sdxl:39ed52f2",
    TASK: "must be the registered name of a Celery task, for example myapp.tasks.generate",
}


def _no_boolean(error: Literal["int_type", "float_type"]) -> BeforeValidator:
    """Refuses booleans where a number is expected: pydantic would read true as 1."""

    def checked(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticKnownError(error)
        return value

    return BeforeValidator(checked)


Whole = Annotated[int, _no_boolean("int_type")]
Number = Annotated[float, Field(allow_inf_nan=False), _no_boolean("float_type")]
Name = Annotated[str, StringConstraints(pattern=NAME)]
GroupName = Annotated[str, StringConstraints(pattern=GROUP_NAME)]
RegionName = Annotated[str, StringConstraints(pattern=REGION_NAME)]
Seconds = Annotated[Number, Field(gt=0, le=10 * 365 * 86400)]


def _checked_url(url: str) -> str:
    """Check a URL beyond its pattern. The error message omits the URL, which may contain a password."""
    try:
        parts = urlsplit(url)
        fine = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine:
        raise ValueError("is not a valid URL; for example http://host:8000/path")
    return url


Url = Annotated[str, StringConstraints(pattern=URL, max_length=2000), AfterValidator(_checked_url)]
AUTO_KEYS = ("min", "max", "latency_target")
AUTO: Final = "auto"
Slots = Annotated[Whole, Field(ge=1, le=1_000_000)]
BRANCHES = ("a number", "a word")
# With a discriminator, pydantic reports an invalid number as such, and not also as an invalid "auto".
Limit = Annotated[
    Annotated[Slots, Tag(BRANCHES[0])] | Annotated[Literal["auto"], Tag(BRANCHES[1])],
    Discriminator(lambda value: BRANCHES[value == AUTO]),
]
Weight = Annotated[Number, Field(gt=0, le=MAX_WEIGHT)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=MODEL)]
UserId = Annotated[str, StringConstraints(min_length=1, max_length=255)]


def _headers(headers: dict[str, str]) -> dict[str, str]:
    for name, text in headers.items():
        if not name or any(c in name + text for c in "\r\n\0") or not name.isascii():
            raise ValueError(f"{name!r} is not a valid header")
    return headers


Headers = Annotated[dict[str, str], AfterValidator(_headers)]
