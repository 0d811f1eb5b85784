"""Groups of users: the config, and the answers of the hook and the priority service."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Config, Fairlead
from fairlead.app.priority.resolver import PriorityResolver
from fairlead.config import load, problems_of
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.groups import GroupAhead, GroupRules, fair_shares, path_of
from fairlead.domain.job import Job
from fairlead.domain.rules import MAIN_SHARD, Rules, ServiceRules
from fairlead.domain.submission import Submission, check
from fairlead.engine.clock import SystemClock
from fairlead.errors import ConfigError
from fairlead.observe.wait_reasons import groups_full, queued

GROUPS = {"acme": {"weight": 2, "limit": 20}, "red": {"parent": "acme", "weight": 0.5}, "solo": {}}
PATHS = {"acme": "acme", "red": "acme/red", "solo": "solo"}


def problems(groups: dict[str, Any], **users: Any) -> list[str]:
    config = Config.model_validate({"groups": groups, "users": users})
    return [problem.removeprefix("f: ") for problem in problems_of(config, "f")]


def test_groups_are_named_by_their_paths() -> None:
    config = Config.model_validate({"groups": GROUPS, "users": {"ada": {"group": "red"}}})
    assert problems(GROUPS, ada={"group": "red"}) == []
    assert config.group_rules == {
        "acme": GroupRules(2.0, 20),
        "acme/red": GroupRules(0.5, None),
        "solo": GroupRules(1.0, None),
    }
    assert config.user_standings["ada"].group == "acme/red"
    rules = Rules({}, groups=config.group_rules)
    assert rules.on(MAIN_SHARD).groups == rules.on("elsewhere").groups == config.group_rules


def test_a_parent_or_group_that_does_not_exist_is_reported_with_the_known_ones() -> None:
    assert problems({"red": {"parent": "acmee"}, "acme": {}}, ada={"group": "rde"}) == [
        "groups.red.parent: no group is called 'acmee'; known are: acme, red",
        "users.ada.group: no group is called 'rde'; known are: acme, red",
    ]
    assert problems({}, ada={"group": "red"}) == ["users.ada.group: no group is called 'red'; there is no [groups]"]


def test_groups_in_a_circle_or_too_deep_are_reported() -> None:
    assert problems({"a": {"parent": "b"}, "b": {"parent": "a"}}) == [
        "groups.a.parent: the groups contain each other: a in b in a",
        "groups.b.parent: the groups contain each other: b in a in b",
    ]
    assert problems({"a": {"parent": "a"}}) == ["groups.a.parent: the groups contain each other: a in a"]
    (deep,) = problems({"org": {}, "team": {"parent": "org"}, "squad": {"parent": "team"}})
    expected = "groups have at most 2 levels, organisation and team, not squad in team in org"
    assert deep == f"groups.squad.parent: {expected}"


@pytest.mark.parametrize(
    ("key", "value"),
    [("LIMIT", "0"), ("LIMIT", "-1"), ("LIMIT", "1.5"), ("LIMIT", "1000001"), ("WEIGHT", "0"), ("WEIGHT", "-2"),
     ("WEIGHT", "1001"), ("WEIGHT", "nan"), ("PARENT", "a/b"), ("RATE", "1")],
)  # fmt: skip
def test_a_value_out_of_range_is_reported_with_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"groups\.red\.{key.lower()}"):
        load(None, {f"FAIRLEAD_GROUPS__RED__{key}": value})


@pytest.mark.parametrize("name", ["a/b", "", " red", "re\nd", "-red", "r" * 101])
def test_a_name_that_cannot_be_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Config.model_validate({"groups": {name: {}}})


@pytest.mark.parametrize(
    ("answer", "path"),
    [("red", "acme/red"), ("acme/red", "acme/red"), ("acme", "acme"), ("acme/new", "acme/new"), ("new", "new"),
     ("a@b.example/x:y-1", "a@b.example/x:y-1")],
)  # fmt: skip
def test_an_answer_names_a_declared_group_or_another_one_by_its_path(answer: str, path: str) -> None:
    assert path_of(answer, PATHS) == path


@pytest.mark.parametrize(
    "answer", ["", "/", "a/", "/b", "a/b/c", "a b", "a\0b", "\1a", "globex/red", "red/squad", "x" * 101, 7, True, ["a"]]
)
def test_an_answer_that_is_no_group_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"group|team"):
        path_of(answer, PATHS)


async def resolved(hook: Any, user_id: str, priority: str | None = None, times: int = 1) -> tuple[Any, ...]:
    services = {"echo": {"limit": 1, "function": "echo:echo"}}
    config = Config.model_validate({"services": services, "groups": GROUPS, "users": {"ada": {"group": "red"}}})
    resolver = PriorityResolver(config, hook, SystemClock())
    for _ in range(times):
        submits = await resolver.settle([check(Submission("echo", user_id=user_id), config, now=1.0)])
    if priority is not None:
        given = check(Submission("echo", user_id=user_id, priority=priority), config, now=1.0)
        submits = await resolver.settle([given])
    await resolver.close()
    job = submits[0].job
    return job.priority.value, job.priority_source, job.group


async def test_the_group_comes_from_the_first_source_that_knows_it() -> None:
    assert await resolved(None, "ada") == ("medium", "default", "acme/red")
    assert await resolved(None, "bob") == ("medium", "default", None)
    assert await resolved(lambda user: {"group": "solo"}, "ada") == ("medium", "default", "solo")
    assert await resolved(lambda user: {"priority": "high"}, "ada") == ("high", "hook", "acme/red")
    assert await resolved(lambda user: {"group": "acme/new", "priority": "low"}, "bob") == ("low", "hook", "acme/new")


async def test_an_invalid_group_is_a_fallback_with_the_group_of_the_table() -> None:
    assert await resolved(lambda user: {"group": "a/b/c", "priority": "high"}, "ada") == (
        "medium",
        "fallback",
        "acme/red",
    )


async def test_a_given_priority_keeps_the_group_of_the_last_answer() -> None:
    assert await resolved(None, "ada", "high") == ("high", "given", "acme/red")
    assert await resolved(lambda user: {"group": "solo"}, "bob", "high") == ("high", "given", "solo")
    assert await resolved(lambda user: {"group": "solo"}, "bob", "high", times=0) == ("high", "given", None)


def test_fair_shares_divide_all_slot_time_at_every_level() -> None:
    weights = {"r1": 1.0, "r2": 1.0, "b1": 1.0, "free": 1.0}
    group_of = {"r1": "acme/red", "r2": "acme/red", "b1": "acme/blue", "free": None}
    shares = fair_shares(weights, group_of, {"acme": GroupRules(3.0)})
    assert shares == {"r1": 3 / 16, "r2": 3 / 16, "b1": 3 / 8, "free": 1 / 4}
    assert fair_shares({"a": 1.0, "b": 3.0}, {"a": None, "b": None}, {}) == {"a": 0.25, "b": 0.75}


def test_the_reasons_of_a_wait_name_the_group() -> None:
    group = GroupAhead("acme", ahead=3, slots=2, free=0, running=4.0, debt=7.5)
    position = QueuePosition(9, 8.0, 1, 1.0, ahead_own=1, groups=(group, GroupAhead("acme/red", 2)))
    reason = queued(Job("job", "s", "ada", ("s",)), position, ServiceRules("s", 1))
    assert reason.details["own_group"] == 2
    assert reason.details["other_groups"] == 5
    assert reason.details["group"] == "acme/red"
    assert "2 of other members of acme, 5 of other groups" in reason.message
    assert "because acme has used 7.5 s more slot time" in reason.message
    (full,) = groups_full(position)
    assert (full.code, full.details["group"], full.details["in_use"]) == ("group_full", "acme", 2)


@pytest.mark.parametrize(
    "sections", [{"plans": {"free": {"rate": {"requests": 1}}}}, {"groups": {"acme": {"rate": {"requests": 1}}}}]
)
def test_a_gateway_without_a_dispatcher_knows_the_configured_rates_of_plans_and_groups(
    sections: dict[str, Any],
) -> None:
    assert Fairlead(Config.model_validate(sections))._runtime._has_member_rates()
    assert not Fairlead(Config())._runtime._has_member_rates()
