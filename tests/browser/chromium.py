"""The Chromium that the tests drive: the system's own. It reaches this machine only."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright

from tests.servers import missing

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHOICE = "FAIRLEAD_TEST_CHROMIUM"
ADVICE = (
    "there is no Chromium here, so the dashboard was not tried in a browser; "
    f"install one (`apt install chromium`), or say where it is in {CHOICE}"
)

# No other host resolves, neither by name nor by address.
LOOPBACK_ONLY = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--disable-gpu")

# A browser window loads the suggestions of its address bar as two pages of their own, which takes twice the CPU time of
# a page of the dashboard, and no test types an address. This list replaces Playwright's, so it repeats what matters.
WITHOUT = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "SpareRendererForSitePerProcess"),
    *("AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades", "MediaRouter"),
    *("HttpsFirstBalancedModeAutoEnable", "OptimizationHints", "PaintHolding", "ThirdPartyStoragePartitioning"),
)


def program() -> str:
    chosen = os.environ.get(CHOICE)
    found = shutil.which(chosen) if chosen else next(filter(None, map(shutil.which, NAMES)), None)
    return found or str(missing(ADVICE))


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    # Chromium's sandbox does not work for root; all other users keep it.
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    path = program()
    args = [LOOPBACK_ONLY, *QUIET, *alone, f"--disable-features={','.join(WITHOUT)}"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=args, chromium_sandbox=not alone)
        try:
            yield browser
        finally:
            await browser.close()
