"""Every URL that is shown or stored is free of credentials and query, whatever its source."""

from __future__ import annotations

import logging

import pytest

from fairlead.cli.logs import OneLine
from fairlead.config import load, sqlite_options
from fairlead.domain.redaction import likeness, redacted, redacted_error, without
from fairlead.domain.retry import Failure
from fairlead.errors import ConfigError, FairleadError
from fairlead.observe.doctor.finding import Kind, Severity
from fairlead.store.postgres.connect import Server, translated


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no URL at all? a=b@c", "no URL at all? a=b@c"),
        ("see https://gpu.example/v1/run", "see https://gpu.example/v1/run"),
        ("url='https://gpu.example/v1?api_key=s3cret'", "url='https://gpu.example/v1?***'"),
        ("https://ada:s3cret@gpu.example:8443/v1#s3cret", "https://***@gpu.example:8443/v1#***"),
        ("https://s3cret@gpu.example, and http://h/@ada", "https://***@gpu.example, and http://h/@ada"),
        ("postgresql://ada:s3/cr?et@db,db2/x?sslmode=require", "postgresql://***@db,db2/x?***"),
        ("redis+sentinel://:s3cret@a:1,b:2/m", "redis+sentinel://***@a:1,b:2/m"),
        ("(HTTPS://h?k=s3cret)", "(HTTPS://h?***"),
    ],
)
def test_a_url_in_a_text_keeps_only_its_destination(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_known_secret_is_hidden_everywhere() -> None:
    assert without("GET /v1?k=s3cret-key (s3cret-key)", ["s3cret-key", "k=s3cret-key", "k"]) == "GET /v1?*** (***)"


def test_an_error_that_was_stored_before_is_redacted_when_it_is_shown() -> None:
    stored = {"code": "CONNECTION", "message": "url='https://gpu.example/v1?api_key=s3cret'"}
    assert redacted_error(stored) == {"code": "CONNECTION", "message": "url='https://gpu.example/v1?***'"}
    assert redacted_error({"code": "X", "message": None}) == {"code": "X", "message": None}


def test_errors_error_groups_findings_and_log_lines_contain_no_secret() -> None:
    text = "401 for url 'https://gpu.example/v1?api_key=s3cret'"
    finding = Kind("x", Severity.NOTE, "x").found(text, fix="none", seen=text).as_dict()
    record = logging.LogRecord("x", logging.ERROR, "x", 1, "%s", (text,), None)
    shown = [
        Failure("X", text, retryable=True).as_error(),
        likeness(text),
        finding,
        OneLine("%(message)s").format(record),
    ]
    assert "gpu.example" in str(shown)
    assert "s3cret" not in str(shown)


WRONG_DATABASES = [
    "postgresql://[::1",
    "postgresql://ada:s3/cret@db/x",
    "postgresql://ada:s3#cret@db/x",
    "postgresql://ada:s3?cret@db/x",
    "postgresql://ada:pw@db:s3cret/x",
    "postgresql://ada:pw@db:99999/x",
    "postgresql://db/x?pool_size=s3cret",
    "postgres//ada:s3cret@db/x",
    "ada:s3cret@db",
    "ada:s3cret://db",
    "s3cret",
    "sqlite:///x.db?s3cret=1",
]


def open_database(url: str) -> None:
    if url.startswith("postgresql://"):
        Server.of(url, 4)
    else:
        sqlite_options(url)


@pytest.mark.parametrize("url", WRONG_DATABASES)
def test_a_wrong_database_url_is_a_configuration_error_that_hides_it(url: str) -> None:
    with pytest.raises(ConfigError, match="DATABASE_URL: ") as caught:
        open_database(url)
    assert not any(part in str(caught.value) for part in ("s3", "cret", "99999"))


async def test_an_unknown_driver_option_is_a_configuration_error() -> None:
    server = Server.of("postgresql://ada:s3cret@127.0.0.1:1/x?sslmode=sometimes", 1)
    with pytest.raises(ConfigError, match=r"DATABASE_URL: .*sslmode") as caught, translated(server.shown):
        await server.connection("test")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["redis://:s3/cret@h", "redis://:s3?cret@h", "redis://:s3#cret@h", "redis://[::1", "s3cret@h", "redis://h:s3cret"],
)
def test_a_wrong_redis_url_is_hidden(url: str) -> None:
    settings = load(environ={"DATABASE_URL": "postgresql://db/x", "REDIS_URL": url})
    (problem,) = settings.problems()
    assert problem.startswith("REDIS_URL: ")
    assert not any(part in problem for part in ("s3", "cret@h"))


@pytest.mark.parametrize("variable", ["PRIORITY_API_URL", "FAIRLEAD_SERVICES__GPU__URL"])
@pytest.mark.parametrize(
    "url", ["http://[::1", "http://ada:s3cret@h:port/", "http://h:99999/?k=s3cret", "http://h ?k=s3cret"]
)
def test_a_wrong_service_url_is_a_configuration_error(variable: str, url: str) -> None:
    with pytest.raises(FairleadError) as caught:
        load(environ={variable: url, "FAIRLEAD_SERVICES__GPU__LIMIT": "1"})
    assert variable in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_long_word_beside_a_url_is_searched_in_linear_time() -> None:
    word = "a" * 1_000_000  # in quadratic time: an hour
    assert redacted(f"{word} postgresql://ada:hunter2@db {word}://ada:hunter2@db") == (
        f"{word} postgresql://***@db {word}://***@db"
    )
