"""Keys, sessions and their cookie."""

from __future__ import annotations

from playwright.async_api import expect

from tests.browser.conftest import Open, Raise
from tests.browser.gateway_site import Stage
from tests.browser.pages import settled
from tests.browser.sign_in import NOT_YET, enter, key_field, sign_in

ADMIN_KEY = "an-admin-key-that-only-this-test-knows"
WRONG_KEY = "a-key-that-was-never-issued"

ASK_WHO = "async () => (await fetch('/session')).status"


async def test_without_keys_no_sign_in_is_needed(open_window: Open, bare_stage: Stage) -> None:
    window = await open_window(bare_stage)
    page = await window.go()
    await settled(page)
    await expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
    assert await window.context.cookies() == []


async def test_a_wrong_key_is_refused_with_a_message_and_leaves_no_session(
    open_window: Open, raise_stage: Raise
) -> None:
    window = await open_window(await raise_stage(admin_key=ADMIN_KEY))
    page = await enter(window, WRONG_KEY)
    await expect(page.get_by_role("alert")).to_contain_text("unknown or revoked")
    await expect(key_field(page)).to_be_focused()
    assert await window.context.cookies() == []


async def test_a_valid_key_opens_the_requested_page(open_window: Open, raise_stage: Raise) -> None:
    window = await open_window(await raise_stage(admin_key=ADMIN_KEY))
    page = await sign_in(window, ADMIN_KEY, "/workers")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Workers")


async def test_no_script_can_read_the_session_and_no_other_site_can_use_it(
    open_window: Open, raise_stage: Raise
) -> None:
    window = await open_window(await raise_stage(admin_key=ADMIN_KEY))
    page = await sign_in(window, ADMIN_KEY)
    [cookie] = await window.context.cookies()
    assert cookie.get("httpOnly") is True
    assert cookie.get("sameSite") == "Strict"
    assert cookie.get("path") == "/"
    assert ADMIN_KEY not in str(cookie.get("value"))
    kept = await page.evaluate("() => JSON.stringify([document.cookie, localStorage, sessionStorage, location.href])")
    assert ADMIN_KEY not in kept
    assert str(cookie.get("value")) not in kept


async def test_a_session_survives_a_reload(open_window: Open, raise_stage: Raise) -> None:
    window = await open_window(await raise_stage(admin_key=ADMIN_KEY))
    page = await sign_in(window, ADMIN_KEY)
    await page.reload()
    await settled(page)


async def test_signing_out_ends_the_session(open_window: Open, raise_stage: Raise) -> None:
    window = await open_window(await raise_stage(admin_key=ADMIN_KEY))
    page = await sign_in(window, ADMIN_KEY)
    cookies = await window.context.cookies()
    window.expect(r"401 .*/queue/status")  # requests of the page that were in progress
    await page.get_by_role("button", name="Sign out").click()
    await expect(key_field(page)).to_be_visible()
    assert await window.context.cookies() == []
    # A copy of the cookie is worthless.
    await window.context.add_cookies(cookies)  # type: ignore[arg-type]
    assert await page.evaluate(ASK_WHO) == 401


async def test_revoking_its_key_ends_an_open_session(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(admin_key=ADMIN_KEY)
    made = await stage.app.create_key("admin", name="night shift")
    window = await open_window(stage)
    page = await sign_in(window, made.text)
    await expect(page.get_by_role("banner")).to_contain_text("night shift")
    await stage.app.revoke_key(made.key.id)
    await expect(key_field(page)).to_be_visible()


async def test_another_site_cannot_act_with_the_session(open_window: Open, raise_stage: Raise) -> None:
    """Browsers do not send the cookie from other sites; even if they did, the origin would be wrong."""
    stage = await raise_stage(admin_key=ADMIN_KEY)
    window = await open_window(stage)
    await sign_in(window, ADMIN_KEY)
    [cookie] = await window.context.cookies()
    answer = await window.context.request.post(
        f"{stage.url}/admin/services/echo/pause",
        headers={"Origin": "http://elsewhere.example", "Cookie": f"{cookie.get('name')}={cookie.get('value')}"},
    )
    assert answer.status == 403
    assert ("service.pause", "echo") not in await stage.actions()


async def test_the_form_reveals_nothing_about_the_deployment(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(admin_key=ADMIN_KEY)
    window = await open_window(stage)
    window.expect(NOT_YET)
    page = await window.go("/services/gated")
    await expect(key_field(page)).to_be_visible()
    assert "gated" not in await page.locator("body").inner_text()
    assert window.sockets == []
