"""`make recording`: the moving picture of the README, docs/dashboard.gif, recorded from the running sample project.

Several users submit jobs to the sample for a minute; then the dashboard is recorded: the overview, a service, a job.
Frames are pictures of the window, written as one GIF with a palette of its own.
"""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from pathlib import Path

import httpx2
from PIL import Image
from playwright.async_api import Page
from tests.browser import chromium, strict_window
from tests.browser.pages import settled
from tests.browser.screenshots import DOCS, PEOPLE, PROMPTS, ROOT, Crowd, example_job, sample

TARGET = DOCS / "dashboard.gif"
SIZE = {"width": 1280, "height": 800}
SHOWN = (1024, 640)
FRAME_MS = 400
SCENES = (("/", 14), ("/services/image_gen", 7), ("", 7))
"""The route and the number of frames of each scene. The empty route is the page of a job."""
COLOURS = 96
LARGEST = 2_000_000


async def frames(page: Page, count: int) -> list[Image.Image]:
    """Pictures of the window at equal intervals."""
    taken, loop = [], asyncio.get_running_loop()
    due = loop.time()
    for _ in range(count):
        taken.append(Image.open(io.BytesIO(await page.screenshot(caret="hide"))).convert("RGB").resize(SHOWN))
        due += FRAME_MS / 1000
        await asyncio.sleep(max(0.0, due - loop.time()))
    return taken


async def record(url: str, job: str) -> list[Image.Image]:
    recorded: list[Image.Image] = []
    async with (
        chromium.launched() as browser,
        strict_window.opened(browser, url, color_scheme="light", viewport=SIZE) as window,
    ):
        for route, count in SCENES:
            page = await window.go(route or f"/jobs/{job}")
            await settled(page)
            recorded += await frames(page, count)
    return recorded


def write(pictures: list[Image.Image]) -> None:
    """One palette for all frames: without it, colours flicker, and no frame can leave out what has not changed."""
    together = Image.new("RGB", (SHOWN[0], SHOWN[1] * 3))
    for place, picture in enumerate((pictures[0], pictures[len(pictures) // 2], pictures[-1])):
        together.paste(picture, (0, SHOWN[1] * place))
    palette = together.quantize(COLOURS)
    indexed = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    indexed[0].save(TARGET, save_all=True, append_images=indexed[1:], duration=FRAME_MS, loop=0, optimize=False)
    size = TARGET.stat().st_size
    print(f"{TARGET.relative_to(ROOT)}: {len(pictures)} frames, {size // 1000} KB")
    if size > LARGEST:
        raise SystemExit("the recording is too large for a README")


async def main() -> None:
    seconds = float(os.environ.get("RECORD_AFTER", "60"))
    with tempfile.TemporaryDirectory(prefix="fairlead-recording-") as folder:
        async with sample(Path(folder)) as url, httpx2.AsyncClient(base_url=url) as client:
            crowd = Crowd(client)
            await crowd.until_ready()
            for n in range(6):
                await crowd.submit("full_pipeline", *PEOPLE[n % 5], PROMPTS[n % 5])
            await crowd.work(seconds)
            going_on = asyncio.create_task(crowd.work(600))
            try:
                pictures = await record(url, await example_job(crowd))
            finally:
                going_on.cancel()
    write(pictures)


if __name__ == "__main__":
    asyncio.run(main())
