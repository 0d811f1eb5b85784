"""Budgets: windows of the calendar, whose calls they concern, and what a configuration may say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from fairlead.config import load
from fairlead.domain.budgets import DAY, HOUR, MONTH, Budget, Budgets, Counter, window_of
from fairlead.domain.calls import CallEnd
from fairlead.domain.config_budgets import budgets_of
from fairlead.domain.job import Job
from fairlead.domain.usage import Usage
from fairlead.errors import ConfigError

BERLIN, LORD_HOWE = "Europe/Berlin", "Australia/Lord_Howe"


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("now", "per", "zone", "start", "hours"),
    [
        ("2026-03-29T12:00", DAY, BERLIN, "2026-03-28T23:00", 23),  # clocks go forward
        ("2026-10-25T12:00", DAY, BERLIN, "2026-10-24T22:00", 25),  # and back
        ("2026-10-25T00:30", HOUR, BERLIN, "2026-10-25T00:00", 1),  # 02:30 for the first time
        ("2026-10-25T01:30", HOUR, BERLIN, "2026-10-25T01:00", 1),  # and again
        ("2026-03-31T21:59", MONTH, BERLIN, "2026-02-28T23:00", 31 * 24 - 1),
        ("2026-03-31T22:00", MONTH, BERLIN, "2026-03-31T22:00", 30 * 24),
        ("2026-10-31T22:59", MONTH, BERLIN, "2026-09-30T22:00", 31 * 24 + 1),
        ("2026-12-31T23:59", MONTH, "UTC", "2026-12-01T00:00", 31 * 24),
        ("2028-02-10T00:00", MONTH, "UTC", "2028-02-01T00:00", 29 * 24),
        ("2026-06-01T12:10", HOUR, "Asia/Kolkata", "2026-06-01T11:30", 1),
        ("2026-04-04T14:40", HOUR, LORD_HOWE, "2026-04-04T14:00", 1),  # clocks go back by half an hour, from 02:00
        ("2026-04-04T15:10", HOUR, LORD_HOWE, "2026-04-04T15:00", 0.5),
        ("2026-04-04T15:30", HOUR, LORD_HOWE, "2026-04-04T15:30", 1),
        ("2026-10-03T15:29", HOUR, LORD_HOWE, "2026-10-03T14:30", 1),  # and forward, from 02:00 to 02:30
        ("2026-10-03T15:45", HOUR, LORD_HOWE, "2026-10-03T15:30", 0.5),
        ("2026-04-24T12:00", DAY, "Africa/Cairo", "2026-04-23T22:00", 23),  # the day begins at 01:00
    ],
)
def test_windows_follow_the_calendar_of_their_zone(now: str, per: str, zone: str, start: str, hours: float) -> None:
    window = window_of(at(now), per, ZoneInfo(zone))
    assert (window.start, (window.end - window.start) / 3600) == (at(start), hours)
    assert window_of(window.start, per, ZoneInfo(zone)) == window
    assert window_of(window.end - 1, per, ZoneInfo(zone)) == window
    assert window_of(window.end, per, ZoneInfo(zone)).start == window.end


def test_a_counter_starts_again_in_a_new_window_and_never_goes_back() -> None:
    counter = Counter(100.0, used=30, reserved=4, calls=3, warned=2, override=9)
    later = counter.rolled(200.0)
    assert (later.used, later.reserved, later.calls, later.mean, later.warned) == (0, 4, 0, 10, 0)
    assert (later.override, later.estimate) == (9, 10)
    assert counter.rolled(50.0) is counter


def test_a_budget_concerns_its_user_plan_group_and_services() -> None:
    def names(user_id: str, *steps: str, **fields: Any) -> set[str]:
        return {budget.name for budget in budgets.of(Job("1", "f", user_id, steps, **fields))}

    known = {"ada": "free"}
    table = (
        Budget("all", "tokens", 1),
        Budget("draws", "tokens", 1, services=frozenset({"draw"})),
        Budget("adas", "tokens", 1, user="ada"),
        Budget("free", "tokens", 1, plan="free", each_user=True),
        Budget("acme", "tokens", 1, group="acme"),
    )
    budgets = Budgets({budget.name: budget for budget in table}, known)
    assert names("ada", "draw") == {"all", "draws", "adas", "free"}
    assert names("ada", "chat", plan="paid") == {"all", "adas"}
    assert names("bob", "chat", plan="free", group="acme/red") == {"all", "free", "acme"}
    assert names("bob", "chat", group="acmee") == {"all"}
    assert table[3].key_of("bob") == ("free", "bob")
    only = Budgets({"adas": table[2]})
    assert (only.may_concern("ada", None), only.may_concern("bob", "draw")) == (True, False)


def test_what_a_call_used_is_counted_in_the_measure_of_the_budget() -> None:
    job = Job("1", "f", "ada", ("chat",), cost=12.5, call_started_at=100.0)
    call = CallEnd(job, "success", 101.5, Usage(10, 20, 5, 2.25))
    used = {measure: Budget("b", measure, 1).used_by(call, 7) for measure in ("seconds", "units", "tokens", "money")}
    assert used == {"seconds": 1_500_000, "units": 2_250_000, "tokens": 30, "money": 7}
    assert Budget("b", "tokens", 1).used_by(CallEnd(job, "lost", 101.5), None) == 0
    absurd = Budget("b", "units", 1).used_by(CallEnd(job, "success", 101.5, Usage(units=1e12)), None)
    assert absurd == 10**15  # a counter of 64 bits holds thousands of them
    stated = {unit: Budget("b", unit, 1).stated_by(job, unit) for unit in ("seconds", "tokens")}
    assert stated == {"seconds": 12_500_000, "tokens": 12}
    assert Budget("b", "units", 1).stated_by(job, "images") == 12_500_000
    assert Budget("b", "money", 1).stated_by(job, "images") is None


@pytest.mark.parametrize("group", ["red", "acme/red"])
def test_budgets_are_read_from_the_file(tmp_path: Path, group: str) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text(
        '[services.chat]\nlimit = 1\nopenai = "http://host/v1"\n[plans.free]\n[prices.chat]\nper_call = 1\n'
        '[groups.acme]\n[groups.red]\nparent = "acme"\n'
        '[budgets.a]\nplan = "free"\neach_user = true\ntokens = 5\nper = "day"\ntimezone = "Europe/Berlin"\n'
        f'[budgets.b]\ngroup = "{group}"\nmoney = 0.5\nper = "month"\nat_end = "refuse"\nservice = "chat"\n',
        encoding="utf-8",
    )
    config = load(file, {}).config
    assert list(config.contradictions()) == []
    budgets = budgets_of(config)
    zone = ZoneInfo(BERLIN)
    assert budgets.budgets == {
        "a": Budget("a", "tokens", 5, DAY, zone, plan="free", each_user=True, warn_at=(0.8, 1.0)),
        "b": Budget(
            *("b", "money", 500_000_000, MONTH, UTC, "refuse"),
            group="acme/red",
            services=frozenset({"chat"}),
            warn_at=(0.8, 1.0),
        ),
    }
    assert budgets.units == {"chat": "tokens"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('tokens = 0\nper = "day"', "budgets.x.tokens: should be greater than or equal to 1"),
        ('seconds = -1\nper = "day"', "budgets.x.seconds: should be greater than 0"),
        ('money = 1e10\nper = "day"', "budgets.x.money: should be less than or equal to 1000000000"),
        ('per = "day"', "needs one amount: seconds, units, tokens or money; it has none of them"),
        ('tokens = 1\nseconds = 1\nper = "day"', "it has seconds and tokens"),
        ("tokens = 1", "budgets.x.per"),
        ('tokens = 1\nper = "week"', "budgets.x.per"),
        ('megapixels = 1\nper = "day"', "budgets.x.megapixels"),
        ('tokens = 1\nper = "day"\ntimezone = "Berlin/Europe"', "'Berlin/Europe' is not a known time zone"),
        ('tokens = 1\nper = "day"\ntimezone = "../../etc/passwd"', "is not a known time zone"),
        ('tokens = 1\nper = "day"\nuser = "a"\nplan = "b"', "user and plan: set one of them"),
        ('tokens = 1\nper = "day"\nuser = "a"\neach_user = true', "each_user"),
        ('units = 1\nper = "day"', "units: needs a service"),
        ('tokens = 1\nper = "day"\nservice = []', "names no service"),
        ('tokens = 1\nper = "day"\nservice = "none"', "budgets.x.service: no service is called 'none'"),
        ('tokens = 1\nper = "day"\nplan = "none"', "budgets.x.plan: no plan is called 'none'"),
        ('money = 1\nper = "day"', "budgets.x.money: no service has a price"),
        (
            'money = 1\nper = "day"\nservice = "chat"\n[services.t]\nlimit = 1\n[prices.t]\nper_call = 1',
            "budgets.x.money: chat has no price",
        ),
        ('tokens = 1\nper = "day"\ngroup = "a/b/c"', "budgets.x.group: a group has at most 2 levels"),
        ('tokens = 1\nper = "day"\nuser = ""', "budgets.x.user: should have at least 1 character, not ''"),
        ('tokens = 1\nper = "day"\ngroup = "a b"', "budgets.x.group: 'a b' is not the name of a group"),
        (
            'tokens = 1\nper = "day"\ngroup = "acme/red"\n[groups.red]',
            "budgets.x.group: the group red is declared as red",
        ),
        ('tokens = 1\nper = "day"\nwarn_at = [1.5]', "budgets.x.warn_at"),
        ('tokens = 1\nper = "day"\nat_end = "stop"', "budgets.x.at_end"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused_with_its_key(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text(f"[services.chat]\nlimit = 1\n[budgets.x]\n{text}\n", encoding="utf-8")
    try:
        problems = [f"{key}: {text}" for key, text in load(file, {}).config.contradictions()]
    except ConfigError as error:
        problems = list(error.problems)
    assert len(problems) == 1, problems
    assert problem in problems[0]
