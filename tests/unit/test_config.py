"""Reading the configuration: the file, the environment on top, and all mistakes reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from fairlead import Config, Fairlead
from fairlead.config import DEFAULT_DATABASE_URL, SqliteOptions, load, problems_of, sqlite_options
from fairlead.errors import ConfigError

NOTHING: dict[str, str] = {}
NUMBERS = ("integer", "number")


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


# ---------------------------------------------------------------- sources


def test_without_a_file_everything_has_its_default() -> None:
    settings = load(None, NOTHING)
    assert settings.source is None
    assert settings.database_url == DEFAULT_DATABASE_URL
    assert settings.admin_key is None
    assert settings.config.services == {}
    assert settings.config.server.host == "127.0.0.1"


def test_the_file_in_the_working_directory_is_read() -> None:
    written("[server]\nport = 8123\n")
    settings = load(None, NOTHING)
    assert settings.source == "fairlead.toml"
    assert settings.config.server.port == 8123


def test_a_named_file_must_exist() -> None:
    with pytest.raises(ConfigError, match=r"elsewhere\.toml: no such file"):
        load("elsewhere.toml", NOTHING)


def test_a_directory_is_not_a_file() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(Path(), NOTHING)


def test_invalid_toml_is_reported_with_file_and_line() -> None:
    (problem,) = problems("[server\nport = 1\n")
    assert problem.startswith("fairlead.toml: is not valid TOML:")
    assert "line 1" in problem


def test_a_file_that_is_not_text_is_reported() -> None:
    Path("fairlead.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"fairlead\.toml: cannot be read"):
        load(None, NOTHING)


# ---------------------------------------------------------------- the environment


def test_the_environment_overrides_the_file() -> None:
    file = written("[server]\nport = 8123\nmax_body = 2048\n")
    server = load(file, {"FAIRLEAD_SERVER__PORT": "8124"}).config.server
    assert (server.port, server.max_body) == (8124, 2048)


def test_environment_values_are_read_as_toml_or_else_as_text() -> None:
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


def test_variables_of_the_systems_that_fairlead_replaces_are_read() -> None:
    environ = {"PROMOTE_LOW_TO_MEDIUM_AFTER": "60", "PROMOTE_MEDIUM_TO_HIGH_AFTER": "120"}
    promotion = load(None, environ).config.promotion
    assert (promotion.low_to_medium_after, promotion.medium_to_high_after) == (60, 120)


def test_the_database_and_the_admin_key_come_from_the_environment() -> None:
    settings = load(None, {"DATABASE_URL": "sqlite:///other.db", "FAIRLEAD_ADMIN_KEY": "s3cret"})
    assert (settings.database_url, settings.admin_key) == ("sqlite:///other.db", "s3cret")


@pytest.mark.parametrize("key", ["s3cret\n", "s3cret\r\n", "  s3cret\t"])
def test_whitespace_around_the_admin_key_is_removed(key: str) -> None:
    assert load(None, {"FAIRLEAD_ADMIN_KEY": key}).admin_key == "s3cret"


@pytest.mark.parametrize("key", ["\n", "   ", "s3\ncret", "s3\x00cret", "geheim-über-alles"])
def test_an_admin_key_that_cannot_be_sent_in_a_header_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="FAIRLEAD_ADMIN_KEY") as caught:
        load(None, {"FAIRLEAD_ADMIN_KEY": key, "FAIRLEAD_SERVER__PORT": "x"})
    assert any("server.port" in problem for problem in caught.value.problems), "all problems are reported at once"
    assert "cret" not in str(caught.value)


def test_an_empty_admin_key_counts_as_none() -> None:
    assert load(None, {"FAIRLEAD_ADMIN_KEY": ""}).admin_key is None


def test_variables_of_other_programs_are_ignored() -> None:
    environ = {"PATH": "/bin", "FAIRLEAD_URL": "http://x", "FAIRLEAD_API_KEY": "k", "SERVER__PORT": "1"}
    assert load(None, environ).config == load(None, NOTHING).config


def test_a_variable_below_a_value_is_reported() -> None:
    found = problems("[server]\nport = 1\n", {"FAIRLEAD_SERVER__PORT__X": "1"})
    assert any("server.port.x" in problem and "not a section" in problem for problem in found)


def test_a_problem_within_a_value_names_its_variable() -> None:
    table = {"FAIRLEAD_SERVICES__CHAT__RATE": "{ requests = 0 }"}
    (found,) = problems("[services.chat]\nlimit = 1\n", table)
    assert found.startswith("FAIRLEAD_SERVICES__CHAT__RATE: services.chat.rate.requests: should be greater")


def test_the_leader_lease_has_bounds() -> None:
    assert load(None, NOTHING).config.manager.leader_ttl == 10
    for wrong in ("1", "301"):
        with pytest.raises(ConfigError, match=r"manager\.leader_ttl"):
            load(None, {"FAIRLEAD_MANAGER__LEADER_TTL": wrong})


# ---------------------------------------------------------------- mistakes


def test_all_mistakes_are_reported_at_once_with_file_key_and_valid_values() -> None:
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
        "services.thumb.colour": "unknown key",
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
    assert problem == "fairlead.toml: servers: unknown key; did you mean 'server'? see docs/configuration.md"


@pytest.mark.parametrize("key", ["colour", "port"])  # like no other key; the key of another section
def test_no_key_is_suggested_for(key: str) -> None:
    (problem,) = problems(f'[services.x]\nlimit = 1\nurl = "http://a/b"\n{key} = 1\n')
    assert problem == f"fairlead.toml: services.x.{key}: unknown key; see docs/configuration.md"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[budgets.b]\ntokens = 1\nper = 'day'\napples = 1\n", "budgets.b.apples: unknown key; see"),
        ("[budgets.b]\ntoken = 1\nper = 'day'\n", "budgets.b.token: unknown key; did you mean 'tokens'?"),
        ("[services.rate]\nlimit = 1\ntimeouts = 1\n", "services.rate.timeouts: unknown key; did you mean 'timeout'?"),
        ("[services.x]\nlimit = 1\nrate = { request = 1 }\n", "x.rate.request: unknown key; did you mean 'requests'?"),
        ("[services.x]\nlimit = 1\nrate = { requests = 1, units_per = 1 }\n", "x.rate.units_per: unknown key; see"),
        (
            "[services.x]\nlimit = 1\nbackoff = { factors = 2 }\n",
            "backoff.factors: unknown key; did you mean 'factor'?",
        ),
        ("[pools]\ngpu = { limit = 1, rates = 1 }\n", "pools.gpu.rates: unknown key; did you mean 'rate'?"),
        ("[prices.x.models.m]\nper_calls = 1\n", "prices.x.models.m.per_calls: unknown key; did you mean 'per_call'?"),
        ("[webhooks.w]\nurl = 'https://a'\nsecrets = 'x'\n", "w.secrets: unknown key; did you mean 'secret'?"),
        ("[server]\nlimits = 1\n", "server.limits: unknown key; see"),
    ],
)
def test_a_suggested_key_is_one_of_the_same_section(text: str, problem: str) -> None:
    assert any(problem in each for each in problems(text)), problems(text)


def test_a_service_has_exactly_one_executor() -> None:
    (problem,) = problems('[services.x]\nlimit = 1\nurl = "http://a/b"\nfunction = "a:b"\n')
    assert "services.x" in problem
    assert "exactly one of url, function, regions" in problem


@pytest.mark.parametrize("backoff", ["[]", "{ bas = 1 }", '"soon"', "[-1]"])
def test_a_wrong_backoff_names_its_key_and_not_our_types(backoff: str) -> None:
    found = problems(f'[services.x]\nlimit = 1\nurl = "http://a/b"\nbackoff = {backoff}\n')
    assert all(problem.startswith("fairlead.toml: services.x.backoff") for problem in found)
    assert not any("BackoffConfig" in problem.partition(": services")[2].split(":")[0] for problem in found)


def test_a_backoff_of_neither_form_is_reported_once_with_both() -> None:
    (problem,) = problems("[services.a]\nlimit = 1\nbackoff = 5\n")
    assert "{ base = 2, factor = 2, max = 60, jitter = 0.2 } or a list of seconds, not 5" in problem


def test_two_executors_are_reported_together_with_all_other_mistakes() -> None:
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


def test_a_header_value_cannot_contain_another_header() -> None:
    (problem,) = problems('[services.x]\nlimit = 1\nurl = "http://a/b"\nheaders = { A = "b\\r\\nC: d" }\n')
    assert "services.x.headers" in problem


def test_contradictions_are_reported_with_the_known_names() -> None:
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


def test_a_header_from_the_environment_must_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[services.x]\nlimit = 1\nurl = "http://a/b"\nheaders = { Authorization = "env:X_TOKEN" }\n'
    config = load(written(text), NOTHING).config
    monkeypatch.delenv("X_TOKEN", raising=False)
    (problem,) = problems_of(config, "fairlead.toml")
    assert "services.x.headers.Authorization" in problem
    assert "X_TOKEN" in problem
    monkeypatch.setenv("X_TOKEN", "t")
    assert problems_of(config, "fairlead.toml") == []


# ---------------------------------------------------------------- the database's URL


def test_three_slashes_are_a_relative_path_and_four_an_absolute_one() -> None:
    assert sqlite_options("sqlite:///fairlead.db").path == "fairlead.db"
    assert sqlite_options("sqlite:////var/lib/fairlead.db").path == "/var/lib/fairlead.db"


def test_commits_are_durable_by_default() -> None:
    assert sqlite_options("sqlite:///f.db") == SqliteOptions("f.db", "FULL", False)
    assert sqlite_options("sqlite:///f.db?synchronous=full") == SqliteOptions("f.db", "FULL", False)
    assert sqlite_options("sqlite:///f.db?synchronous=normal") == SqliteOptions("f.db", "NORMAL", False)


def test_the_switch_interval_is_unchanged_by_default() -> None:
    assert sqlite_options("sqlite:///f.db?switch_interval=default") == SqliteOptions("f.db", "FULL", False)
    url = "sqlite:///f.db?switch_interval=short&synchronous=normal"
    assert sqlite_options(url) == SqliteOptions("f.db", "NORMAL", True)


@pytest.mark.parametrize(
    "query", ["synchronous=off", "synchronous=", "synchronous", "cache=1", "synchronous=full&x=1", "switch_interval=5"]
)
def test_unknown_database_options_are_refused(query: str) -> None:
    with pytest.raises(ConfigError, match="the options after the"):
        sqlite_options(f"sqlite:///f.db?{query}")


@pytest.mark.parametrize("url", ["fairlead.db", "sqlite://", "sqlite:///", "mysql://root:pw@db/x", ""])
def test_unknown_databases_are_refused_without_showing_passwords(url: str) -> None:
    with pytest.raises(ConfigError, match="DATABASE_URL") as caught:
        sqlite_options(url)
    assert "pw" not in str(caught.value)


# ---------------------------------------------------------------- mistakes of all sources


def test_mistakes_of_every_kind_are_reported_at_once_with_their_source(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text('[services.draw]\nlimit = 0\npool = "none"\n[pipelines]\np = ["nowhere"]\n', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, {"FAIRLEAD_SERVER__PORT": "x"})
    problems = "\n".join(caught.value.problems)
    assert f"{file}: services.draw.limit: should be greater than or equal to 1" in problems
    assert f"{file}: services.draw.pool: no pool is called 'none'" in problems
    assert f"{file}: pipelines.p: no service is called 'nowhere'" in problems
    assert "FAIRLEAD_SERVER__PORT: server.port: should be a valid integer" in problems
    assert len(caught.value.problems) == 4


def test_a_password_in_a_malformed_url_is_hidden() -> None:
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


def test_the_priority_service_can_be_set_by_its_former_variable() -> None:
    config = load(None, {"PRIORITY_API_URL": "http://priorities:8000/"}).config
    assert config.priority.template == "http://priorities:8000/users/{user_id}/priority"


def test_an_empty_former_variable_counts_as_none() -> None:
    environ = {"PRIORITY_API_URL": "", "PROMOTE_LOW_TO_MEDIUM_AFTER": ""}
    assert load(None, environ).config == load(None, NOTHING).config


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://{user_id}.example/priority", "not in the host"),
        ("http://{user_id}@example/{user_id}", "not in the host"),
        ("http://example/#{user_id}", "never sent"),
        ("http://example/?token=1", "must be complete"),
        ("ftp://example", "must begin with http://"),
        ("http://[::1/", "not a valid URL"),
        ("http://example:70000/", "not a valid URL"),
        ("http://example/{user}", "{user} is not a placeholder"),
        ("http://example/{user_id}/{tier}", "{tier} is not a placeholder"),
    ],
)
def test_only_the_operator_chooses_the_priority_services_url(url: str, problem: str) -> None:
    [problem_found] = problems("", {"PRIORITY_API_URL": url})
    assert problem_found.startswith("PRIORITY_API_URL: priority.url: ")
    assert problem in problem_found


@pytest.mark.parametrize("weight", ["0", "-1", "1001", "inf", "nan"])
def test_a_weight_is_above_0_and_at_most_1000(weight: str) -> None:
    assert "users.ada.weight" in problems(f"[users.ada]\nweight = {weight}\n")[0]


def test_an_unknown_plan_is_named_among_other_mistakes() -> None:
    file = '[plans.free]\n[users.ada]\nplan = "gold"\n'
    expected = "fairlead.toml: users.ada.plan: no plan is called 'gold'; known are: free"
    config = load(written(file), NOTHING).config
    assert problems_of(config, "fairlead.toml") == [expected]
    assert expected in problems(file + "[server]\nport = 'x'\n")


def test_a_missing_credential_of_the_priority_service_is_named() -> None:
    config = Config.model_validate({"priority": {"headers": {"Authorization": "env:NO_SUCH_TOKEN"}}})
    [problem_found] = problems_of(config, "fairlead.toml")
    assert problem_found.startswith(
        "fairlead.toml: priority.headers.Authorization: the environment variable NO_SUCH_TOKEN is not set"
    )


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ({"services": ["paint"]}, "worker_pools.p.services: no service is called 'paint'; known are: infer"),
        ({"regions": ["mars"]}, "worker_pools.p.regions: no region is called 'mars'; known are: us"),
        ({"bands": []}, "worker_pools.p.bands: "),
        ({"bands": ["urgent"]}, "worker_pools.p.bands.0: "),
        ({"concurrency": 0}, "worker_pools.p.concurrency: "),
        ({"size": 3}, "worker_pools.p.size: unknown key"),
    ],
)
def test_a_worker_pool_is_bound_to_known_names(pool: dict[str, Any], expected: str) -> None:
    text = "[services.infer]\nlimit = 2\nregions.us = { url = 'http://us/', limit = 1 }\n[worker_pools.p]\n"
    text += "\n".join(f"{key} = {value!r}" for key, value in pool.items())
    try:
        found = Fairlead(load(written(text), NOTHING)).check()
    except ConfigError as error:
        found = list(error.problems)
    assert [problem for problem in found if expected in problem]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("cost = -1", "services.flux.cost: should be greater than 0, not -1"),
        ("cost = [1]", "services.flux.cost: should be a valid number, not [1]"),
        ("cost = nan", "services.flux.cost: should be a finite number, not nan"),
        ("cost = '1 / 0'", "services.flux: cost: it divides by zero"),
        ("cost = '-1'", "services.flux: cost: the cost must be more than 0 and at most 1000000000, not -1"),
        ("rate = { requests = 1e30, per = 60 }", "services.flux.rate.requests: is too large: 1e+30"),
    ],
)
def test_a_wrong_cost_or_rate_is_one_problem_with_its_key(line: str, problem: str) -> None:
    found = problems(f"[services.flux]\nurl = 'http://flux'\nlimit = 1\n{line}\n")
    assert list(found) == [f"fairlead.toml: {problem}"]


# ---------------------------------------------------------------- booleans are not numbers


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[services.x]\nlimit = true\n", "services.x.limit"),
        ("[services.x]\nlimit = 1\ncost = true\n", "services.x.cost"),
        ("[services.x]\nlimit = 1\nbackoff = [1, true]\n", "services.x.backoff.1"),
        ("[services.x]\nlimit = 1\nrate = { requests = true }\n", "services.x.rate.requests"),
        ("[groups.g]\nweight = true\n", "groups.g.weight"),
        ("[pools]\ngpu = true\n", "pools.gpu"),
        ("[pools]\ngpu = { limit = true }\n", "pools.gpu.limit"),
        ("[budgets.b]\ntokens = true\nper = 'day'\n", "budgets.b.tokens"),
        ("[budgets.b]\ntokens = 1\nper = 'day'\nwarn_at = [true]\n", "budgets.b.warn_at.0"),
        ("[services.x]\nlimit = 1\n[prices.x]\nper_call = true\n", "prices.x.per_call"),
    ],
)
def test_a_boolean_is_not_a_number(text: str, key: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"fairlead.toml: {key}: should be a valid ")
    assert "not True" in problem


def test_a_boolean_in_a_variable_is_not_a_number_but_digits_are() -> None:
    (problem,) = problems("[services.x]\nlimit = 1\n", {"FAIRLEAD_SERVICES__X__LIMIT": "true"})
    expected = 'services.x.limit: should be a valid integer, or "auto", not True'
    assert problem == f"FAIRLEAD_SERVICES__X__LIMIT: {expected}"
    quoted = {"FAIRLEAD_SERVER__PORT": "'8124'", "FAIRLEAD_SERVER__IDLE_TIMEOUT": "'2.5'"}
    server = load(None, quoted).config.server
    assert (server.port, server.idle_timeout) == (8124, 2.5)


def test_no_number_of_any_section_is_a_boolean() -> None:
    models = {model.__name__: model for model in _models(Config)}
    taken, numbers = [], 0
    for name, model in models.items():
        for key, schema in model.model_json_schema().get("properties", {}).items():
            forms = schema.get("anyOf", [schema])
            values = [True for form in forms if form.get("type") in NUMBERS]
            values += [[True] for form in forms if form.get("items", {}).get("type") in NUMBERS]
            for value in values:
                numbers += 1
                with pytest.raises(ValidationError) as caught:
                    model.model_validate({key: value, "no_such_key": 1})
                kinds = {issue["type"] for issue in caught.value.errors() if issue["loc"][0] == key}
                if not kinds & {"int_type", "float_type"}:
                    taken.append(f"{name}.{key}")
    assert taken == []
    assert numbers > 60


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The model and those of its fields, at any depth."""
    yield model
    waiting: list[Any] = [field.annotation for field in model.model_fields.values()]
    while waiting:
        each = waiting.pop()
        waiting += get_args(each)
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield from _models(each)
