"""The client with which commands call a gateway: a `fairlead.Client` that does not retry, and whose errors are
converted to `Failure`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import typer

from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import with_option
from fairlead.client import Client, NoConnection, Unauthorized
from fairlead.client.calls import events_of
from fairlead.client.settings import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from fairlead.client.stream import OutputEvents, Stream
from fairlead.errors import ConfigError, FairleadError

F = TypeVar("F", bound=Callable[..., Any])

PAGE = 100

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help=f"The gateway; by default {URL_VARIABLE}, else {DEFAULT_URL}."),
]
_url: ContextVar[str | None] = ContextVar("url", default=None)


def client_command(function: F) -> F:
    """Decorator that adds the option `--url` to a command that calls a gateway."""
    return with_option(function, "url", Url, choose)


def choose(url: str | None) -> None:
    """Use the gateway at `url` for all calls of this command. None changes nothing: the gateway chosen before, or the
    one that the environment names, stays in use."""
    if url is not None:
        _url.set(url)


class Gateway:
    """A running gateway. The methods send requests and return the JSON of the responses unchanged."""

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        with failures():
            self._client = Client(url, key, patience=0.0)

    @property
    def client(self) -> Client:
        return self._client

    @property
    def shown(self) -> str:
        return self._client.url

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, **params: Any) -> Any:
        params = {name: value for name, value in params.items() if value is not None}
        return self._send("GET", path, params=params, headers=headers)

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Any:
        return self._send("POST", path, json=body, headers=headers)

    def post_lines(self, path: str, body: bytes, *, params: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """Send a POST request whose body is JSON Lines. The lines are sent as they are."""
        headers = {**headers, "Content-Type": "application/x-ndjson"}
        return self._send("POST", path, content=body, params=params, headers=headers)

    def put(self, path: str, body: Any) -> Any:
        return self._send("PUT", path, json=body)

    def delete(self, path: str, **params: Any) -> Any:
        return self._send("DELETE", path, params={name: value for name, value in params.items() if value is not None})

    def stream(self, path: str) -> Iterator[bytes]:
        """Stream the body of a large response. Raises a Failure if the response is interrupted, so an incomplete body
        never looks complete."""
        with failures():
            yield from self._client.download(path)

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.get(job_path(job_id)))

    def pages(self, path: str, *, limit: int | None, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page after page: at most `limit` items, or all items if `limit` is None."""
        cursor, left = None, limit
        while left is None or left > 0:
            page = self.get(path, **filters, cursor=cursor, limit=PAGE if left is None else min(PAGE, left))
            items = page["data"]
            yield from items
            cursor = page.get("next_cursor")
            if not cursor or not items:
                return
            left = None if left is None else left - len(items)

    def events(self, job_id: str, stream: type[Stream], patience: float) -> Iterator[dict[str, Any]]:
        """Yield a snapshot of the job and then its events, reconnecting as needed."""
        job_path(job_id)
        with failures():
            yield from self._client.read_events(stream(events_of(job_id), patience))

    def output(self, job_id: str, patience: float) -> Iterator[dict[str, Any]]:
        """Yield the output of the job, reconnecting as needed."""
        with failures():
            yield from self._client.read_events(OutputEvents(job_path(job_id), None, patience))

    def _send(self, method: str, path: str, **request: Any) -> Any:
        with failures():
            return self._client.request(method, path, **request)


def gateway_url() -> str | None:
    """The URL that was given with `--url`, or None."""
    return _url.get()


def gateway() -> Gateway:
    """Return the client of the gateway that `--url` or the environment names."""
    return Gateway(gateway_url())


def job_path(job_id: str) -> str:
    return f"/api/v1/jobs/{checked_id(job_id, 'job', 'fairlead list')}"


def checked_id(text: str, what: str, listing: str) -> str:
    """Return an id quoted for use in a URL path. Raises a Failure if it is not a complete UUID, so that a name or a
    part of an id is refused before the gateway is called."""
    try:
        UUID(text)
    except ValueError:
        raise Failure(f"{text!r} is not the id of a {what}; `{listing}` shows ids", Exit.USAGE) from None
    return quote(text, safe="")


@contextmanager
def failures() -> Iterator[None]:
    """Context manager that converts errors of the client to a `Failure` with a message and an exit code."""
    try:
        yield
    except ConfigError as error:
        raise Failure(str(error), Exit.USAGE, problem={"code": error.code, "problems": error.problems}) from None
    except NoConnection as error:
        raise Failure(f"{error}; {_about_the_connection(str(error))}", Exit.NO_CONNECTION) from None
    except FairleadError as error:
        message = _about_the_key() if isinstance(error, Unauthorized) else str(error)
        raise Failure(f"{message} ({error.code})", problem=error.problem) from None


def _about_the_connection(error: str) -> str:
    """Return what to do about a gateway that cannot be reached. OpenSSL's messages have no codes of their own in the
    error of the client."""
    if "Hostname mismatch" in error or "IP address mismatch" in error:
        return f"its certificate is for other names: use one of them in --url or {URL_VARIABLE}"
    if "CERTIFICATE_VERIFY_FAILED" in error:
        return (
            "its certificate is not signed by an authority that this machine trusts: set SSL_CERT_FILE to the "
            "certificate of its authority, such as certs/ca.pem of `fairlead certs dev`"
        )
    if "WRONG_VERSION_NUMBER" in error or "RECORD_LAYER_FAILURE" in error:
        return "it seems to serve plain HTTP: use http:// instead of https://"
    return f"start it with `fairlead up`, or choose another with --url or {URL_VARIABLE}"


def _about_the_key() -> str:
    """Return the message for a 401. The gateway's own message is about HTTP headers, and users of the command line do
    not send headers themselves."""
    if os.environ.get(KEY_VARIABLE):
        return f"the gateway refuses the key in {KEY_VARIABLE}: it is unknown or revoked"
    return f"the gateway needs a key: set {KEY_VARIABLE}"
