"""Who may use the page, and who can: keys, scripts of others, keyboard, names, contrast, dark and narrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from strata.engine.fake import FakeEngine
from strata.server.app import Access
from strata.server.keys import ApiKeys
from tests.browser import expect
from tests.server.conftest import Live, run_live
from tests.server.page.conftest import Open
from tests.server.page.test_chat import answer, ask, done
from tests.server.test_metrics import EXPERTS

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.real

MakeLive = Callable[..., Live]
Scheme = Literal["light", "dark"]
SCRIPT = (Path(__file__).parent / "audit.js").read_text("utf-8")


def audit(page: Page, check: str) -> Any:
    """Run one of the checks of audit.js."""
    return page.evaluate(f"() => {{ {SCRIPT}\nreturn {check}; }}")


# --- keys


def test_a_key_is_asked_for_and_stays_in_the_tab(
    make_engine: Callable[..., FakeEngine], open_page: Open, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("sk-one")
    with run_live(make_engine("fine"), Access(ApiKeys(tmp_path / "keys"))) as live:
        page = open_page(live)
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_contain_text("The server asks for an API key.")
        expect(page.get_by_label("Key", exact=True)).to_be_focused()
        page.keyboard.type("sk-two")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("none of those that this server takes")
        page.keyboard.type("sk-one")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#state")).to_have_text("ready")
        ask(page, "hi")
        done(page)
        expect(answer(page).locator(".text").last).to_have_text("fine")
        kept = page.evaluate("[Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
        assert kept == [["sk-one"], [], ""]
        page.reload()
        expect(page.locator("#state")).to_have_text("ready")
        expect(dialog).to_be_hidden()
        expect(open_page(live).get_by_role("dialog", name="API key")).to_be_visible()  # another tab has none

        (tmp_path / "keys").write_text("sk-three")
        expect(dialog).to_be_visible()
        page.get_by_role("button", name="Forget it").click()
        expect(dialog).to_contain_text("The server asks for an API key.")
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#trouble")).to_contain_text("The server asks for an API key.")
        expect(page.locator("#state")).to_have_text("no key")
        page.get_by_role("button", name="API key").click()
        expect(dialog).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


# --- proxies


def test_it_works_under_any_path(live: MakeLive, open_page: Open) -> None:
    running = live("fine")
    page = open_page(running)

    def serve_under(route: Route) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace("/some/path", "")))

    page.route("**/*", lambda route: serve_under(route) if "/some/path/" in route.request.url else route.abort())
    page.goto(f"{running.url}/some/path/")
    expect(page.locator("#state")).to_have_text("ready")
    ask(page, "hi")
    done(page)
    expect(answer(page).locator(".text").last).to_have_text("fine")


# --- scripts


def test_a_script_that_is_not_the_pages_own_does_not_run(live: MakeLive, open_page: Open) -> None:
    refused: list[str] = []

    def add_script(route: Route) -> None:
        response = route.fetch()
        extra = '<script>window.ran = 1</script><p id="p" style="color: red" onclick="window.ran = 2">p</p>'
        route.fulfill(response=response, body=response.text().replace("<header>", f"{extra}<header>"))

    def prepare(page: Page) -> None:
        page.on("console", lambda message: refused.append(message.text))
        page.route("**/", add_script)

    page = open_page(live(), prepare=prepare)
    expect(page.locator("#state")).to_have_text("ready")  # its own do
    page.locator("#p").click()
    assert page.evaluate("window.ran") is None
    assert page.locator("#p").evaluate("p => getComputedStyle(p).color") != "rgb(255, 0, 0)"
    assert len([text for text in refused if "Content Security Policy" in text]) >= 3
    assert page.evaluate("() => { try { document.body.innerHTML = '' } catch (error) { return error.name } }") == (
        "TypeError"
    )


# --- people


def everything(page: Page) -> None:
    """Show all that the page has: settings, an answer with code, figures of each layer."""
    ask(page, "hi")
    done(page)
    page.get_by_text("Settings").click()
    page.get_by_label("Of which time").select_option("start")
    page.get_by_text("Figures of each layer").click()
    expect(page.locator("#layer-rows tr")).to_have_count(2)


@pytest.fixture
def full_page(live: MakeLive, open_page: Open) -> Callable[..., Page]:
    running = live("see\n```\nx = 1\n```\nand `y`", experts=EXPERTS)

    def start(**options: Any) -> Page:
        page = open_page(running, **options)
        expect(page.locator("#state")).to_have_text("ready")
        return page

    return start


def test_every_control_has_a_name_and_every_reference_a_target(full_page: Callable[..., Page]) -> None:
    page = full_page()
    everything(page)
    assert audit(page, "unnamed()") == []
    assert audit(page, "broken()") == []
    assert audit(page, "headings()") == [["H1", 1], ["skipped", 0]]
    assert page.locator("html").get_attribute("lang") == "en"
    assert {page.locator(landmark).count() for landmark in ("header", "main", "aside", "[role=log]")} == {1}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(full_page: Callable[..., Page], scheme: Scheme) -> None:
    page = full_page(scheme=scheme)
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Top p").fill("0")
    page.get_by_text("Settings").click()
    ask(page, "hi")
    done(page)  # refused: an error is shown
    page.get_by_text("Settings").click()
    page.get_by_label("Top p").fill("1")
    page.get_by_text("Settings").click()
    everything(page)
    assert audit(page, "texts()") > 60
    assert audit(page, "faint()") == []
    brightness = audit(page, "luminance(backgroundOf(document.querySelector('#log')))")
    assert brightness > 0.8 if scheme == "light" else brightness < 0.05
    assert audit(page, "edges()") == []


def test_it_works_by_the_keyboard_alone(full_page: Callable[..., Page]) -> None:
    page = full_page()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the message")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.keyboard.press("Enter")
    assert '"content":"one\\ntwo"' in (sent.value.post_data or "")
    done(page)
    reached: set[str] = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        name, has_outline = audit(page, "focused()")
        assert has_outline or name.startswith("BODY"), f"nobody sees that {name} has the focus"
        reached.add(name)
    assert {"A Skip to the message", "DIV Conversation", "SUMMARY Settings", "TEXTAREA Message"} <= reached
    assert {"BUTTON New chat", "BUTTON Send", "SELECT Of which time", "SUMMARY Figures of each layer"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_shows_one_thing_at_a_time(full_page: Callable[..., Page], scheme: Scheme) -> None:
    page = full_page(scheme=scheme, width=360)
    main, side = page.get_by_role("main"), page.locator("#live")
    toggle = page.get_by_role("button", name="Live view")
    ask(page, "hi")
    done(page)
    expect(main).to_be_visible()
    expect(side).to_be_hidden()
    assert audit(page, "small()") == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    toggle.click()
    expect(side).to_be_visible()
    expect(main).to_be_hidden()
    expect(toggle).to_have_attribute("aria-expanded", "true")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert audit(page, "faint()") == []
