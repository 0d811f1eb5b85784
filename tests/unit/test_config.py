"""Reading the configuration: the file, the environment on top, and every mistake told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead import Config, Fairlead
from fairlead.config import DEFAULT_DATABASE_URL, load, problems_of, sqlite_options
from fairlead.errors import ConfigError

NOTHING: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str) -> Path:
    file = Path("fairlead.toml")
    file.write_text(text, encoding="utf-8")
    return file


def problems(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(written(text), environ or NOTHING)
    return list(caught.value.problems)


# ---------------------------------------------------------------- where it comes from


def test_without_a_file_everything_has_its_default() -> None:
    settings = load(None, NOTHING)
    assert settings.source is None
    assert settings.database_url == DEFAULT_DATABASE_URL
    assert settings.admin_key is None
    assert settings.config.services == {}
    assert settings.config.server.host == "127.0.0.1"


def test_the_file_in_the_working_directory_is_found() -> None:
    written("[server]\nport = 8123\n")
    settings = load(None, NOTHING)
    assert settings.source == "fairlead.toml"
    assert settings.config.server.port == 8123


def test_a_file_that_is_named_must_be_there() -> None:
    with pytest.raises(ConfigError, match=r"elsewhere\.toml: there is no such file"):
        load("elsewhere.toml", NOTHING)


def test_a_directory_is_no_file() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(Path(), NOTHING)


def test_what_is_not_toml_is_told_with_file_and_line() -> None:
    (problem,) = problems("[server\nport = 1\n")
    assert problem.startswith("fairlead.toml: this is not TOML:")
    assert "line 1" in problem


def test_what_is_not_text_is_told() -> None:
    Path("fairlead.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"fairlead\.toml: cannot be read"):
        load(None, NOTHING)


# ---------------------------------------------------------------- the environment


def test_the_environment_wins_over_the_file() -> None:
    file = written("[server]\nport = 8123\nmax_body = 2048\n")
    server = load(file, {"FAIRLEAD_SERVER__PORT": "8124"}).config.server
    assert (server.port, server.max_body) == (8124, 2048)


def test_values_of_the_environment_are_read_as_toml_and_else_as_text() -> None:
    environ = {
        "FAIRLEAD_SERVICES__IMAGE_GEN__LIMIT": "2",
        "FAIRLEAD_SERVICES__IMAGE_GEN__URL": "http://127.0.0.1:9003/v1/execute",
        "FAIRLEAD_SERVICES__IMAGE_GEN__BACKOFF": "[60, 120, 180]",
        "FAIRLEAD_SERVER__ALLOWED_ORIGINS": '["https://app.example"]',
    }
    config = load(None, environ).config
    service = config.services["image_gen"]
    assert (service.limit, service.url, service.backoff) == (
        2,
        environ["FAIRLEAD_SERVICES__IMAGE_GEN__URL"],
        [60, 120, 180],
    )
    assert config.server.allowed_origins == ["https://app.example"]


def test_names_that_the_seeds_users_have_are_understood() -> None:
    environ = {"PROMOTE_LOW_TO_MEDIUM_AFTER": "60", "PROMOTE_MEDIUM_TO_HIGH_AFTER": "120"}
    promotion = load(None, environ).config.promotion
    assert (promotion.low_to_medium_after, promotion.medium_to_high_after) == (60, 120)


def test_the_database_and_the_admin_key_come_from_the_environment() -> None:
    settings = load(None, {"DATABASE_URL": "sqlite:///other.db", "FAIRLEAD_ADMIN_KEY": "s3cret"})
    assert (settings.database_url, settings.admin_key) == ("sqlite:///other.db", "s3cret")


@pytest.mark.parametrize("said", ["s3cret\n", "s3cret\r\n", "  s3cret\t"])
def test_what_is_around_the_admin_key_is_not_part_of_it(said: str) -> None:
    assert load(None, {"FAIRLEAD_ADMIN_KEY": said}).admin_key == "s3cret"


@pytest.mark.parametrize("said", ["\n", "   ", "s3\ncret", "s3\x00cret", "geheim-über-alles"])
def test_an_admin_key_that_nobody_can_send_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match="FAIRLEAD_ADMIN_KEY") as caught:
        load(None, {"FAIRLEAD_ADMIN_KEY": said, "FAIRLEAD_SERVER__PORT": "x"})
    assert any("server.port" in problem for problem in caught.value.problems), "all is told at once"
    assert "cret" not in str(caught.value)


def test_an_empty_admin_key_is_none() -> None:
    assert load(None, {"FAIRLEAD_ADMIN_KEY": ""}).admin_key is None


def test_variables_of_other_programs_and_keys_of_ours_are_left_alone() -> None:
    environ = {"PATH": "/bin", "FAIRLEAD_URL": "http://x", "FAIRLEAD_API_KEY": "k", "SERVER__PORT": "1"}
    assert load(None, environ).config == load(None, NOTHING).config


def test_a_variable_below_a_value_is_told() -> None:
    found = problems("[server]\nport = 1\n", {"FAIRLEAD_SERVER__PORT__X": "1"})
    assert any("server.port.x" in problem and "not a section" in problem for problem in found)


def test_a_leader_s_lease_has_bounds() -> None:
    assert load(None, NOTHING).config.manager.leader_ttl == 10
    for wrong in ("1", "301"):
        with pytest.raises(ConfigError, match=r"manager\.leader_ttl"):
            load(None, {"FAIRLEAD_MANAGER__LEADER_TTL": wrong})


# ---------------------------------------------------------------- mistakes


def test_all_mistakes_are_told_at_once_each_with_file_key_and_what_is_allowed() -> None:
    found = problems(
        """
        [services.image_gen]
        url = "ftp://nowhere"
        timeout = -1
        order = "lifo"
        [services.thumb]
        limit = "many"
        colour = "red"
        [services.BAD-NAME]
        limit = 1
        [server]
        port = 99999
        [worker]
        concurrency = 0
        """
    )
    wanted = {
        "services.image_gen.limit": "required",
        "services.image_gen.url": "must begin with http:// or https://",
        "services.image_gen.timeout": "greater than 0",
        "services.image_gen.order": "'fair' or 'fifo'",
        "services.thumb.limit": "integer, unable to parse string as an integer, or \"auto\", not 'many'",
        "services.thumb.colour": "no such key",
        "services.BAD-NAME": "lower-case letters",
        "server.port": "65535",
        "worker.concurrency": "greater than or equal to 1",
    }
    assert len(found) == len(wanted), found
    for key, allowed in wanted.items():
        (problem,) = [each for each in found if each.startswith(f"fairlead.toml: {key}: ")]
        assert allowed in problem


def test_an_unknown_section_is_a_mistake() -> None:
    (problem,) = problems("[servers]\nport = 1\n")
    assert problem.startswith("fairlead.toml: servers: there is no such key")


def test_a_service_has_one_way_to_execute() -> None:
    (problem,) = problems('[services.x]\nlimit = 1\nurl = "http://a/b"\nfunction = "a:b"\n')
    assert "services.x" in problem
    assert "exactly one of url, function, regions" in problem


@pytest.mark.parametrize("backoff", ["[]", "{ bas = 1 }", '"soon"', "[-1]"])
def test_a_wrong_backoff_names_its_key_and_not_our_types(backoff: str) -> None:
    found = problems(f'[services.x]\nlimit = 1\nurl = "http://a/b"\nbackoff = {backoff}\n')
    assert all(problem.startswith("fairlead.toml: services.x.backoff") for problem in found)
    assert not any("BackoffConfig" in problem.partition(": services")[2].split(":")[0] for problem in found)


def test_a_backoff_that_is_neither_form_is_told_once_with_both() -> None:
    (problem,) = problems("[services.a]\nlimit = 1\nbackoff = 5\n")
    assert "{ base = 2, factor = 2, max = 60, jitter = 0.2 } or a list of seconds, not 5" in problem


def test_two_ways_to_execute_are_told_together_with_everything_else() -> None:
    found = problems(
        """
        [services.a]
        url = "http://127.0.0.1:1"
        function = "m:f"
        limit = 0
        [services.b]
        url = "http://127.0.0.1:1"
        function = "m:f"
        limit = 1
        [services.c]
        limit = 1
        pool = "nowhere"
        """
    )
    assert len(found) == 4, found
    for key in ("services.a.limit", "services.a", "services.b", "services.c.pool"):
        assert any(problem.startswith(f"fairlead.toml: {key}: ") for problem in found), key


def test_a_header_cannot_smuggle_another() -> None:
    (problem,) = problems('[services.x]\nlimit = 1\nurl = "http://a/b"\nheaders = { A = "b\\r\\nC: d" }\n')
    assert "services.x.headers" in problem


def test_contradictions_are_told_with_what_is_known() -> None:
    file = written(
        """
        [services.chat]
        limit = 1
        url = "http://127.0.0.1:1/x"
        pool = "gpu"
        [pipelines]
        both = ["chat", "paint"]
        none = []
        chat = ["chat"]
        """
    )
    config = load(file, NOTHING).config
    found = problems_of(config, "fairlead.toml")
    assert len(found) == 4
    assert any("pipelines.both" in each and "'paint'" in each and "known are: chat" in each for each in found)
    assert any("pipelines.none" in each and "at least one" in each for each in found)
    assert any("pipelines.chat" in each and "same name" in each for each in found)
    assert any("services.chat.pool" in each and "none is declared" in each for each in found)


def test_a_header_from_the_environment_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[services.x]\nlimit = 1\nurl = "http://a/b"\nheaders = { Authorization = "env:X_TOKEN" }\n'
    config = load(written(text), NOTHING).config
    monkeypatch.delenv("X_TOKEN", raising=False)
    (problem,) = problems_of(config, "fairlead.toml")
    assert "services.x.headers.Authorization" in problem
    assert "X_TOKEN" in problem
    monkeypatch.setenv("X_TOKEN", "t")
    assert problems_of(config, "fairlead.toml") == []


# ---------------------------------------------------------------- the database's address


def test_three_slashes_are_relative_and_four_are_not() -> None:
    assert sqlite_options("sqlite:///fairlead.db") == ("fairlead.db", "FULL")
    assert sqlite_options("sqlite:////var/lib/fairlead.db") == ("/var/lib/fairlead.db", "FULL")


def test_commits_are_durable_unless_asked_otherwise() -> None:
    assert sqlite_options("sqlite:///f.db?synchronous=full") == ("f.db", "FULL")
    assert sqlite_options("sqlite:///f.db?synchronous=normal") == ("f.db", "NORMAL")


@pytest.mark.parametrize("query", ["synchronous=off", "synchronous=", "synchronous", "cache=1", "synchronous=full&x=1"])
def test_other_options_of_the_database_are_refused(query: str) -> None:
    with pytest.raises(ConfigError, match="synchronous=full or normal"):
        sqlite_options(f"sqlite:///f.db?{query}")


@pytest.mark.parametrize("url", ["fairlead.db", "sqlite://", "sqlite:///", "mysql://root:pw@db/x", ""])
def test_other_databases_are_refused_without_showing_passwords(url: str) -> None:
    with pytest.raises(ConfigError, match="DATABASE_URL") as caught:
        sqlite_options(url)
    assert "pw" not in str(caught.value)


# ---------------------------------------------------------------- everything at once, from wherever it came


def test_mistakes_of_every_kind_are_told_at_once_each_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text('[services.draw]\nlimit = 0\npool = "none"\n[pipelines]\np = ["nowhere"]\n', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, {"FAIRLEAD_SERVER__PORT": "x"})
    told = "\n".join(caught.value.problems)
    assert f"{file}: services.draw.limit: should be greater than or equal to 1" in told
    assert f"{file}: services.draw.pool: no pool is called 'none'" in told
    assert f"{file}: pipelines.p: no service is called 'nowhere'" in told
    assert "FAIRLEAD_SERVER__PORT: server.port: should be a valid integer" in told
    assert len(caught.value.problems) == 4


def test_a_password_in_a_malformed_address_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"FAIRLEAD_SERVICES__DRAW__URL": "ftp://user:hunter2@host/x", "FAIRLEAD_SERVICES__DRAW__LIMIT": "1"})
    assert "hunter2" not in str(caught.value)


def test_a_function_that_cannot_be_imported_and_an_unknown_database_are_problems() -> None:
    config = Config.model_validate({"services": {"draw": {"limit": 1, "function": "nowhere:draw"}}})
    problems = Fairlead(config, database_url="mysql://root:pw@db/x").check()
    assert len(problems) == 2
    assert "pw" not in problems[0]
    assert "services.draw.function: 'nowhere:draw' cannot be imported" in problems[1]


# ---------------------------------------------------------------- priorities


def test_the_priority_service_is_known_by_the_name_that_the_seeds_users_have() -> None:
    config = load(None, {"PRIORITY_API_URL": "http://priorities:8000/"}).config
    assert config.priority.template == "http://priorities:8000/users/{user_id}/priority"


def test_an_empty_variable_that_the_seeds_users_have_is_none() -> None:
    environ = {"PRIORITY_API_URL": "", "PROMOTE_LOW_TO_MEDIUM_AFTER": ""}
    assert load(None, environ).config == load(None, NOTHING).config


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://{user_id}.example/priority", "not in the host"),
        ("http://{user_id}@example/{user_id}", "not in the host"),
        ("http://example/#{user_id}", "never sent"),
        ("http://example/?token=1", "write the whole URL"),
        ("ftp://example", "must begin with http://"),
        ("http://[::1/", "no URL"),
        ("http://example:70000/", "no URL"),
        ("http://example/{user}", "{user} stands for nothing"),
        ("http://example/{user_id}/{tier}", "{tier} stands for nothing"),
    ],
)
def test_where_the_priority_service_is_must_be_the_operators_choice(url: str, problem: str) -> None:
    [said] = problems("", {"PRIORITY_API_URL": url})
    assert said.startswith("PRIORITY_API_URL: priority.url: ")
    assert problem in said


@pytest.mark.parametrize("weight", ["0", "-1", "1001", "inf", "nan"])
def test_a_weight_is_above_0_and_at_most_1000(weight: str) -> None:
    assert "users.ada.weight" in problems(f"[users.ada]\nweight = {weight}\n")[0]


def test_a_plan_that_is_not_there_is_named_also_beside_other_mistakes() -> None:
    file = '[plans.free]\n[users.ada]\nplan = "gold"\n'
    expected = "fairlead.toml: users.ada.plan: no plan is called 'gold'; known are: free"
    config = load(written(file), NOTHING).config
    assert problems_of(config, "fairlead.toml") == [expected]
    assert expected in problems(file + "[server]\nport = 'x'\n")


def test_a_credential_for_the_priority_service_that_the_environment_lacks_is_named() -> None:
    config = Config.model_validate({"priority": {"headers": {"Authorization": "env:NO_SUCH_TOKEN"}}})
    [said] = problems_of(config, "fairlead.toml")
    assert said.startswith("fairlead.toml: priority.headers.Authorization: the environment has no NO_SUCH_TOKEN")


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ({"services": ["nobody"]}, "worker_pools.p.services: no service is called 'nobody'; known are: infer"),
        ({"regions": ["mars"]}, "worker_pools.p.regions: no region is called 'mars'; known are: us"),
        ({"bands": []}, "worker_pools.p.bands: "),
        ({"bands": ["urgent"]}, "worker_pools.p.bands.0: "),
        ({"concurrency": 0}, "worker_pools.p.concurrency: "),
        ({"size": 3}, "worker_pools.p.size: there is no such key"),
    ],
)
def test_a_pool_of_workers_is_bound_to_what_there_is(pool: dict[str, Any], said: str) -> None:
    text = "[services.infer]\nlimit = 2\nregions.us = { url = 'http://us/', limit = 1 }\n[worker_pools.p]\n"
    text += "\n".join(f"{key} = {value!r}" for key, value in pool.items())
    try:
        found = Fairlead(load(written(text), NOTHING)).check()
    except ConfigError as error:
        found = list(error.problems)
    assert [problem for problem in found if said in problem]
