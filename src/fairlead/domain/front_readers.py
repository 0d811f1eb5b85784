"""Which requests read the job of a front, stored with the job's idempotency key.

A front submits each job with an idempotency key of its own, `openai:FINGERPRINT:SUFFIX`, where the fingerprint is a
hash of what makes two requests the same. In place of the hash of a body, the readers are stored with the key, as
`BODY@PROCESS/REQUEST`: a hash of the body, the process that has the client's connection, and the request. A request
that the client sends again finds the newest key of its fingerprint, joins the job, and adds itself, after a `+`. No
table and no commit of its own is needed, and the row is deleted with the job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from fairlead.domain.fast_dataclass import fast_dataclass

PREFIX = "openai:"
NONE = "-"
"""The process of the reader of a job whose clients have all disconnected."""
MOST_READERS = 20
"""The number of readers that are stored. The oldest ones are dropped first; they still get the answer."""


def digest(*parts: str | bytes) -> str:
    """A hash of these parts in this order."""
    text = b""
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        text += b"%d:%b" % (len(data), data)
    return hashlib.sha256(text).hexdigest()[:40]


def key_prefix(fingerprint: str) -> str:
    return f"{PREFIX}{fingerprint}:"


class Reader(NamedTuple):
    """A request that reads a job. `process` is empty if the process is not registered; such a reader never counts as
    gone."""

    process: str
    request: str

    def __str__(self) -> str:
        return f"{self.process}/{self.request}"


@fast_dataclass
class Readers:
    """The requests that read a job, oldest first, and a hash of their body."""

    body: str
    requests: tuple[Reader, ...]

    def __str__(self) -> str:
        return f"{self.body}@{'+'.join(map(str, self.requests))}"

    @classmethod
    def of(cls, text: str) -> Readers | None:
        """Decode stored readers; None if the text is the hash of a body."""
        body, mark, rest = text.partition("@")
        parts = [part.rpartition("/") for part in rest.split("+")]
        if not mark or not all(slash for _, slash, _ in parts):
            return None
        return cls(body, tuple(Reader(process, request) for process, _, request in parts))

    @property
    def all_left(self) -> bool:
        """Whether all clients have disconnected, so that the job is being cancelled."""
        return self.requests[0].process == NONE

    def joined_by(self, reader: Reader) -> Readers:
        return replace(self, requests=(*self.requests, reader)[-MOST_READERS:])

    def left_by(self, reader: Reader, gone: Collection[str] = ()) -> Readers:
        """The readers without this one, and without those in processes that are gone. The last one remains, with no
        process, so that a write whose outcome is not known can be repeated."""
        others = tuple(other for other in self.requests if other != reader and other.process not in gone)
        return replace(self, requests=others or (Reader(NONE, reader.request),))
