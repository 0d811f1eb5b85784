"""The same pages on PostgreSQL and Redis."""

from __future__ import annotations

from playwright.async_api import expect

from tests import redis_servers, servers
from tests.browser import gateway_site as stages
from tests.browser.conftest import Open
from tests.browser.pages import PAGES, ask, confirm, job_link, route_of, settled
from tests.browser.sample_data import add_sample_data


async def test_every_page_and_an_action_on_the_distributed_engines(open_window: Open) -> None:
    servers.postgres_url()
    database_url, redis_url = await servers.shared_database(), redis_servers.server_url()
    await servers.empty(database_url)
    redis_servers.empty(redis_url)
    async with stages.raised({"database_url": database_url, "redis_url": redis_url}) as stage:
        sample = await add_sample_data(stage)
        window = await open_window(stage)
        for name in PAGES:
            await settled(await window.go(route_of(name, sample)))
        page = await window.go("/services/gated")
        await expect(page.get_by_role("main")).to_contain_text("cyn")
        await ask(page, "Pause", says="gated")
        await confirm(page)
        assert (await stage.actions())[0] == ("service.pause", "gated")
        latest = await stage.submit("gated", "the latest")
        await window.go("/jobs")
        await expect(job_link(page, latest)).to_be_visible()
        await window.context.close()
