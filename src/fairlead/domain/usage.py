"""What a call used, as its endpoint reported it: tokens, units, and the model that answered.

Reports come from endpoints and handlers, so each value is checked. A value that is not a number, negative, or larger
than any call can use is ignored and counted; the rest of the report is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from fairlead.domain.fast_dataclass import fast_dataclass

MAX_TOKENS = 1_000_000_000
MAX_UNITS = 1e12
LONGEST_MODEL = 200
MOST_IGNORED = 10_000
"""More ignored values of one call are not counted: a handler may report for each token. Columns of the ledger have 16
bits."""

_TOKENS_IN = ("tokens_in", "prompt_tokens", "input_tokens")
_TOKENS_OUT = ("tokens_out", "completion_tokens", "output_tokens")
_TOKENS_CACHED = ("tokens_cached", "cached_tokens", "cache_read_input_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")


@fast_dataclass
class Usage:
    """What one call used. None means that it was not reported. `units` are in the unit of the service, for example
    images or seconds of audio. `tokens_cached` is the part of `tokens_in` that came from a cache. `ignored` counts the
    reported values that were not credible."""

    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    units: float | None = None
    model: str | None = None
    ignored: int = 0

    @property
    def tokens(self) -> int | None:
        """All tokens, in and out. None if neither was reported."""
        if self.tokens_in is None and self.tokens_out is None:
            return None
        return (self.tokens_in or 0) + (self.tokens_out or 0)

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set."""
        fields = {
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "tokens_cached": self.tokens_cached,
            "units": self.units,
            "model": self.model,
            "ignored": self.ignored or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


def reported(report: Any, *, model: Any = None) -> Usage | None:
    """Read a report: `tokens_in`, `tokens_out`, `tokens_cached`, `units` and `model`, or the names that the APIs of
    OpenAI and Anthropic use for tokens. Other names are skipped. `model` is used if the report names none. Returns None
    if nothing was reported."""
    if report is None:
        return None
    if isinstance(report, Usage):
        return report
    if not isinstance(report, dict | Mapping):  # nearly every report is a dict, which is found faster
        return Usage(ignored=1)
    reader = _Reader(report)
    tokens_in, tokens_cached = reader.tokens_in()
    usage = Usage(
        tokens_in=tokens_in,
        tokens_out=reader.tokens(_TOKENS_OUT),
        tokens_cached=tokens_cached,
        units=reader.units(),
        model=reader.model(model),
        ignored=reader.ignored,
    )
    if usage.ignored or usage.units is not None or usage.tokens is not None or usage.tokens_cached is not None:
        return usage
    return None if report.get("model") is None else usage


def merged(earlier: Usage | None, later: Usage | None) -> Usage | None:
    """The values of `later`, and those of `earlier` that `later` does not have."""
    if earlier is None or later is None:
        return later or earlier
    return Usage(
        earlier.tokens_in if later.tokens_in is None else later.tokens_in,
        earlier.tokens_out if later.tokens_out is None else later.tokens_out,
        earlier.tokens_cached if later.tokens_cached is None else later.tokens_cached,
        earlier.units if later.units is None else later.units,
        later.model or earlier.model,
        min(MOST_IGNORED, earlier.ignored + later.ignored),
    )


class _Reader:
    """Reads the values of one report, and counts those that it ignores."""

    def __init__(self, report: Mapping[Any, Any]) -> None:
        self._report = report
        self.ignored = 0

    def tokens(self, names: tuple[str, ...]) -> int | None:
        """The first of these values that is not null."""
        for name in names:
            value = self._report.get(name)
            if value is not None:
                break
        else:
            return None
        count = int(value) if type(value) is float and value.is_integer() else value
        if type(count) is int and 0 <= count <= MAX_TOKENS:
            return count
        self.ignored += 1
        return None

    def tokens_in(self) -> tuple[int | None, int | None]:
        """The tokens in, and those of them that came from a cache."""
        count, cached = self.tokens(_TOKENS_IN), self._cached()
        if cached is not None and "cache_read_input_tokens" in self._report:
            return (count or 0) + cached, cached  # Anthropic counts them apart
        if cached is not None and count is not None and cached > count:
            self.ignored += 1
            cached = None
        return count, cached

    def _cached(self) -> int | None:
        count = self.tokens(_TOKENS_CACHED)
        for name in _DETAILS if count is None else ():
            details = self._report.get(name)
            if isinstance(details, Mapping) and details.get("cached_tokens") is not None:
                nested = _Reader(details)
                count = nested.tokens(_TOKENS_CACHED)
                self.ignored += nested.ignored
        return count

    def units(self) -> float | None:
        value = self._report.get("units")
        if value is None:
            return None
        if type(value) in (int, float) and 0 <= value <= MAX_UNITS and isfinite(value):
            return float(value)
        self.ignored += 1
        return None

    def model(self, otherwise: Any) -> str | None:
        given = self._report.get("model")
        value = otherwise if given is None else given
        if isinstance(value, str) and value and "\0" not in value:
            value = value[:LONGEST_MODEL]
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        self.ignored += given is not None
        return None
