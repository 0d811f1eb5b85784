"""A browser window whose complaints fail the test: console errors, exceptions, dialogs, violations of the
Content-Security-Policy, and requests to other hosts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Error, Page, Request

LOOPBACK = frozenset({"127.0.0.1", "localhost"})
LOCAL_SCHEMES = frozenset({"data", "blob", "about"})
PATIENCE_MS = 15_000
DESKTOP = {"width": 1280, "height": 800}

# The page is notified of violations before any report is sent, and no script of the page can disable this: it runs
# first, in every document.
WATCH = """
document.addEventListener('securitypolicyviolation', (event) => {
  window.__violated(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
});
"""


class Window:
    """One browser context and its page. `complaints` lists the problems so far."""

    def __init__(self, context: BrowserContext, page: Page) -> None:
        self._context = context
        self.page = page
        self.start("")

    def start(self, url: str) -> None:
        """Begin a test of the gateway at `url`, with no complaints so far."""
        self.url = url
        self.complaints: list[str] = []
        self.sockets: list[str] = []
        self.requests: list[str] = []
        self._expected: list[re.Pattern[str]] = []
        self._is_shared = True

    @property
    def context(self) -> BrowserContext:
        """The context, which the test may change: the next test gets another window."""
        self._is_shared = False
        return self._context

    async def go(self, route: str = "/") -> Page:
        """Go to a page of the dashboard, such as `/jobs`. Routes are fragments, so this reloads nothing."""
        await self.page.goto(f"{self.url}/#{route}")
        return self.page

    def expect(self, *patterns: str) -> None:
        """Complaints that are part of the test, such as a refused key."""
        self._expected += map(re.compile, patterns)

    @property
    def unexpected(self) -> list[str]:
        return [each for each in self.complaints if not any(pattern.search(each) for pattern in self._expected)]

    async def cleaned(self) -> bool:
        """Leave the gateway, and forget all of it. False if something may be left of the test."""
        complaints = [*self.complaints]
        try:
            # A document without scripts, of the same site as the next gateway: the page keeps its process.
            await self.page.goto(f"{self.url}/livez")
            await self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
            await self._context.clear_cookies()
            session = await self._context.new_cdp_session(self.page)
            await session.send("Network.clearBrowserCache")
            await session.detach()
        except Error:  # the test has closed the window, or stopped its gateway
            return False
        finally:
            self.complaints = complaints
        return self._is_shared and len(self._context.pages) == 1

    async def close(self) -> None:
        await self._context.close()

    # ------------------------------------------------------------ watched events

    async def watch(self) -> None:
        await self._context.expose_function("__violated", self._violated)
        await self._context.add_init_script(WATCH)
        # The browser's resolver blocks it: intercepting requests as well would disable the cache.
        self._context.on("request", self._requested)
        self._context.on("console", self._logged)
        self._context.on("weberror", lambda error: self.complaints.append(f"exception: {error.error}"))
        self._context.on("dialog", self._opened_dialog)
        self.page.on("websocket", lambda socket: self.sockets.append(socket.url))

    def _violated(self, what: str) -> None:
        self.complaints.append(f"csp: {what}")

    def _requested(self, request: Request) -> None:
        self.requests.append(request.url)
        if _is_elsewhere(request.url):
            self.complaints.append(f"elsewhere: {request.url}")

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            where: dict[str, Any] = dict(message.location)
            self.complaints.append(f"console {message.type}: {message.text} ({where.get('url', '')})")

    async def _opened_dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.type} {dialog.message}")
        await dialog.dismiss()


def _is_elsewhere(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in LOCAL_SCHEMES and parts.hostname not in LOOPBACK


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[Window]:
    """`options` are those of a browser context: `color_scheme="dark"`, `viewport=...`"""
    window = await _new(browser, options)
    try:
        window.start(url)
        yield window
    finally:
        await window.close()


class Windows:
    """The windows of a browser. A window without options is kept for later tests: its process has started, and has read
    what all pages need, which takes a third of the CPU time of a first page."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._kept: list[Window] = []

    @asynccontextmanager
    async def opened(self, url: str, **options: Any) -> AsyncIterator[Window]:
        window = await _new(self._browser, options) if options or not self._kept else self._kept.pop()
        window.start(url)
        try:
            yield window
        finally:
            if options or not await window.cleaned():
                await window.close()
            else:
                self._kept.append(window)


async def _new(browser: Browser, options: dict[str, Any]) -> Window:
    options = {"viewport": DESKTOP, "reduced_motion": "reduce", "locale": "en-GB", "timezone_id": "UTC"} | options
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    window = Window(context, await context.new_page())
    await window.watch()
    return window
