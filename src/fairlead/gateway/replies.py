"""What every route needs: the app behind the request, and a way to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import HTTPConnection
from starlette.responses import Response

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.runtime.paging import Page
    from fairlead.runtime.view import JobView


def fairlead_of(request: HTTPConnection) -> Fairlead:
    app: Fairlead = request.app.state.fairlead
    return app


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value, default=str), status, headers, "application/json")


def answer_page(page: Page[JobView]) -> Response:
    return answer({"data": [job.as_dict() for job in page.data], "next_cursor": page.next_cursor})
