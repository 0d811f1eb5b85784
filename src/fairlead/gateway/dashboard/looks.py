"""How each view is looked at: what the app says, in the shape that the pages take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.gateway.access import Caller

if TYPE_CHECKING:
    from fairlead.app import Fairlead


async def overview(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    return await app.dashboard.overview()


async def _later(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    raise NotImplementedError


service = job = jobs = users = batches = batch = dead = workers = audit = _later
