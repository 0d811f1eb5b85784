"""What the models of the OpenAI front do: requests, tokens, how fast they come, and the time to the first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any, NamedTuple

from fairlead.domain.openai import events_in, has_token, reported_usage
from fairlead.domain.stats import SECONDS, Histogram, quantile
from fairlead.domain.usage import Usage, merged, reported

FIRST_TOKEN = "first_token_ms"
"""The key in a step's metrics: milliseconds from the call to the first token of its stream."""


class Generation(NamedTuple):
    """One answer of a model: its tokens, the seconds from the call to the first token (None if the answer was not
    streamed), and the seconds that the output tokens took."""

    model: str
    tokens_in: int
    tokens_out: int
    first_token: float | None
    seconds: float


@dataclass(slots=True)
class ModelStats:
    """The answers of one model, summed up. `first_tokens` is a histogram of the times to the first token."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    first_tokens: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def count(self, answer: Generation) -> None:
        self.calls += 1
        self.tokens_in += answer.tokens_in
        self.tokens_out += answer.tokens_out
        if answer.tokens_out:
            self.seconds += answer.seconds
        if answer.first_token is not None:
            self.first_tokens.observe(answer.first_token)

    def as_list(self) -> list[Any]:
        counts = list(self.first_tokens.counts)
        return [self.calls, self.tokens_in, self.tokens_out, round(self.seconds, 3), counts]

    def add(self, stored: Sequence[Any]) -> None:
        """Add what `as_list` returned, in this process or another one."""
        calls, tokens_in, tokens_out, seconds, counts = stored
        self.calls += calls
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        self.seconds += seconds
        for at, count in enumerate(counts[: len(self.first_tokens.counts)]):
            self.first_tokens.counts[at] += count

    def shown(self, window: float) -> dict[str, Any]:
        """The figures for operators, if these are the answers of the last `window` seconds. `tokens_per_second` is what
        the model makes for all requests together, `request_tokens_per_second` what one request gets."""
        return {
            "calls": self.calls,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "tokens_per_second": round(self.tokens_out / window, 2) if window > 0 else None,
            "request_tokens_per_second": round(self.tokens_out / self.seconds, 2) if self.seconds else None,
            "first_token_p50": quantile(self.first_tokens.counts, 0.5),
            "first_token_p95": quantile(self.first_tokens.counts, 0.95),
        }


def since(now: ModelStats, before: Sequence[Any] | None) -> list[Any]:
    """What was counted since `before`, an earlier `as_list` of the same statistics."""
    *later, counts = now.as_list()
    if before is None:
        return [*later, counts]
    *earlier, counts_before = before
    return [*map(sub, later, earlier), list(map(sub, counts, counts_before))]


class StreamCount:
    """What a stream has used so far, by its chunks: the newest report, and at least one output token for each event
    with output of the model. Some servers report only at the beginning, when there is no output yet."""

    def __init__(self) -> None:
        self._report: Usage | None = None
        self._tokens = 0
        self._model: Any = None
        self.began = False
        """Whether an event has come."""

    def add(self, chunk: str) -> None:
        for event in events_in(chunk):
            self.began = True
            self._report = reported_usage(event) or self._report
            self._tokens += has_token(event)
            self._model = self._model or event.get("model")

    def usage(self, prompt: int | None = None) -> Usage | None:
        """None if no event has come with a report or output. `prompt` is the number of tokens in, unless the stream
        has reported it: the model has read the prompt before the first event."""
        report = merged(reported({"tokens_in": prompt}, model=self._model), self._report) if self.began else None
        if report is not None and (report.tokens_out or 0) >= self._tokens:
            return report
        return merged(report, reported({"tokens_out": self._tokens or None}, model=self._model))
