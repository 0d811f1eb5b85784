"""The routes of budgets, and the headers that show what is left of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain.access import Role
from fairlead.errors import InvalidInput, NotFound
from fairlead.gateway import models_budgets
from fairlead.gateway.openapi import WITH_BODY, body, documented
from fairlead.gateway.permissions import caller_of, who_of
from fairlead.gateway.problems import Forbidden
from fairlead.gateway.request_parsing import read_model
from fairlead.gateway.responses import fairlead_of, json_response

router = APIRouter(tags=["usage"])


@router.get(
    "/api/v1/budgets",
    summary="Budgets, and what is left of them",
    operation_id="budgets",
    description="The budgets with what their current window has left. A user's key sees those that concern the user. "
    "Of a budget for each user, an operator sees the users that it has counted.",
    responses=documented(200, models_budgets.BudgetPage, "The budgets.", InvalidInput, NotFound, Forbidden),
)
async def list_budgets(request: Request, query: Annotated[models_budgets.BudgetsQuery, Query()]) -> Response:
    caller, user_id = caller_of(request), query.user_id
    if caller.role is Role.USER:
        if user_id not in (None, caller.user_id):
            raise Forbidden("a user's key sees its own budgets only; omit user_id", pointer="/user_id")
        user_id = caller.user_id
    states = await fairlead_of(request).budgets(user_id=user_id, budget=query.budget)
    return json_response({"data": [asdict(state) for state in states]})


@router.put(
    "/admin/budgets/{budget}",
    summary="Set the amount of a budget",
    operation_id="set_budget",
    openapi_extra=body(models_budgets.BudgetRequest),
    responses=documented(200, models_budgets.BudgetState, "The budget.", InvalidInput, NotFound, *WITH_BODY),
)
async def set_budget(request: Request, budget: str) -> Response:
    change = await read_model(request, models_budgets.BudgetRequest)
    app = fairlead_of(request)
    state = await app.set_budget(budget, change.amount, user_id=change.user_id, who=who_of(request))
    return json_response(asdict(state))


@router.delete(
    "/admin/budgets/{budget}",
    summary="Reset a budget to its configured amount",
    operation_id="reset_budget",
    responses=documented(200, models_budgets.BudgetState, "The budget.", InvalidInput, NotFound),
)
async def reset_budget(
    request: Request,
    budget: str,
    user_id: Annotated[str | None, Query(max_length=255, description="Of this user only.")] = None,
) -> Response:
    state = await fairlead_of(request).set_budget(budget, None, user_id=user_id, who=who_of(request))
    return json_response(asdict(state))
