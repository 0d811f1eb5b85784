"""The typed options of `@app.service` are the keys of `[services.NAME]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Unpack, get_args, get_origin, get_type_hints

import pytest

import fairlead
from fairlead import Config, ConfigError, Fairlead, ServiceOptions
from fairlead.domain.config import ServiceConfig
from fairlead.engine.roles import Roles
from fairlead.executors.function import imported


def words(annotation: Any) -> Iterator[str]:
    """The words that an annotation allows, wherever its `Literal`s are."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) is Annotated:
        yield from words(get_args(annotation)[0])
    else:
        for each in get_args(annotation):
            yield from words(each)


def test_the_options_are_the_fields_of_a_service() -> None:
    assert set(get_type_hints(ServiceOptions)) == set(ServiceConfig.model_fields)


def test_a_type_checker_sees_the_options() -> None:
    assert get_type_hints(Fairlead.service)["options"] == Unpack[ServiceOptions]


def test_the_options_allow_the_same_words_as_the_file() -> None:
    in_file = get_type_hints(ServiceConfig, include_extras=True)
    for name, annotation in get_type_hints(ServiceOptions).items():
        if name not in ("regions", "shards", "body"):  # tables of any keys, which only the configuration checks
            assert set(words(annotation)) == set(words(in_file[name])), name


def test_an_unknown_option_is_named() -> None:
    app = Fairlead(Config())
    with pytest.raises(ConfigError, match=r"on paint: paint.limits: unknown key; did you mean 'limit'\? see docs/"):

        @app.service(limit=1, limits=2)  # type: ignore[call-arg]
        async def paint(call: fairlead.Call) -> None: ...

    with pytest.raises(ConfigError, match=r"schedules.nightly.crons: unknown key; did you mean 'cron'\? see docs/"):
        app.schedule("nightly", "paint", crons="0 6 * * *")  # type: ignore[call-arg]


def test_a_decorator_without_parentheses_is_refused() -> None:
    async def paint(call: fairlead.Call) -> None: ...

    with pytest.raises(ConfigError, match=r"@app.service on paint: the parentheses are missing; write @app.service\("):
        Fairlead(Config()).service(paint)  # type: ignore[arg-type]


def test_a_function_that_cannot_be_called_with_the_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Fairlead(Config())

    def paint() -> None: ...

    def draw(call: fairlead.Call, size: int) -> None: ...

    def talk() -> str:
        return ""

    for declare, decorator in ((app.service(limit=1), "@app.service"), (app.cron("* * * * *"), "@app.cron")):
        for handler in (paint, draw):
            with pytest.raises(ConfigError, match=f"{decorator} on {handler.__name__}: the function cannot be called"):
                declare(handler)
    with pytest.raises(ConfigError, match=r"@app.model on talk: the function cannot be called with the messages"):
        app.model("talk", limit=1)(talk)
    assert not app.config.services
    for accepted in (lambda call: None, lambda *given: None, lambda call, size=1: None, print):
        app.service(f"s{id(accepted)}", limit=1)(accepted)
    monkeypatch.setattr(fairlead, "paint", paint, raising=False)
    with pytest.raises(ConfigError, match="'fairlead:paint' cannot be called with one argument"):
        imported("fairlead:paint")


def test_roles_can_be_imported_from_the_package() -> None:
    assert fairlead.Roles is Roles
