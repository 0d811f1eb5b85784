"""Sessions of browsers: who signed in to the dashboard, and with which key. They are in the truth, as a hash, so that
every gateway knows them and a restart ends none."""

from __future__ import annotations

import secrets

from fairlead.domain import keytext
from fairlead.runtime.clock import Clock
from fairlead.store.board import CloseSession, OpenSession
from fairlead.store.journal import Journal
from fairlead.store.port import Store

LIFE_S = 12 * 3600
LONGEST = 100
"""Of a cookie's text; ours are shorter."""


class Sessions:
    def __init__(self, store: Store, journal: Journal, clock: Clock) -> None:
        self._store = store
        self._journal = journal
        self._clock = clock

    async def open(self, key_id: str) -> str:
        """The secret that stands for this key, for twelve hours or until the key is revoked."""
        text = secrets.token_urlsafe(32)
        await self._journal.write(OpenSession(keytext.hash_of(text), key_id, self._clock.now() + LIFE_S))
        return text

    async def key_of(self, text: str) -> str | None:
        """The id of the key that it stands for. None: there is no such session, or it has ended."""
        if not 0 < len(text) <= LONGEST:
            return None
        session = await self._store.session(keytext.hash_of(text), self._clock.now())
        return None if session is None else session.key_id

    async def close(self, text: str) -> None:
        await self._journal.write(CloseSession(keytext.hash_of(text)))
