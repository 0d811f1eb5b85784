"""What an upstream says about its own limits: `Retry-After`, and the `x-ratelimit-*` headers of OpenAI's protocol; and
when requests were sent, which rates need to know."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any

import aiohttp

from fairlead.executors.http_client import AnyResponse
from fairlead.executors.port import Call

BUSY = frozenset({429, 503})
LONGEST_REST = 86400.0
LITTLE = 5
"""What is left of a limit is reported when it is less than a fifth."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNIX = 1e9
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Sessions:
    """The sessions of an executor. Calls that a rate counts use one that notices when a request was sent, which costs a
    little."""

    def __init__(self, new: Callable[[list[aiohttp.TraceConfig] | None], aiohttp.ClientSession]) -> None:
        self._new = new
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    def of(self, call: Call | None = None) -> aiohttp.ClientSession:
        traced = call is not None and call.counts_sent
        session = self._sessions.get(traced)
        if session is None:
            session = self._sessions[traced] = self._new([_trace()] if traced else None)
        return session

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()


def _trace() -> aiohttp.TraceConfig:
    async def sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
        context.trace_request_ctx.sent()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(sent)
    trace.on_request_chunk_sent.append(sent)
    return trace


def heed(call: Call, response: AnyResponse) -> float | None:
    """Report the limits that a response tells of. Returns the time for which the upstream refuses calls, in seconds,
    if it names one; None if it takes calls, or refuses them without a time. A time of 0 counts as none."""
    headers = response.headers
    seconds: float | None = None
    if response.status in BUSY:
        seconds = retry_after_of(headers)
        if seconds is None and response.status == 429:
            seconds = _reset_of(headers, refused=True)
    elif "x-ratelimit-remaining-requests" in headers or "x-ratelimit-remaining-tokens" in headers:
        seconds = _reset_of(headers)
        if seconds is None:
            _heed_remaining(call, headers)
    if seconds:
        call.rest(seconds)
    return seconds or None


def _heed_remaining(call: Call, headers: Mapping[str, str]) -> None:
    for kind in ("requests", "tokens"):
        left, most = (_number(headers.get(f"x-ratelimit-{what}-{kind}")) for what in ("remaining", "limit"))
        reset = _seconds(headers.get(f"x-ratelimit-reset-{kind}"))
        if reset and left is not None and most is not None and left * LITTLE < most and call.counts_sent:
            limits: dict[str, Any] = {"requests": int(left)} if kind == "requests" else {"tokens": left}
            call.rest(min(LONGEST_REST, reset), **limits)


def _reset_of(headers: Mapping[str, str], *, refused: bool = False) -> float | None:
    """Seconds until the rate limit that is used up allows the next call, from `x-ratelimit-reset-requests` and
    `-tokens`; None if no limit is used up."""
    resets = []
    for kind in ("requests", "tokens"):
        left = headers.get(f"x-ratelimit-remaining-{kind}")
        seconds = _seconds(headers.get(f"x-ratelimit-reset-{kind}"))
        if seconds is not None and (left == "0" or (refused and left is None)):
            resets.append(seconds)
    return min(LONGEST_REST, max(resets)) if resets else None


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\d{1,12}(?:\.\d{1,6})?", text) else None


def _seconds(text: str | None) -> float | None:
    """Parse a duration such as `6m0s`, `350ms` or `12`. A number so large that it is a Unix time is one, in seconds or
    milliseconds. None if the text is anything else."""
    if text is None:
        return None
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        number = float(text)
        unix = number / 1000 if number > _UNIX * 1000 else number
        return number if number < _UNIX else max(0.0, unix - time.time())
    if not re.fullmatch(f"(?:{_DURATION.pattern})+", text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def retry_after_of(headers: Mapping[str, Any]) -> float | None:
    """The value of the `Retry-After` header in seconds; None if the header is missing or invalid. If the value is a
    date, the delay is counted from the response's `Date` header (the clock of the service), or from now if that header
    is missing."""
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        return min(86400.0, max(0.0, float(value)))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
        sent = headers.get("Date")
        now = datetime.now(UTC) if sent is None else parsedate_to_datetime(sent)
        return min(86400.0, max(0.0, (moment - now).total_seconds()))
    except (ValueError, TypeError, OverflowError):
        return None
