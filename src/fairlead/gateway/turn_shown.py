"""A turn as the gateway shows it: with where to go on, and without where its caller is."""

from __future__ import annotations

from typing import Any

from fairlead.gateway import turn_callers
from fairlead.runtime.turns.view import TurnView

TURNS = "/api/v1/turns"


def shown(turn: TurnView) -> dict[str, Any]:
    said = turn.as_dict()
    del said["process"], said["input"]
    url = f"{TURNS}/{turn.turn_id}"
    links = {f"{name}_url": f"{url}/{name}" for name in ("events", "renew", "finish", "cancel")}
    return {**said, "heartbeat": turn_callers.HEARTBEAT, "links": {"status_url": url, **links}}
