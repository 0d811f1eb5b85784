"""The output of a step while it runs: chunks, their positions, and what readers of the output receive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import orjson

from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.views import JobView
from fairlead.errors import InvalidInput

_POSITION = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)

CHUNKS, RUN = "output_chunks", "output_run"
"""The keys in a step's metrics: how many chunks the step emitted, and the run in which it did."""


class Position(NamedTuple):
    """The place of a chunk in the output of its job, written as `12-40`. `run` is the job's fence when the step
    started, so that each attempt of each step has a greater one than all before it. `sequence` counts from 0 in it."""

    run: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.run}-{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises InvalidInput."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise InvalidInput("a position in the output has the form 12-40: run and sequence", pointer="/after")
        return cls(int(match[1]), int(match[2]))


@fast_dataclass
class Entry:
    """Successive chunks of one run, as they are kept and sent. Each chunk is JSON text. A large one is alone in its
    entry, and kept in a file: `stored` is the id of the file, and the text is empty."""

    job_id: str
    run: int
    step_index: int
    attempt: int
    first: int
    """The sequence number of the first chunk."""
    chunks: Sequence[str]
    stored: str | None = None

    @property
    def last(self) -> int:
        return self.first + len(self.chunks) - 1

    def as_list(self) -> list[Any]:
        values = [self.run, self.step_index, self.attempt, self.first, list(self.chunks)]
        return values if self.stored is None else [*values, self.stored]

    @classmethod
    def of_list(cls, job_id: str, values: Sequence[Any]) -> Entry:
        return cls(job_id, *values)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of output: text, or any JSON value. As text (`str(chunk)`), it is the text or the JSON.

    `whole`: the chunk is the result of its step, because the chunks that the step emitted are no longer kept.
    """

    position: Position
    step_index: int
    attempt: int | None
    json: str
    whole: bool = False

    @property
    def data(self) -> Any:
        return orjson.loads(self.json)

    def as_dict(self) -> dict[str, Any]:
        """The fields as clients receive them. Only orjson can encode them: the data is not decoded."""
        whole = {"whole": True} if self.whole else {}
        data = orjson.Fragment(self.json)
        return {
            "position": str(self.position),
            "step_index": self.step_index,
            "attempt": self.attempt,
            "data": data,
            **whole,
        }

    @classmethod
    def of_dict(cls, body: dict[str, Any]) -> Chunk:
        data = orjson.dumps(body["data"]).decode()
        position = Position.parse(body["position"])
        return cls(position, body["step_index"], body["attempt"], data, whole=bool(body.get("whole")))

    def __str__(self) -> str:
        data = self.data
        return data if isinstance(data, str) else self.json


@dataclass(frozen=True, slots=True)
class Restart:
    """Discard all chunks of the step `step_index` and of later steps: their output begins again."""

    step_index: int

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class End:
    """The job has ended, and all its output was delivered."""

    job: JobView


Output: TypeAlias = Chunk | Restart | End


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output of a step that succeeded, as the store has it."""

    step_index: int
    run: int
    count: int
    result: Any

    @property
    def last(self) -> Position:
        return Position(self.run, self.count - 1)

    def chunks(self) -> Iterator[Chunk]:
        """The output from the result: the elements of the list that the chunks became, or the result as one chunk."""
        if isinstance(self.result, list) and len(self.result) == self.count:
            for sequence, element in enumerate(self.result):
                yield self._chunk(Position(self.run, sequence), element)
        elif self.count:
            yield self._chunk(self.last, self.result)

    def _chunk(self, position: Position, data: Any) -> Chunk:
        return Chunk(position, self.step_index, None, orjson.dumps(data).decode(), whole=True)


def outputs_of(job: JobView) -> list[StepOutput]:
    """The output of each step that has a result, in the order of the steps. A step without output has run 0."""
    found = []
    for key, entry in (job.context or {}).items():
        metrics = entry["metrics"]
        step_index = int(key.split("_", 2)[1])
        found.append(StepOutput(step_index, metrics.get(RUN, 0), metrics.get(CHUNKS, 0), entry["data"]))
    return sorted(found, key=lambda output: output.step_index)
