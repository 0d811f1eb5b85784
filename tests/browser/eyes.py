"""A browser window whose every complaint fails the test: console errors, exceptions, dialogs, violations of the
Content-Security-Policy, requests to elsewhere."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request

LOOPBACK = frozenset({"127.0.0.1", "localhost"})
LOCAL_SCHEMES = frozenset({"data", "blob", "about"})
PATIENCE_MS = 15_000
DESK = {"width": 1280, "height": 800}

# The page hears of violations before any report could be sent, and no script of the page can switch this off: it runs
# first, in every document.
WATCH = """
document.addEventListener('securitypolicyviolation', (event) => {
  window.__violated(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
});
"""


class Window:
    """One browser context and its page. `complaints` is what went wrong so far."""

    def __init__(self, context: BrowserContext, page: Page, url: str) -> None:
        self.context = context
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.sockets: list[str] = []
        self.requests: list[str] = []
        self._expected: list[re.Pattern[str]] = []

    async def go(self, route: str = "/") -> Page:
        """To a page of the dashboard, such as `/jobs`. Routes are fragments, so this reloads nothing."""
        await self.page.goto(f"{self.url}/#{route}")
        return self.page

    def expect(self, *patterns: str) -> None:
        """Complaints that belong to the story, such as a refused key."""
        self._expected += map(re.compile, patterns)

    @property
    def unexpected(self) -> list[str]:
        return [each for each in self.complaints if not any(pattern.search(each) for pattern in self._expected)]

    # ------------------------------------------------------------ what is watched

    async def watch(self) -> None:
        await self.context.expose_function("__violated", self._violated)
        await self.context.add_init_script(WATCH)
        # It is blocked by the browser's resolver: to intercept requests as well would switch its cache off.
        self.context.on("request", self._requested)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self.complaints.append(f"exception: {error.error}"))
        self.context.on("dialog", self._asked)
        self.page.on("websocket", lambda socket: self.sockets.append(socket.url))

    def _violated(self, what: str) -> None:
        self.complaints.append(f"csp: {what}")

    def _requested(self, request: Request) -> None:
        self.requests.append(request.url)
        if _is_elsewhere(request.url):
            self.complaints.append(f"elsewhere: {request.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            where: dict[str, Any] = dict(message.location)
            self.complaints.append(f"console {message.type}: {message.text} ({where.get('url', '')})")

    async def _asked(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.type} {dialog.message}")
        await dialog.dismiss()


def _is_elsewhere(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in LOCAL_SCHEMES and parts.hostname not in LOOPBACK


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[Window]:
    """`options` are those of a browser context: `color_scheme="dark"`, `viewport=...`"""
    options = {"viewport": DESK, "reduced_motion": "reduce", "locale": "en-GB", "timezone_id": "UTC"} | options
    context = await browser.new_context(**options)
    try:
        context.set_default_timeout(PATIENCE_MS)
        window = Window(context, await context.new_page(), url)
        await window.watch()
        yield window
    finally:
        await context.close()
