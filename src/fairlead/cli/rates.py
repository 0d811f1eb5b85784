"""rate: show and change the rates of services, regions, pools, plans and groups."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli.client import client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json, complete_services
from fairlead.cli.output import local_time, print_json, say
from fairlead.domain.config_checks import known
from fairlead.domain.rates import UNITS, Rate

SHARED = ("pool", "plan", "group")


@client_command
def rate(
    service: Annotated[
        str | None,
        typer.Argument(
            metavar="[SERVICE]", help="The service's name, as `status` shows it.", autocompletion=complete_services
        ),
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="Calls in any window of --per seconds.")] = None,
    tokens: Annotated[float | None, typer.Option("--tokens", help="Tokens, likewise.")] = None,
    units: Annotated[
        float | None, typer.Option("--units", help="Units of its cost, for a service that counts in another unit.")
    ] = None,
    per: Annotated[float | None, typer.Option("--per", metavar="SECONDS", help="The window's length (60).")] = None,
    user: Annotated[bool, typer.Option("--user", help="The rate of each user of the service.")] = False,
    region: Annotated[str | None, typer.Option("--region", help="The rate of this region of the service.")] = None,
    pool: Annotated[str | None, typer.Option("--pool", help="The rate of this pool.")] = None,
    plan: Annotated[str | None, typer.Option("--plan", help="The rate of each user of this plan.")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="PATH", help="The rate of this group.")] = None,
    lift: Annotated[bool, typer.Option("--lift", help="Return to the configured rate.")] = False,
    json: Json = False,
) -> None:
    """Show or override the rate of a service, a region, a pool, a plan or a group.

    A rate bounds how many calls and tokens an endpoint gets in any window of time. Jobs wait for it in the queue.
    """
    shared = {of: name for of, name in zip(SHARED, (pool, plan, group), strict=True) if name is not None}
    if (service is not None) + len(shared) != 1:
        raise Failure("name one service, or one of --pool, --plan and --group", Exit.USAGE)
    if (service is None and (user or region is not None)) or (user and region is not None):
        raise Failure("--user and --region name one rate of a service each", Exit.USAGE)
    changes = any(number is not None for number in (requests, tokens, units))
    if lift and changes:
        raise Failure("pass either the numbers of the rate or --lift", Exit.USAGE)
    if not changes and (per is not None or (user and not lift)):
        raise Failure("--per and --user need --requests, --tokens or --units", Exit.USAGE)
    path = _path(service, shared)
    if lift:
        _show(gateway().delete(path, region=region), json)
    elif changes:
        numbers = {"requests": requests, "tokens": tokens, "units": units, "per": per}
        wanted = {**numbers, "user": user or None, "region": region}
        _show(gateway().put(path, {name: value for name, value in wanted.items() if value is not None}), json)
    else:
        _show_use(service, shared, region, json)


def _path(service: str | None, shared: dict[str, str]) -> str:
    if service is not None:
        return f"/admin/services/{quote(service, safe='')}/rate"
    ((of, name),) = shared.items()
    return f"/admin/rates/{of}/{quote(name)}"


def _show(state: dict[str, Any], json: bool) -> None:
    """Print the rates of a service, or the one that services share."""
    if json:
        print_json(state)
        return
    unit = state["unit"]
    if "of" in state:
        say(f"{state['of']} {state['name']}  {whose(state['of'])}{shown(state['rate'], unit)}")
        return
    regions = state.get("region_rates") or {
        name: each["rate"] for name, each in state.get("regions", {}).items() if each["rate"]
    }
    parts = [f"rate {shown(state['rate'], unit)}", f"for each user {shown(state['user_rate'], unit)}"]
    say(
        f"{state['service']}  "
        + ", ".join([*parts, *(f"in {name} {shown(each, unit)}" for name, each in regions.items())])
    )


def whose(of: str) -> str:
    return "rate of each user " if of == "plan" else "rate "


def _show_use(service: str | None, shared: dict[str, str], region: str | None, json: bool) -> None:
    status = gateway().get("/queue/status")
    services = {each["service"]: each for each in status["services"]}
    if service is None:
        ((of, name),) = shared.items()
        _show_shared(of, name, status, json)
        return
    if service not in services:
        raise Failure(f"there is no service {service!r}; {known(services)}")
    state = services[service]
    if region is not None and region not in state["regions"]:
        raise Failure(f"{service} has no region {region!r}; {known(state['regions'])}")
    if json:
        print_json({key: state[key] for key in ("service", "rate", "user_rate", "unit", "rates")})
        return
    _show(state, json)
    for use in state["rates"]:
        if region is None or (use["of"], use["name"]) == ("region", region):
            say(f"  {used(use)}")


def _show_shared(of: str, name: str, status: dict[str, Any], json: bool) -> None:
    """Print the rate of a pool, a plan or a group, and how much of it is used. Plans count each user, which `why` of a
    job tells."""
    rates = {each["name"]: each for each in status["shared_rates"] if each["of"] == of}
    if name not in rates:
        others = f"; {known(rates)}" if rates else ""
        raise Failure(f"the {of} {name!r} has no rate{others}")
    uses = {
        (use["of"], use["name"]) if of == "pool" else (each["service"], use["name"]): (each["service"], use)
        for each in status["services"]
        for use in each["rates"]
        if (use["of"], use["name"]) == (of, name)
    }
    if json:
        print_json({**rates[name], "rates": [{"service": service, **use} for service, use in uses.values()]})
        return
    _show(rates[name], json)
    for service, use in uses.values():
        say(f"  {used(use)}" if of == "pool" else f"  {service}, {used(use)}")


def used(use: dict[str, Any]) -> str:
    """How much of a rate is used, and until when, if it is used up."""
    where = use["name"] if use["of"] == "service" else f"{use['of']} {use['name']}"
    if use["rate"] is None:
        text = f"{where}: no rate"
    else:
        counts = [f"{use['requests']} requests"] if use["rate"]["requests"] is not None else []
        counts += [f"{use['units']:.10g} {use['unit']}"] if use["rate"]["units"] is not None else []
        text = f"{where}: {' and '.join(counts)} used of {shown(use['rate'], use['unit'])}"
    if use["resting_until"]:
        text += f"; its upstream takes no calls until {local_time(use['resting_until'])}"
    elif use["full"]:
        text += f"; full until {local_time(use['until']) if use['until'] else 'calls have been sent'}"
    return text


def shown(rate: dict[str, Any] | None, unit: str = UNITS) -> str:
    return "none" if rate is None else Rate(**rate).shown(unit)
