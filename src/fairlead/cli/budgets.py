"""budget: show and change budgets."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli.client import client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json
from fairlead.cli.output import local_time, note, print_json, print_table, say

BUDGETS = "/api/v1/budgets"


@client_command
def budget(
    name: Annotated[str | None, typer.Argument(metavar="[BUDGET]", help="Only this budget.")] = None,
    amount: Annotated[float | None, typer.Argument(metavar="[AMOUNT]", help="Set its amount to this.")] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="Of this user, if the budget is for each user.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Return to the configured amount.")] = False,
    json: Json = False,
) -> None:
    """Show budgets and what is left of them, or set the amount of one.

    An amount that is set applies at once, and until it is reset. Jobs that wait for the budget go on within a second.
    """
    if (amount is not None or reset) and name is None:
        raise Failure("name the budget to change", Exit.USAGE)
    if amount is not None and reset:
        raise Failure("pass either an amount or --reset", Exit.USAGE)
    path = f"/admin/budgets/{quote(name or '', safe='')}"
    if amount is not None:
        wanted = {"amount": amount, "user_id": user}
        changed = gateway().put(path, {key: value for key, value in wanted.items() if value is not None})
        _show_one(changed, json)
    elif reset:
        _show_one(gateway().delete(path, user_id=user), json)
    else:
        _show(gateway().get(BUDGETS, user_id=user, budget=name)["data"], json)


def _show_one(state: dict[str, Any], json: bool) -> None:
    if json:
        print_json(state)
        return
    whose = f" of {state['user_id']}" if state["user_id"] else ""
    say(f"{state['budget']}{whose}: {_amount(state, 'amount')} {state['measure']} per {state['per']}")


def _show(states: list[dict[str, Any]], json: bool) -> None:
    if json:
        print_json(states)
    elif states:
        heads = ("BUDGET", "WHOSE", "USED", "UNDER WAY", "AMOUNT", "OF", "LEFT", "UNTIL", "AT END", "HELD")
        print_table(heads, map(_cells, states), optional=("UNDER WAY", "AT END"))
    else:
        note("there are no budgets")


def _cells(state: dict[str, Any]) -> tuple[Any, ...]:
    return (
        state["budget"],
        _whose(state),
        _amount(state, "used"),
        _amount(state, "reserved"),
        _amount(state, "amount"),
        state["measure"],
        f"{100 * state['remaining'] / state['amount']:.0f} %",
        local_time(state["window_end"]),
        state["at_end"],
        state["held"],
    )


def _whose(state: dict[str, Any]) -> str:
    if state["user_id"]:
        return str(state["user_id"])
    members = state["plan"] or state["group"]
    if state["each_user"]:
        return f"each of {members}" if members else "each user"
    return members or "everyone"


def _amount(state: dict[str, Any], name: str) -> str:
    return f"{state[name]:.2f}" if state["measure"] == "money" else f"{state[name]:.10g}"
