"""A slot whose worker died while its call may still be running."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from playwright.async_api import expect

from tests.browser import gateway_site as stages
from tests.browser.conftest import Open, Raise


@asynccontextmanager
async def endpoint_that_never_answers() -> AsyncIterator[str]:
    over = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        over.set()


async def test_a_held_slot_is_shown_as_held_and_counted_as_taken(
    open_window: Open, raise_stage: Raise, tmp_path: Path
) -> None:
    async with endpoint_that_never_answers() as url:
        remote: dict[str, Any] = {"url": url, "limit": 1}
        before = await raise_stage(remote=remote)
        await before.running(await before.submit("remote", "ada"))
        # As after a power failure.
        now, left = (closing(sqlite3.connect(tmp_path / name)) for name in ("fairlead.db", "left.db"))
        with now as source, left as copy:
            source.backup(copy)
        engines = {"database_url": f"sqlite:///{tmp_path}/left.db"}
        async with stages.raised(engines, remote={**remote, "lease_ttl": 1}) as after:
            window = await open_window(after)
            page = await window.go()
            service = page.get_by_test_id("service-remote")
            await expect(service.get_by_role("listitem").filter(has_text="held")).to_be_visible()
            await expect(service).to_contain_text("1 of 1")
            await window.context.close()
