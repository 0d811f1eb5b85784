"""Our protocol classes are checked at startup; an unsupported uvicorn or websockets runs without them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from websockets.server import ServerProtocol

from fairlead.domain.config import ServerConfig
from fairlead.gateway import serving
from fairlead.gateway.http_protocol import BoundedHTTP
from fairlead.gateway.serving import http_problem, uvicorn_options, websocket_problem
from fairlead.gateway.websocket_protocol import websocket_protocol


def unsupported(*args: Any, **options: Any) -> None:
    raise AttributeError("no such name in this release")


def ignore(*args: Any, **options: Any) -> None: ...


def test_the_installed_versions_are_supported(caplog: pytest.LogCaptureFixture) -> None:
    options = uvicorn_options(ServerConfig())
    assert issubclass(options["http"], BoundedHTTP)
    assert options["ws"].__name__ == "BoundedWebSocket"
    assert caplog.records == []


@pytest.mark.parametrize(
    ("method", "replacement", "problem"),
    [
        ("on_headers_complete", unsupported, "it did not start a request"),
        ("on_headers_complete", ignore, "it did not start a request"),
        ("take_body", ignore, "it did not pass on a whole body"),
        ("send_whole", ignore, "it did not send a whole response"),
        ("_await_head", ignore, "it did not refuse a head that is too large"),
        ("connection_made", unsupported, "AttributeError: no such name in this release"),
    ],
)
def test_an_unsupported_http_protocol_is_replaced_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, replacement: Any, problem: str
) -> None:
    monkeypatch.setattr(BoundedHTTP, method, replacement)
    assert problem in str(http_problem(BoundedHTTP))
    with caplog.at_level(logging.WARNING, "fairlead.gateway"):
        options = uvicorn_options(ServerConfig())
    assert (options["http"], options["h11_max_incomplete_event_size"]) == ("auto", 65536)
    assert "the limits on request heads" in caplog.text


@pytest.mark.parametrize(
    ("method", "replacement", "problem"),
    [
        ("handle_events", unsupported, "AttributeError: no such name in this release"),
        ("handle_events", ignore, "has no attribute"),
        ("_over_rate", lambda self, frames: False, "it did not limit the number of frames"),
        ("connection_made", unsupported, "AttributeError: no such name in this release"),
    ],
)
def test_an_unsupported_websocket_protocol_is_replaced_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, replacement: Any, problem: str
) -> None:
    protocol: Any = websocket_protocol()
    monkeypatch.setattr(protocol, method, replacement)
    monkeypatch.setattr(serving, "websocket_protocol", lambda: protocol)
    assert problem in str(websocket_problem(protocol))
    with caplog.at_level(logging.WARNING, "fairlead.gateway"):
        assert uvicorn_options(ServerConfig())["ws"] == "auto"
    assert "the limits on WebSocket frames" in caplog.text


def test_a_websockets_without_the_list_of_events_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_events(self: ServerProtocol, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        del self.events

    original = ServerProtocol.__init__
    monkeypatch.setattr(ServerProtocol, "__init__", without_events)
    assert "events" in str(websocket_problem(websocket_protocol()))


def test_a_uvicorn_without_the_class_is_unsupported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fairlead.gateway.websocket_protocol._UvicornWebSocket", None)
    with caplog.at_level(logging.WARNING, "fairlead.gateway"):
        assert uvicorn_options(ServerConfig())["ws"] == "auto"
    assert "it has no WebSocketsSansIOProtocol" in caplog.text
