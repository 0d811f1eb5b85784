"""The synchronous connection, for the one operation that is called from a thread: the heartbeat."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from redis.exceptions import MovedError, NoScriptError

from fairlead.dispatch.redis.clients import Address, parse, sentinels_of, sync_client
from fairlead.dispatch.redis.connection import LOOK_S, Call
from fairlead.dispatch.redis.errors import ERRORS, takes_no_writes, unavailable
from fairlead.dispatch.redis.identity import Admit
from fairlead.dispatch.redis.slots import Slots

_ONLY: Address = ("", 0)


class SyncConnection:
    """As `Connection`, but one call after the other, and without waiting for a place."""

    def __init__(self, url: str, admit: Admit | None = None) -> None:
        self._target = parse(url)
        self._admit = admit
        self._slots = Slots(self._target.hosts)
        self._clients: dict[Address, Any] = {}
        if not self._target.cluster:
            self._clients[_ONLY] = sync_client(self._target, admit)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """The answers, in order. Every call is made, even if another fails: what one node of a Cluster has must not be
        lost with another node."""
        answers: list[Any] = [None] * len(calls)
        waiting = list(range(len(calls)))
        for _ in range(2):  # once more for what has moved
            for node, those in self._by_node(calls, waiting).items():
                for i, answer in zip(those, self._run_on(node, [calls[i] for i in those]), strict=True):
                    answers[i] = answer
                    if isinstance(answer, MovedError):
                        self._slots.learn_move(answer, node)
            waiting = [i for i, answer in enumerate(answers) if isinstance(answer, MovedError)]
            if not waiting:
                break
        for answer in answers:
            if isinstance(answer, Exception):
                self._slots.doubt()
                if takes_no_writes(answer):
                    for client in self._clients.values():
                        client.connection_pool.disconnect()
                raise unavailable(answer)
        return answers

    def _by_node(self, calls: Sequence[Call], chosen: list[int]) -> dict[Address, list[int]]:
        if not self._target.cluster:
            return {_ONLY: chosen} if chosen else {}
        self._look()
        by_node: dict[Address, list[int]] = {}
        for i in chosen:
            # Without a node that has the keys, any will say so.
            node = self._slots.node_of(calls[i].keys[0]) or self._slots.primaries[0]
            by_node.setdefault(node, []).append(i)
        return by_node

    def _run_on(self, node: Address, calls: Sequence[Call]) -> list[Any]:
        client = self._clients.get(node)
        if client is None:
            client = self._clients[node] = sync_client(self._target, self._admit, node)
        try:
            with client.pipeline(transaction=False) as pipeline:
                for call in calls:
                    pipeline.execute_command(*call.command)
                answers = list(pipeline.execute(raise_on_error=False))
            for i, answer in enumerate(answers):
                if isinstance(answer, NoScriptError):
                    answers[i] = client.execute_command(*calls[i].with_source)
            return answers
        except ERRORS as error:
            return [error] * len(calls)

    def _look(self) -> None:
        if not self._slots.in_doubt():
            return
        error: Exception | None = None
        for node in self._slots.to_ask():
            client = sync_client(self._target, node=node, timeout=LOOK_S)
            try:
                self._slots.learn(client.execute_command("CLUSTER", "SLOTS"), node)
                if self._slots.primaries:
                    return
            except ERRORS as failure:
                error = failure
            finally:
                client.close()
        raise unavailable(error or LookupError("this Redis Cluster has no slots"))

    def close(self) -> None:
        for client in self._clients.values():
            for each in (*sentinels_of(client), client):
                with contextlib.suppress(*ERRORS):
                    each.close()
