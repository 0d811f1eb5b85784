"""The size of a first visit, and the origin of its files. Bytes are counted, not seconds."""

from __future__ import annotations

from typing import Any

from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.pages import settled
from tests.browser.strict_window import Window

MOST = 100_000


class Arrivals:
    """Received bytes: whole responses with headers, and bodies alone."""

    def __init__(self) -> None:
        self.answers: list[float] = []
        self.bodies: dict[str, float] = {}
        self._urls: dict[str, str] = {}

    async def watch(self, window: Window) -> None:
        network = await window.context.new_cdp_session(window.page)
        network.on("Network.loadingFinished", lambda event: self.answers.append(event["encodedDataLength"]))
        network.on("Network.requestWillBeSent", self._asked)
        network.on("Network.dataReceived", self._came)
        await network.send("Network.enable")

    def _asked(self, event: dict[str, Any]) -> None:
        self._urls[event["requestId"]] = event["request"]["url"]

    def _came(self, event: dict[str, Any]) -> None:
        url = self._urls.get(event["requestId"], "")
        self.bodies[url] = self.bodies.get(url, 0) + event["encodedDataLength"]


async def test_a_first_visit_takes_less_than_100_kb_all_from_the_gateway(open_window: Open, bare_stage: Stage) -> None:
    window, arrived = await open_window(bare_stage), Arrivals()
    await arrived.watch(window)
    await settled(await window.go())
    assert len(arrived.answers) > 3
    assert sum(arrived.answers) < MOST, f"{sum(arrived.answers):.0f} bytes in {len(arrived.answers)} responses"
    assert {url.split("/", 3)[2] for url in window.requests} == {f"127.0.0.1:{bare_stage.port}"}


async def test_a_second_visit_fetches_no_file_again(open_window: Open, bare_stage: Stage) -> None:
    window, arrived = await open_window(bare_stage), Arrivals()
    await settled(await window.go())
    # Down to the last file: one that is still loading when the page is left is not cached.
    await window.page.wait_for_load_state("networkidle")
    # Opened again, not reloaded: a reload requests everything.
    await window.page.goto("about:blank")
    await arrived.watch(window)
    await settled(await window.go())
    # Dynamic data is requested again: the session and the state.
    assert "/session" in "".join(arrived.bodies)
    assert {url: size for url, size in arrived.bodies.items() if "/static/" in url and size} == {}


async def test_a_page_opens_one_socket_and_keeps_it(open_window: Open, bare_stage: Stage) -> None:
    window = await open_window(bare_stage)
    for route in ("/", "/jobs", "/users", "/batches", "/dead", "/workers", "/audit", "/services/echo", "/"):
        await settled(await window.go(route))
    assert len(window.sockets) == 1
