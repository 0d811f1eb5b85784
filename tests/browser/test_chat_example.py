"""`examples/chat-app` in a real browser: one user reads an answer while the other sees the position."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.integration.cli_process import started

RUN = Path(__file__).parents[2] / "examples" / "chat-app" / "run.py"


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.slow
async def test_one_user_waits_for_the_other_who_then_leaves(browser: Browser, tmp_path: Path) -> None:
    port, gateway = free_ports(2)
    env = {"PORT": str(port), "GATEWAY_PORT": str(gateway), "DATABASE_URL": f"sqlite:///{tmp_path / 'chat.db'}"}
    with started((sys.executable, str(RUN)), cwd=tmp_path, env=env) as running:
        try:
            await asyncio.to_thread(running.wait_for, "chat: ")
            ada, bob = [await opened(browser, port, user) for user in ("ada", "bob")]
            await ada.get_by_label("Message").fill("no end, " * 500)
            await ada.get_by_role("button").click()
            await expect(ada.locator("main p")).to_contain_text("You said: no end,")
            await bob.get_by_label("Message").fill("the tide turns")
            await bob.get_by_role("button").click()
            await expect(bob.locator("main p")).to_have_text("You are number 1 in the queue.")
            await ada.close()
            await expect(bob.locator("main p")).to_have_text("You said: the tide turns")
        finally:
            running.signal(signal.SIGTERM)
            await asyncio.to_thread(running.ended)


async def opened(browser: Browser, port: int, user: str) -> Page:
    page = await browser.new_page()
    await page.goto(f"http://127.0.0.1:{port}/")
    await page.get_by_label("Name").fill(user)
    return page
