"""Request and response models of budgets; see models.py."""

from __future__ import annotations

from pydantic import Field, StrictFloat

from fairlead.app.budget_gate import BudgetState as BudgetStateView
from fairlead.gateway.derived_models import Shape, example, fields_of
from fairlead.gateway.models import MOMENT

_EXAMPLE = {
    "budget": "free_tokens",
    "user_id": "ada",
    "plan": "free",
    "group": None,
    "each_user": True,
    "services": None,
    "measure": "tokens",
    "amount": 100000.0,
    "declared_amount": 100000.0,
    "used": 81250.0,
    "reserved": 1200.0,
    "remaining": 17550.0,
    "spent": False,
    "per": "day",
    "window_start": MOMENT,
    "window_end": MOMENT,
    "at_end": "hold",
    "held": 0,
}


@fields_of(
    BudgetStateView,
    user_id="Whose it is; null for a budget that several users share.",
    services="The services whose calls it counts; null for all.",
    measure="`seconds`, `units`, `tokens` or `money`: the unit of the amounts.",
    amount="The amount that applies now.",
    declared_amount="The configured amount.",
    used="What calls that ended in this window have used.",
    reserved="What calls under way are expected to use.",
    remaining="What is neither used nor reserved.",
    spent="Whether what was used has reached the amount.",
    per="`hour`, `day` or `month`.",
    window_end="When the next window begins.",
    at_end="What happens when it is spent: `hold`, `demote` or `refuse`.",
    held="Jobs that wait for the next window.",
)
class BudgetState(Shape):
    """A budget, and how much of it is left in the current window."""

    model_config = example(**_EXAMPLE)


class BudgetsQuery(Shape):
    user_id: str | None = Field(None, max_length=255, description="Those that concern this user.")
    budget: str | None = Field(None, max_length=63, description="Only this one.")


class BudgetPage(Shape):
    model_config = example(data=[_EXAMPLE])

    data: list[BudgetState]


class BudgetRequest(Shape):
    model_config = example(amount=200000, user_id="ada")

    # The application checks the range.
    amount: StrictFloat = Field(description="In the measure of the budget, until it is reset.")
    user_id: str | None = Field(
        default=None, max_length=255, description="One user, if the budget is for each user. Default: all of them."
    )
