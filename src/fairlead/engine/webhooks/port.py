"""The interface of what sends a webhook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sent:
    """The response of a receiver: its status, or the reason why there is none."""

    status: int | None
    text: str = ""
    retry_after: float | None = None

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        return self.status == 410


class Sender(Protocol):
    async def send(self, url: str, body: str, headers: Mapping[str, str]) -> Sent: ...

    async def close(self) -> None: ...
