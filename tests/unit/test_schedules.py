"""When schedules are due."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from fairlead import Call, Fairlead
from fairlead.domain.config import Config
from fairlead.domain.schedules import MOST_COUNTED, Timing
from fairlead.errors import ConfigError, InvalidInput

BERLIN = "Europe/Berlin"


def local(*moments: float) -> list[str]:
    return [datetime.fromtimestamp(each, ZoneInfo(BERLIN)).strftime("%m-%d %H:%M:%S%z") for each in moments]


def following(cron: str, start: str, count: int) -> list[str]:
    timing = Timing(cron, timezone=BERLIN)
    timing.check()
    moment = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(BERLIN)).timestamp()
    return local(*timing.next_times(timing.after(moment), count))


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_that_a_night_lacks_runs_at_its_end_and_one_that_it_has_twice_runs_once(cron: str) -> None:
    assert following(cron, "2026-03-29T00:00", 2) == ["03-29 03:00:00+0200", "03-30 02:30:00+0200"]
    assert following(cron, "2026-10-25T00:00", 2) == ["10-25 02:30:00+0200", "10-26 02:30:00+0100"]


def test_intervals_of_minutes_follow_the_elapsed_time() -> None:
    assert following("*/30 * * * *", "2026-03-29T01:15", 2) == ["03-29 01:30:00+0100", "03-29 03:00:00+0200"]
    autumn = following("*/30 * * * *", "2026-10-25T02:15", 3)
    assert autumn == ["10-25 02:30:00+0200", "10-25 02:00:00+0100", "10-25 02:30:00+0100"]


def test_a_sixth_field_has_the_seconds() -> None:
    assert following("*/20 * * * * *", "2026-05-01T00:00", 3) == [
        f"05-01 00:{each}+0200" for each in ("00:20", "00:40", "01:00")
    ]


@pytest.mark.parametrize("cron", ["*/7 * * * *", "15,45 */13 3 * * *", "0 0 1 * *", "*/10 * * * * *"])
def test_the_due_occurrences_are_those_that_follow_each_other(cron: str) -> None:
    timing, chance = Timing(cron, timezone=BERLIN), random.Random(cron)
    moment = datetime(2026, 1, 1, tzinfo=UTC).timestamp() + chance.randrange(300 * 86400)
    first = timing.after(moment)
    assert first is not None
    times = timing.next_times(first, 50)
    for n in (1, 2, 49):
        assert timing.due(first, times[n]) == times[: n + 1]
        assert timing.due(first, times[n] - 0.5) == times[:n]


@pytest.mark.parametrize("timing", [Timing("* * * * *"), Timing("* * * * * *"), Timing(every=1.0)])
def test_after_a_long_time_only_the_newest_occurrences_are_computed(timing: Timing) -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    due = timing.due(first, first + timedelta(days=400).total_seconds() + 0.5)
    assert 50 < len(due) <= MOST_COUNTED
    assert due[-1] == first + timedelta(days=400).total_seconds()


@pytest.mark.parametrize(
    ("timing", "pointer"),
    [
        (Timing(), "/cron"),
        (Timing("* * * * *", 5.0), "/cron"),
        (Timing("every day"), "/cron"),
        (Timing("61 * * * *"), "/cron"),
        (Timing("99 * * * * *"), "/cron"),
        (Timing("0 0 31 2 *"), "/cron"),
        (Timing("* * * * *", timezone="Mars/Olympus"), "/timezone"),
        (Timing("* * * * *", timezone="../../etc/passwd"), "/timezone"),
        (Timing(every=0.5), "/every"),
        (Timing(every=float("nan")), "/every"),
    ],
)
def test_invalid_timings_name_their_field(timing: Timing, pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        timing.check()
    assert caught.value.pointer == pointer


def test_a_decorated_function_is_a_service_with_a_schedule_and_the_file_wins() -> None:
    in_file = {"report": {"cron": "0 7 * * *", "missed": "skip"}}
    app = Fairlead(Config.model_validate({"services": {"report": {"limit": 3}}, "schedules": in_file}))

    @app.cron("*/5 * * * *", overlap="skip")
    async def report(call: Call) -> None: ...

    @app.cron("0 6 * * *", "mornings", timezone=BERLIN, input_data={"n": 1})
    @app.service("news", limit=2)
    async def read_news(call: Call) -> None: ...

    app.schedule("hourly", "news", every=3600)
    schedules = app.config.schedules
    assert (schedules["report"].cron, schedules["report"].missed, schedules["report"].overlap) == (
        "0 7 * * *",
        "skip",
        "skip",
    )
    assert app.config.services["report"].limit == 3
    assert schedules["mornings"].job("mornings") == {"feature_name": "news", "input_data": {"n": 1}}
    assert schedules["hourly"].every == 3600
    assert app.check() == []


def test_a_schedule_of_an_unknown_feature_is_an_error_of_the_configuration() -> None:
    app = Fairlead(Config())
    app.schedule("nightly", "report", cron="0 0 * * *")
    assert any("schedules.nightly" in problem and "'report'" in problem for problem in app.check())
    with pytest.raises(ConfigError, match="cron"):
        app.schedule("broken", "report", cron="0 0 * *")
