"""How much a first visit costs, and where it comes from. Bytes are counted, not seconds."""

from __future__ import annotations

from typing import Any

from tests.browser.conftest import Open
from tests.browser.eyes import Window
from tests.browser.pages import settled
from tests.browser.stage import Stage

MOST = 100_000


class Arrivals:
    """What the network brought: whole answers with their headers, and bodies alone."""

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


async def test_a_first_visit_takes_less_than_100_kb_and_all_of_it_from_here(
    open_window: Open, bare_stage: Stage
) -> None:
    window, arrived = await open_window(bare_stage), Arrivals()
    await arrived.watch(window)
    await settled(await window.go())
    assert len(arrived.answers) > 3
    assert sum(arrived.answers) < MOST, f"{sum(arrived.answers):.0f} bytes in {len(arrived.answers)} answers"
    assert {url.split("/", 3)[2] for url in window.requests} == {f"127.0.0.1:{bare_stage.port}"}


async def test_a_second_visit_fetches_no_file_anew(open_window: Open, bare_stage: Stage) -> None:
    window, arrived = await open_window(bare_stage), Arrivals()
    await settled(await window.go())
    # To the last file: one that is still under way when the page is left is not kept.
    await window.page.wait_for_load_state("networkidle")
    # Opened again, not reloaded: then a browser asks for everything, whatever it has.
    await window.page.goto("about:blank")
    await arrived.watch(window)
    await settled(await window.go())
    # What changes is asked anew, of course: who is signed in, and what there is.
    assert "/session" in "".join(arrived.bodies)
    assert {url: size for url, size in arrived.bodies.items() if "/static/" in url and size} == {}


async def test_a_page_opens_one_socket_and_keeps_it(open_window: Open, bare_stage: Stage) -> None:
    window = await open_window(bare_stage)
    for route in ("/", "/jobs", "/users", "/batches", "/dead", "/workers", "/audit", "/services/echo", "/"):
        await settled(await window.go(route))
    assert len(window.sockets) == 1
