"""Tells the truth of processes of this machine that were killed, so that recovery need not wait for their leases."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.domain.processes import GONE
from fairlead.runtime.kin import is_gone
from fairlead.store.journal import Journal
from fairlead.store.port import Announce, Store

log = logging.getLogger(__name__)

EVERY = 1.0


class KinLoop:
    name = "kin"

    def __init__(self, store: Store, journal: Journal, marks: Mapping[str, Any]) -> None:
        self._store = store
        self._journal = journal
        self._marks = marks

    async def tick(self, now: float) -> float:
        for record in await self._store.processes():
            if not record.gone and is_gone(record, self._marks):
                log.warning("%s is gone without a farewell; its calls are taken back", record.name)
                await self._journal.write(Announce(replace(record, details={**record.details, GONE: True})))
        return now + EVERY
