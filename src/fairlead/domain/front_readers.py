"""Which request reads the job of a front, stored with the job's idempotency key.

A front submits each job with an idempotency key of its own, `openai:FINGERPRINT:SUFFIX`, where the fingerprint is a
hash of what makes two requests the same. In place of the hash of a body, the reader is stored with the key, as
`BODY@PROCESS/REQUEST`: a hash of the body, the process that has the client's connection, and the request. A request
that the client sends again finds the newest key of its fingerprint, joins the job, and becomes its reader. No table and
no commit of its own is needed, and the row is deleted with the job.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

PREFIX = "openai:"
NONE = "-"
"""The reader of a job whose client has disconnected."""


def digest(*parts: str | bytes) -> str:
    """A hash of these parts in this order."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hashed.update(b"%d:" % len(data) + data)
    return hashed.hexdigest()[:40]


def key_prefix(fingerprint: str) -> str:
    return f"{PREFIX}{fingerprint}:"


@dataclass(frozen=True, slots=True)
class Reader:
    """A request that reads a job. `process` is empty if the process is not registered; such a reader never counts as
    gone."""

    body: str
    process: str
    request: str

    def __str__(self) -> str:
        return f"{self.body}@{self.process}/{self.request}"

    @classmethod
    def of(cls, text: str) -> Reader | None:
        """Decode a stored reader; None if the text is the hash of a body."""
        body, mark, rest = text.partition("@")
        process, slash, request = rest.rpartition("/")
        return cls(body, process, request) if mark and slash else None
