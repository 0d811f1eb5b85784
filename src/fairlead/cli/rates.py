"""rate: show and change the rates of a service."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli.client import client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json, Service
from fairlead.cli.output import local_time, print_json, say
from fairlead.domain.config_checks import known


@client_command
def rate(
    service: Service,
    requests: Annotated[int | None, typer.Option("--requests", help="Calls in any window of --per seconds.")] = None,
    tokens: Annotated[float | None, typer.Option("--tokens", help="Tokens, or units of its cost, likewise.")] = None,
    per: Annotated[float | None, typer.Option("--per", metavar="SECONDS", help="The window's length (60).")] = None,
    user: Annotated[bool, typer.Option("--user", help="The rate of each user of the service.")] = False,
    lift: Annotated[bool, typer.Option("--lift", help="Return to the configured rates.")] = False,
    json: Json = False,
) -> None:
    """Show or override the rate of a service.

    A rate bounds how many calls and tokens an endpoint gets in any window of time. Jobs wait for it in the queue.
    """
    path = f"/admin/services/{quote(service, safe='')}/rate"
    if lift and (requests is not None or tokens is not None):
        raise Failure("pass either the numbers of the rate or --lift", Exit.USAGE)
    if requests is None and tokens is None and (per is not None or (user and not lift)):
        raise Failure("--per and --user need --requests or --tokens", Exit.USAGE)
    if lift:
        _show(gateway().delete(path), json)
    elif requests is not None or tokens is not None:
        wanted = {"requests": requests, "units": tokens, "per": per, "user": user}
        _show(gateway().put(path, {name: value for name, value in wanted.items() if value is not None}), json)
    else:
        _show_use(service, json)


def _show(state: dict[str, Any], json: bool) -> None:
    if json:
        print_json(state)
        return
    say(f"{state['service']}  rate {shown(state['rate'])}, for each user {shown(state['user_rate'])}")


def _show_use(service: str, json: bool) -> None:
    services = {each["service"]: each for each in gateway().get("/queue/status")["services"]}
    if service not in services:
        raise Failure(f"there is no service {service!r}; {known(services)}")
    state = services[service]
    if json:
        print_json({key: state[key] for key in ("service", "rate", "user_rate", "rates")})
        return
    _show(state, json)
    for use in state["rates"]:
        where = use["name"] if use["of"] == "service" else f"{use['of']} {use['name']}"
        text = f"  {where}: {use['requests']} requests and {use['units']:g} units used of {shown(use['rate'])}"
        if use["resting_until"]:
            text += f"; its upstream takes no calls until {local_time(use['resting_until'])}"
        elif use["full"]:
            text += f"; full until {local_time(use['until']) if use['until'] else 'calls have been sent'}"
        say(text)


def shown(rate: dict[str, Any] | None) -> str:
    if rate is None:
        return "none"
    parts = [f"{rate['requests']} requests" if rate["requests"] is not None else ""]
    parts.append(f"{rate['units']:g} units" if rate["units"] is not None else "")
    return f"{' and '.join(filter(None, parts))} per {rate['per']:g} s"
