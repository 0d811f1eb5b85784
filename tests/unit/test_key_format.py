from __future__ import annotations

import logging

import pytest

from fairlead.cli.logs import OneLine, log_to_stderr
from fairlead.cli.redact import without_keys
from fairlead.domain.access import is_ticket, key_id_of, key_text, ticket_text

KEY = key_text("3f9c0a1b2c3d", bytes(range(32)))
TICKET = ticket_text(bytes(range(32)))


def test_a_key_names_its_id_and_hides_256_bits() -> None:
    assert key_id_of(KEY) == "3f9c0a1b2c3d"
    assert KEY.startswith("fl_3f9c0a1b2c3d_")
    assert bytes(range(32)).hex() in KEY


@pytest.mark.parametrize("place", range(0, len(KEY), 7))
def test_a_mistyped_key_is_refused(place: int) -> None:
    wrong = "0" if KEY[place] != "0" else "1"
    assert key_id_of(KEY[:place] + wrong + KEY[place + 1 :]) is None


@pytest.mark.parametrize("text", ["", "secret", KEY[:-1], KEY + "0", f" {KEY}", f"{KEY}\n", KEY.upper(), TICKET])
def test_a_malformed_key_is_parsed_as_none(text: str) -> None:
    assert key_id_of(text) is None


@pytest.mark.parametrize("text", ["", "flt_", TICKET[:-1], f"{TICKET}\n", TICKET.replace("00", "01", 1), KEY])
def test_a_malformed_ticket_is_parsed_as_none(text: str) -> None:
    assert is_ticket(TICKET)
    assert not is_ticket(text)


@pytest.mark.parametrize("text", [KEY, f"Bearer {KEY}", f"/ws?ticket={TICKET}&x=1", f"({KEY},{TICKET})", KEY[:50]])
def test_no_part_of_a_secret_is_shown(text: str) -> None:
    shown = without_keys(text)
    assert "***" in shown
    assert "000102" not in shown
    assert KEY[-8:] not in shown


def test_the_log_shows_no_key_not_even_in_a_traceback() -> None:
    try:
        raise ValueError(f"what is {KEY}?")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, __file__, 1, "asked with %s", (TICKET,), (ValueError, error, error.__traceback__)
        )
    line = OneLine("%(message)s").format(record)
    assert "fl_3f9c0a1b2c3d_***" in line
    assert "flt_***" in line
    assert "000102" not in line


def test_a_refused_websocket_is_not_a_server_error(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("uvicorn.error")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    log_to_stderr("info")
    results = [
        bool(logger.filter(logging.LogRecord("uvicorn.error", logging.ERROR, "", 1, text, (), None)))
        for text in ("ASGI callable returned without completing handshake.", "Exception in ASGI application\n")
    ]
    assert results == [False, True]
