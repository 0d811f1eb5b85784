"""What `Client` does with turns."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from fairlead.client import calls, turn_calls
from fairlead.client.calls import Call
from fairlead.client.stream import Stream
from fairlead.client.turn_calls import TurnState
from fairlead.client.turn_stream import TurnStream, described, ended, lost, outlives, pause
from fairlead.errors import FairleadError, NotFound, TurnError, WrongState

T = TypeVar("T")


class TurnCalls(ABC):
    """A part of `Client`."""

    _patience: float

    @abstractmethod
    def _do(self, call: Call[T], patience: float | None = None) -> T: ...

    @abstractmethod
    def _heard(self, stream: Stream) -> Iterator[dict[str, Any]]: ...

    def turn(
        self,
        service: str,
        user_id: str | int | None = None,
        *,
        on_position: Callable[[int], object] | None = None,
        wait_timeout: float | None = None,
        priority: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ClientTurn:
        """Wait in line for a slot of the service, and have it for the length of the block. `on_position` is told the
        place in line when it changes. Raises TurnTimeout after `wait_timeout`
        seconds in line, TurnEnded if the wait ended otherwise. If the slot is taken away, `lost`
        is set, and the block's end raises TurnLost."""
        wanted = turn_calls.wanted(service, user_id, wait_timeout, priority, metadata)
        return ClientTurn(self, wanted, on_position)

    def get_turn(self, turn_id: str) -> TurnState:
        """Only to look: neither keeps its place nor takes the slot."""
        return self._do(turn_calls.get_turn(turn_id))

    def cancel_turn(self, turn_id: str) -> TurnState:
        """Somebody else's, as a rule: a holder hears that its slot is lost, and has a moment to leave it."""
        self._do(calls.cancel(turn_id))
        return self.get_turn(turn_id)


class ClientTurn:
    """A turn, from the place in line to the slot, which a thread renews. What `result` is set to is kept like a job's.
    `lost` is set when the slot is no longer ours: nobody can stop the block but itself."""

    def __init__(
        self, client: TurnCalls, wanted: Mapping[str, Any], on_position: Callable[[int], object] | None
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._on_position = on_position
        self._state: TurnState | None = None
        self._over = threading.Event()
        self._renewing: threading.Thread | None = None
        self.position: int | None = None
        self.result: Any = None
        self.lost = threading.Event()

    @property
    def id(self) -> str:
        return self._opened.turn_id

    @property
    def service(self) -> str:
        return self._opened.service

    @property
    def user_id(self) -> str:
        return self._opened.user_id

    @property
    def _opened(self) -> TurnState:
        if self._state is None:
            raise FairleadError("the turn begins with its `with`")
        return self._state

    def __enter__(self) -> ClientTurn:
        self._state = self._client._do(turn_calls.open_turn(self._wanted))
        try:
            self._wait()
        except BaseException as error:
            if not isinstance(error, TurnError):
                self._leave(turn_calls.cancel_turn(self.id))
            raise
        self._renewing = threading.Thread(target=self._renew, name=f"renew turn {self.id}", daemon=True)
        self._renewing.start()
        return self

    def _wait(self) -> None:
        stream = TurnStream(self._opened, self._client._patience)
        events = self._client._heard(stream)
        try:
            for event in events:
                self._tell(stream.position_in(event))
                if stream.ended:
                    break
        finally:
            events.close()  # type: ignore[attr-defined]  # it is a generator
        self._state = stream.state
        if not stream.state.held:
            raise ended(stream.state)
        self.position = None

    def _tell(self, position: int | None) -> None:
        if position is not None and position != self.position:
            self.position = position
            if self._on_position is not None:
                self._on_position(position)

    def _renew(self) -> None:
        """Until it is lost, or nobody could be asked for so long that it must be."""
        until = time.monotonic() + outlives(self._opened)
        while time.monotonic() < until:
            if self._over.wait(pause(self._opened)):
                return
            asked = time.monotonic()
            try:
                state = self._client._do(turn_calls.renew_turn(self.id), max(0.0, until - asked))
            except (NotFound, WrongState):
                break
            except FairleadError:
                continue
            if not state.held:
                break
            until = asked + outlives(state)
        if not self._over.is_set():
            self.lost.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._renewing is not None
        self._over.set()
        if self.lost.is_set():
            raise lost(self.id) from error
        if error is None:
            self._finish()
        elif isinstance(error, Exception):
            self._leave(turn_calls.finish_turn(self.id, error=described(error)))
        else:
            self._leave(turn_calls.cancel_turn(self.id))

    def _finish(self) -> None:
        try:
            self._client._do(turn_calls.finish_turn(self.id, self.result))
        except (NotFound, WrongState) as error:
            self.lost.set()
            raise lost(self.id) from error

    def _leave(self, call: Call[TurnState]) -> None:
        """Whatever comes of it: the block's own error counts, and a caller that says nothing is missed soon enough."""
        with contextlib.suppress(FairleadError):
            self._client._do(call, 0.0)
