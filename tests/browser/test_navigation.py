"""Quick navigation: no change of the address is lost, and no message of a view that was left is shown."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from playwright.async_api import WebSocketRoute, expect

from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage

# Changes the address as soon as the first page is rendered.
LEAVE_AT_ONCE = """
new MutationObserver((_, observer) => {
  if (document.querySelector("main h1")?.textContent !== "Jobs") return;
  observer.disconnect();
  history.replaceState(null, "", "#/services/echo");
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}).observe(document, { childList: true, subtree: true });
"""

# Remembers whether the page ever offered to unpause a service.
WATCH_UNPAUSE = """
new MutationObserver(() => {
  window.__unpause ||= [...document.querySelectorAll("main button")].some((each) => each.textContent === "Unpause");
}).observe(document, { childList: true, subtree: true });
"""


async def test_a_navigation_right_after_the_first_render_is_not_lost(open_window: Open, bare_stage: Stage) -> None:
    window = await open_window(bare_stage)
    await window.context.add_init_script(LEAVE_AT_ONCE)
    page = await window.go("/jobs")
    await expect(page.locator("main h1")).to_have_text("echo")
    await expect(page.get_by_role("main").get_by_role("button", name="Pause", exact=True)).to_be_visible()


class Replies:
    """Replaces the gateway's WebSocket. The test sends the messages, in the order that it wants."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._socket: WebSocketRoute | None = None

    def accept(self, socket: WebSocketRoute) -> None:
        self._socket = socket
        socket.on_message(lambda message: self.requests.put_nowait(orjson.loads(message)))

    def send(self, to: dict[str, Any], **message: Any) -> None:
        """Send a message that responds to the request `to`."""
        assert self._socket is not None
        self._socket.send(orjson.dumps({"request": to.get("request"), **message}).decode())


async def test_messages_of_a_view_that_was_left_are_ignored(open_window: Open, bare_stage: Stage) -> None:
    window, replies = await open_window(bare_stage), Replies()
    await window.context.add_init_script(WATCH_UNPAUSE)
    await window.context.route_web_socket("**/ws/dashboard", replies.accept)
    requests = []
    for service in ("echo", "gated", "echo"):
        page = await window.go(f"/services/{service}")
        requests.append(await replies.requests.get())
    state = {"now": 1.0, **await bare_stage.app.dashboard.service("echo")}
    first, second, third = requests
    view = {name: value for name, value in third.items() if name != "request"}
    replies.send(first, type="state", view=view, state=state)
    replies.send(second, type="patch", patch={"paused": True})
    replies.send(second, type="error", code="not_found", message="there is no service gated")
    replies.send(third, type="state", view=view, state={**state, "pool": "the pool of the third request"})
    await expect(page.get_by_role("main")).to_contain_text("the pool of the third request")
    assert not await page.evaluate("() => window.__unpause"), "a change to another service was shown"
