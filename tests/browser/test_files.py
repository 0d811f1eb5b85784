"""The files of a job on its page: images, audio and text, under the page's Content-Security-Policy."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

from playwright.async_api import expect

from fairlead.artifacts.files import NewFile
from tests.browser.conftest import Open, Raise

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_images_audio_and_text_are_shown_and_pages_are_not(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage()

    async def saved(name: str, content: bytes) -> dict[str, Any]:
        async def chunks() -> AsyncIterator[bytes]:
            yield content

        return (await stage.app.files.save(NewFile("ada", name), chunks())).reference()

    given = {
        "image": await saved("cat.png", PIXEL),
        "deep": [{"audio": await saved("meow.mp3", b"ID3")}, await saved("notes.txt", b"<b>line one</b>")],
        "page": await saved("evil.html", b"<script>window.__pwned = 1</script>"),
    }
    job_id = await stage.submit("echo", input_data=given)
    await stage.ended(job_id)
    window = await open_window(stage)
    page = await window.go(f"/jobs/{job_id}")
    files = page.get_by_role("list", name="Files")
    await expect(files.get_by_role("listitem")).to_have_count(4)
    image = files.get_by_role("img", name="cat.png")
    await expect(image).to_be_visible()
    await page.wait_for_function("() => document.querySelector('.files img').naturalWidth === 1")
    await expect(files.locator("audio")).to_have_attribute("src", f"/files/{given['deep'][0]['audio']['$file']}")
    await files.get_by_text("Beginning of notes.txt").click()
    notes = files.get_by_role("listitem").filter(has_text="notes.txt")
    await expect(notes.locator("pre")).to_have_text("<b>line one</b>")
    await expect(files.get_by_role("link", name="evil.html")).to_have_attribute("download", "evil.html")
    assert await page.evaluate("() => window.__pwned") is None
    assert window.unexpected == []
