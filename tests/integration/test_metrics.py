"""`/metrics`, scraped as Prometheus does it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from fairlead import Config, Fairlead
from fairlead.engine.roles import Roles
from fairlead.errors import Unavailable
from fairlead.gateway import metrics
from fairlead.gateway.app import create_gateway
from tests.integration.cli_process import DEADLINE_S, running, up
from tests.integration.gateway_site import Site, client_of
from tests.redis_servers import port_of, start_server

PATIENCE = 30.0
MakeSite = Callable[..., Awaitable[Site]]


class Scrape:
    def __init__(self, text: str) -> None:
        self.text = text
        self.families: dict[str, Metric] = {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, name: str, **labels: str) -> float | None:
        """None if there is no such sample."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        assert len(found) <= 1
        return found[0] if found else None


@pytest.fixture(autouse=True)
def _every_scrape_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "KEEP_S", 0.0)


async def scraped(client: httpx2.AsyncClient) -> Scrape:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(answer.text)


async def busy(site: Site) -> None:
    """Jobs in all states: some have ended well or badly, one runs and two wait."""
    ended = [
        await site.submit(feature_name=feature, user_id="secret-user")
        for feature in ("echo", "broken", "echo_then_shout", "flaky")
    ]
    for job_id in ended:
        await site.app.wait(job_id, PATIENCE)
    await site.submit(feature_name="gated", priority="high")
    await site.gate.entered.wait()
    for _ in range(2):
        await site.submit(feature_name="gated", priority="low")


async def test_the_numbers_match_what_happened(site: Site) -> None:
    await busy(site)
    scrape = await scraped(site.client)
    value = scrape.value
    assert value("fairlead_jobs_accepted_total", feature="echo", band="medium") == 1
    assert value("fairlead_jobs_accepted_total", feature="gated", band="low") == 2
    assert value("fairlead_jobs_ended_total", feature="echo_then_shout", status="COMPLETED") == 1
    assert value("fairlead_jobs_ended_total", feature="broken", status="FAILED") == 1
    assert value("fairlead_failures_total", service="broken", code="PERMANENT") == 1
    assert value("fairlead_failures_total", service="flaky", code="EXCEPTION") == 1
    assert value("fairlead_wait_seconds_count", service="echo", band="medium") == 2
    assert value("fairlead_run_seconds_count", service="echo", band="medium") == 2
    assert value("fairlead_run_seconds_bucket", service="echo", band="medium", le="+Inf") == 2
    assert value("fairlead_slots_limit", service="gated") == 1
    assert value("fairlead_slots_in_use", service="gated") == 1
    assert value("fairlead_calls_running", shard="main") == 1
    assert value("fairlead_waiting", service="gated", band="low") == 2
    assert value("fairlead_waiting", service="gated", band="high") == 0
    assert (value("fairlead_oldest_waiting_seconds", band="low") or 0) > 0
    assert value("fairlead_oldest_waiting_seconds", band="medium") == 0
    assert value("fairlead_leading", shard="main") == 1
    assert value("fairlead_rebuilds_total", shard="main") == 1
    assert value("fairlead_reachable", part="store") == 1
    assert value("fairlead_reachable", part="dispatcher main") == 1
    assert (value("fairlead_commit_transitions_count") or 0) > 0
    assert value("fairlead_commit_seconds_count") == value("fairlead_commit_transitions_count")
    assert value("fairlead_late_results_total", shard="main") == 0
    assert value("process_open_fds") is not None


async def test_every_family_is_known_with_its_labels_and_none_names_a_user(site: Site) -> None:
    await busy(site)
    scrape = await scraped(site.client)
    ours = {name: family for name, family in scrape.families.items() if name.startswith("fairlead_")}
    assert ours.keys() == metrics.METRICS.keys()
    for name, family in ours.items():
        known = metrics.METRICS[name]
        assert family.type == {
            metrics.COUNTER: "counter", metrics.GAUGE: "gauge", metrics.HISTOGRAM: "histogram",
        }[known.kind]  # fmt: skip
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(known.labels)
    assert "secret-user" not in scrape.text


async def test_a_scrape_includes_changes_since_the_last_one(site: Site) -> None:
    for n in (1, 2):
        await site.app.wait(await site.submit(), PATIENCE)
        scrape = await scraped(site.client)
        assert scrape.value("fairlead_jobs_accepted_total", feature="echo", band="medium") == n


async def test_a_replayed_submit_is_not_counted_twice(site: Site) -> None:
    for _ in range(2):
        body = {"user_id": "ada", "feature_name": "echo"}
        await site.client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
    scrape = await scraped(site.client)
    assert scrape.value("fairlead_jobs_accepted_total", feature="echo", band="medium") == 1


async def test_the_accuracy_of_estimates_is_exported_per_service(site: Site) -> None:
    process = site.app._runtime.node
    assert process is not None
    await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    waits = await site.submit(feature_name="gated")
    assert waits in process.scores.given
    process.scores.came_true(waits, 1e6)
    scrape = await scraped(site.client)
    assert scrape.value("fairlead_estimates_total", service="gated") == process.scores.report()["gated"]["count"]
    assert scrape.value("fairlead_estimates_close_ratio", service="gated") == process.scores.report()["gated"]["close"]
    assert (scrape.value("fairlead_estimates_median_error", service="gated") or 0) > 0


async def test_concurrent_scrapes_share_one_query_to_the_dispatcher(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "KEEP_S", 3600.0)
    site = await make_site()
    process = site.app._runtime.node
    assert process is not None
    dispatcher = process.shards["main"].dispatcher
    questions = 0
    snapshot = dispatcher.snapshot

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal questions
        questions += 1
        return await snapshot(*args, **options)

    monkeypatch.setattr(dispatcher, "snapshot", counted)
    await asyncio.gather(*(scraped(site.client) for _ in range(20)))
    assert questions == 1


async def test_openmetrics_is_available_on_request(site: Site) -> None:
    await busy(site)
    answer = await site.client.get(
        "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1"}
    )
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert "fairlead_waiting" in {family.name for family in openmetrics_families(answer.text)}


@pytest.mark.parametrize(
    "accept", ["", "nonsense", "application/openmetrics-text;version=x", "text/plain;version=y;escaping="]
)
async def test_no_accept_header_is_an_error(site: Site, accept: str) -> None:
    answer = await site.client.get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200


async def test_an_unreachable_component_is_reported_and_the_rest_exported(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.app.wait(await site.submit(), PATIENCE)
    assert site.app._runtime.node is not None

    async def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("it is away")

    for name in ("facts", "oldest_waiting"):
        monkeypatch.setattr(site.app._runtime.store, name, away)
    monkeypatch.setattr(site.app._runtime.node.shards["main"].dispatcher, "snapshot", away)
    scrape = await scraped(site.client)
    assert scrape.value("fairlead_reachable", part="store") == 0
    assert scrape.value("fairlead_reachable", part="dispatcher main") == 0
    assert scrape.value("fairlead_outbox_rows") is None
    assert scrape.value("fairlead_waiting", service="echo", band="medium") is None
    assert scrape.value("fairlead_jobs_ended_total", feature="echo", status="COMPLETED") == 1


async def test_two_apps_in_one_process_have_separate_numbers(site: Site, tmp_path: Path) -> None:
    await site.submit()
    config = Config.model_validate({"services": {"gpu": {"url": "http://127.0.0.1:9/", "limit": 1}}})
    other = Fairlead(config, database_url=f"sqlite:///{tmp_path}/other.db")
    async with other, client_of(create_gateway(other)) as client:
        assert "echo" not in (await scraped(client)).text


async def test_a_gateway_beside_the_dispatching_process_exports_the_database_figures(still_site: Site) -> None:
    await still_site.submit(priority="high")
    scrape = await scraped(still_site.client)
    assert (scrape.value("fairlead_oldest_waiting_seconds", band="high") or 0) > 0
    assert scrape.value("fairlead_outbox_rows") == 1
    assert scrape.value("fairlead_waiting", service="echo", band="high") is None


async def test_with_a_key_metrics_need_it(make_site: MakeSite) -> None:
    site = await make_site(admin_key="s3cret-key")
    assert (await site.client.get("/metrics")).status_code == 401
    answer = await site.client.get("/metrics", headers={"Authorization": "Bearer s3cret-key"})
    assert answer.status_code == 200


# ---------------------------------------------------------------- a separate port


def got(url: str, path: str = "") -> httpx2.Response:
    return httpx2.get(url + path, trust_env=False, timeout=DEADLINE_S)


def test_up_serves_metrics_on_a_separate_port_without_a_key(tmp_path: Path) -> None:
    with up(tmp_path, "project:app", "--metrics-port", "0", env={"FAIRLEAD_ADMIN_KEY": "k" * 20}) as server:
        url = server.banner["metrics"]
        assert url.startswith("http://127.0.0.1:")
        assert Scrape(got(url).text).value("fairlead_slots_limit", service="echo") == 4
        assert got(url, "/../api/v1/jobs").status_code == 404
        posted = httpx2.post(url, trust_env=False, timeout=DEADLINE_S)
        assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
        assert got(url.removesuffix("/metrics"), "/api/v1/jobs").status_code == 404


async def test_each_role_exports_its_own_metrics(database: str) -> None:
    """A worker exports its own metrics only; a manager also those of the queue and its term."""
    client = start_server()
    client.close()
    config = Config.model_validate({"services": {"gpu": {"url": "http://127.0.0.1:9/", "limit": 3}}})

    def app() -> Fairlead:
        return Fairlead(config, database_url=database, redis_url=f"redis://127.0.0.1:{port_of(client)}/0")

    async def scrape_of(of: Fairlead) -> Scrape:
        return Scrape(bytes((await metrics.Metrics(of).response("")).body).decode())

    async with (
        app().running(Roles(api=False, worker=False)) as manager,
        app().running(Roles(api=False, manager=False)) as worker,
    ):
        async with asyncio.timeout(PATIENCE):
            while not (scrape := await scrape_of(manager)).value("fairlead_leader_term", shard="main"):
                await asyncio.sleep(0.05)
        assert scrape.value("fairlead_leading", shard="main") == 1
        assert scrape.value("fairlead_slots_limit", service="gpu") == 3
        assert scrape.value("fairlead_calls_running", shard="main") is None
        of_worker = await scrape_of(worker)
        assert of_worker.value("fairlead_calls_running", shard="main") == 0
        assert of_worker.value("fairlead_slots_limit", service="gpu") is None
        assert of_worker.value("fairlead_leading", shard="main") is None


def test_a_worker_serves_metrics_on_request(tmp_path: Path, database: str) -> None:
    client = start_server()
    client.close()
    engines = {"DATABASE_URL": database, "REDIS_URL": f"redis://127.0.0.1:{port_of(client)}/0"}
    with running("worker", tmp_path, "project:app", "--metrics-port", "0", env=engines) as worker:
        scrape = Scrape(got(worker.banner["metrics"]).text)
        assert scrape.value("fairlead_calls_running", shard="main") == 0
