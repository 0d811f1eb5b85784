"""`fairlead webhooks`: endpoints, secrets, and the log of deliveries."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlead.cli.client import client_command, gateway
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import All, Json, Limit
from fairlead.cli.output import hint, local_time, note, print_json, print_table, say

webhooks = typer.Typer(
    no_args_is_help=True, help="Receivers of events: create them, read the log of deliveries, send them again."
)
BASE = "/api/v1/webhooks"

EndpointId = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Its id, from `fairlead webhooks list`.")]
User = Annotated[str | None, typer.Option("--user", metavar="USER", help="Only of this user.")]
Events = Annotated[
    list[str] | None, typer.Option("--event", metavar="EVENT", help="An event to receive; may be repeated.")
]


@webhooks.command("list")
@client_command
def list_endpoints(user: User = None, json: Json = False) -> None:
    """List the endpoints."""
    rows = gateway().get(f"{BASE}/endpoints", user_id=user)["data"]
    if json:
        print_json(rows)
    elif rows:
        print_table(("ID", "USER", "URL", "EVENTS", "STATE"), map(_endpoint_row, rows))
    else:
        note("no endpoints")


@webhooks.command()
@client_command
def create(
    receiver: Annotated[str, typer.Argument(metavar="URL", help="https only, unless the configuration allows more.")],
    event: Events = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Receive the events of this user only.")
    ] = None,
    json: Json = False,
) -> None:
    """Create an endpoint and print its secret, which is shown only once."""
    body = {"url": receiver, "events": event or None, "user_id": user}
    created = gateway().post(f"{BASE}/endpoints", {name: value for name, value in body.items() if value is not None})
    _show_secret(created, created["id"], json)


@webhooks.command()
@client_command
def rotate(endpoint: EndpointId, json: Json = False) -> None:
    """Give an endpoint a new secret; the former one signs too for a day."""
    _show_secret(gateway().post(f"{_path(endpoint)}/rotate"), endpoint, json)


@webhooks.command()
@client_command
def secret(
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Default: the user of the key.")] = None,
    json: Json = False,
) -> None:
    """Make a new secret for the webhook URLs of a user's jobs; the former one signs too for a day."""
    made = gateway().post(f"{BASE}/secret", {} if user is None else {"user_id": user})
    _show_secret(made, made["user_id"], json)


@webhooks.command()
@client_command
def enable(endpoint: EndpointId, json: Json = False) -> None:
    """Enable an endpoint that was disabled."""
    _show(gateway().put(_path(endpoint), {"enabled": True}), json)
    if not json:
        hint(f"send what failed meanwhile with: fairlead webhooks replay --endpoint {endpoint} --state failed")


@webhooks.command()
@client_command
def disable(endpoint: EndpointId, json: Json = False) -> None:
    """Disable an endpoint: it receives nothing until it is enabled."""
    _show(gateway().put(_path(endpoint), {"enabled": False}), json)


@webhooks.command()
@client_command
def delete(endpoint: EndpointId, json: Json = False) -> None:
    """Delete an endpoint; its waiting deliveries fail."""
    gateway().delete(_path(endpoint))
    if json:
        print_json({"deleted": endpoint})
    else:
        say(f"{endpoint}  deleted")


Job = Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only of this job.")]
Endpoint = Annotated[str | None, typer.Option("--endpoint", metavar="ENDPOINT", help="Only to this endpoint.")]
State = Annotated[str | None, typer.Option("--state", metavar="STATE", help="pending, delivered or failed.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="ISO 8601, inclusive.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="ISO 8601, exclusive.")]


@webhooks.command()
@client_command
def deliveries(
    job: Job = None,
    endpoint: Endpoint = None,
    state: State = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    everything: All = False,
    json: Json = False,
) -> None:
    """Show the log of deliveries, newest first."""
    filters = {"job_id": job, "endpoint_id": endpoint, "state": state, "since": since, "until": until}
    rows = list(gateway().pages(f"{BASE}/deliveries", limit=None if everything else limit, **filters))
    if json:
        print_json(rows)
    elif rows:
        print_table(("AT", "ID", "EVENT", "TO", "STATE", "TRIES", "LAST"), map(_delivery_row, rows))
    else:
        note("no deliveries")


@webhooks.command()
@client_command
def replay(
    delivery: Annotated[list[str] | None, typer.Argument(metavar="[DELIVERY]...", help="Ids of deliveries.")] = None,
    job: Job = None,
    endpoint: Endpoint = None,
    state: State = None,
    since: Since = None,
    until: Until = None,
    json: Json = False,
) -> None:
    """Send deliveries again, one or a range, under their ids."""
    body: dict[str, Any] = {
        "ids": delivery or None,
        "job_id": job,
        "endpoint_id": endpoint,
        "state": state,
        "since": since,
        "until": until,
    }
    body = {name: value for name, value in body.items() if value is not None}
    if not body:
        raise Failure("name deliveries, or select them with --job, --endpoint, --state, --since, --until", Exit.USAGE)
    answer = gateway().post(f"{BASE}/deliveries/replay", body)
    if json:
        print_json(answer)
    else:
        say(f"{answer['replayed']} deliveries are sent again")


def _path(endpoint: str) -> str:
    return f"{BASE}/endpoints/{quote(endpoint, safe='')}"


def _state(endpoint: dict[str, Any]) -> str:
    if endpoint["disabled_at"] is not None:
        return f"disabled: {endpoint['disabled_reason']}"
    return f"failing since {local_time(endpoint['failing_since'])}" if endpoint["failing_since"] else "enabled"


def _endpoint_row(each: dict[str, Any]) -> tuple[str, ...]:
    return each["id"], each["user_id"] or "(all)", each["url"], ", ".join(each["events"]), _state(each)


def _delivery_row(each: dict[str, Any]) -> tuple[str, ...]:
    attempts = each["attempts"]
    last = "" if not attempts else str(attempts[-1]["status"] or attempts[-1]["response"])
    to = each["endpoint_id"] or each["url"] or ""
    return local_time(each["created_at"]), each["id"], each["event"], to, each["state"], str(len(attempts)), last


def _show(endpoint: dict[str, Any], json: bool) -> None:
    if json:
        print_json(endpoint)
    else:
        say(f"{endpoint['id']}  {endpoint['url']}  {_state(endpoint)}")


def _show_secret(answer: dict[str, Any], name: str, json: bool) -> None:
    if json:
        print_json(answer)
    else:
        say(answer["secret"])
        hint(f"the secret of {name}; it is not shown again")
