"""`ClientTurn`: waits for a slot, and holds it until the `with` block ends. A thread renews the slot meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fairlead.client import turn_calls
from fairlead.client.calls import ApiCall
from fairlead.client.turn_calls import TurnState
from fairlead.client.turn_stream import OpenTurn, TurnStream, described, ended, lost, outlives, pause
from fairlead.errors import FairleadError, NotFound, TurnError, WrongState

if TYPE_CHECKING:
    from fairlead.client.synchronous_turns import TurnCalls

OnPosition = Callable[[int], object]


class ClientTurn(OpenTurn):
    """A turn: waits in the queue, then holds the slot, which a thread renews. `result` is stored like the result of a
    job, and `usage` is what the work has used. `lost` is set when the slot has been lost; the code in the block has to
    check it and stop by itself."""

    def __init__(self, client: TurnCalls, wanted: Mapping[str, Any], on_position: OnPosition | None) -> None:
        super().__init__()
        self._client = client
        self._request = wanted
        self._on_position = on_position
        self._over = threading.Event()
        self._renewing: threading.Thread | None = None
        self.lost = threading.Event()

    def __enter__(self) -> ClientTurn:
        self._state = self._client._do(turn_calls.open_turn(self._request))
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
        events = self._client.read_events(stream)
        try:
            for event in events:
                self._report_position(stream.position_in(event))
                if stream.ended:
                    break
        finally:
            events.close()  # type: ignore[attr-defined]  # it is a generator
        self._state = stream.state
        if not stream.state.held:
            raise ended(stream.state)
        self.position = None

    def _report_position(self, position: int | None) -> None:
        if position is not None and position != self.position:
            self.position = position
            if self._on_position is not None:
                self._on_position(position)

    def _renew(self) -> None:
        """Renew the slot periodically, until it is lost. The slot also counts as lost when no gateway has been
        reachable for so long that the lease must have expired."""
        until = time.monotonic() + outlives(self._opened)
        while time.monotonic() < until:
            if self._over.wait(pause(self._opened)):
                return
            renewed_at = time.monotonic()
            try:
                state = self._client._do(turn_calls.renew_turn(self.id), max(0.0, until - renewed_at))
            except (NotFound, WrongState):
                break
            except FairleadError:
                continue
            if not state.held:
                break
            until = renewed_at + outlives(state)
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
            self._leave(turn_calls.finish_turn(self.id, error=described(error), usage=self.usage))
        else:
            self._leave(turn_calls.cancel_turn(self.id))

    def _finish(self) -> None:
        try:
            self._client._do(turn_calls.finish_turn(self.id, self.result, usage=self.usage))
        except (NotFound, WrongState) as error:
            self.lost.set()
            raise lost(self.id) from error

    def _leave(self, call: ApiCall[TurnState]) -> None:
        """Send the last request of the turn, and ignore its errors. An exception from the block matters more, and the
        gateway notices by itself that the caller no longer sends requests."""
        with contextlib.suppress(FairleadError):
            self._client._do(call, 0.0)
