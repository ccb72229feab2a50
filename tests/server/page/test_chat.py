"""Chats on the page: streams, their end, what is sent, and what an answer may look like."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import expect
from tests.server.conftest import Live
from tests.server.page.conftest import Open

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.real

MakeLive = Callable[..., Live]


def ask(page: Page, question: str) -> dict[str, Any]:
    """Send a question by the keyboard; returns the request's body."""
    page.get_by_label("Message", exact=True).fill(question)
    with page.expect_request("**/v1/chat/completions") as sent:
        page.keyboard.press("Enter")
    assert sent.value.post_data is not None
    body: dict[str, Any] = json.loads(sent.value.post_data)
    return body


def answer(page: Page) -> Locator:
    """The last one."""
    return page.locator("article.answer").last


def done(page: Page) -> None:
    """Wait for the end of the answer."""
    expect(answer(page)).to_have_attribute("aria-busy", "false")


def test_an_answer_is_shown_as_it_comes(live: MakeLive, open_page: Open) -> None:
    running = live("hello 😀 world")
    running.engine.pause()
    page = open_page(running)
    assert ask(page, "hi")["messages"] == [{"role": "user", "content": "hi"}]
    running.engine.release(2)
    expect(answer(page).locator(".text").last).to_have_text("hello")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_hidden()
    expect(answer(page)).to_have_attribute("aria-busy", "true")
    running.engine.resume()
    done(page)
    expect(answer(page).locator(".text").last).to_have_text("hello 😀 world")
    expect(answer(page).locator(".note")).to_contain_text("tokens · first after")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.get_by_role("status").last).to_contain_text("tokens")  # what a screen reader says


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_stopping_ends_the_generation(live: MakeLive, open_page: Open, way: str) -> None:
    running = live(script=lambda _: repeat(70), max_model_len=100_000)
    running.engine.pause()
    page = open_page(running)
    ask(page, "hi")
    running.engine.release(2)
    expect(answer(page).locator(".text").last).not_to_be_empty()
    if way == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    running.wait_until(lambda engine: bool(engine.aborted))
    assert running.engine.num_open == 0
    expect(answer(page).locator(".note")).to_have_text("Stopped.")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()


def test_the_conversation_is_sent_and_a_new_one_forgets_it(live: MakeLive, open_page: Open) -> None:
    page = open_page(live("fine"))
    ask(page, "hi")
    done(page)
    assert [said["content"] for said in ask(page, "again")["messages"]] == ["hi", "fine", "again"]
    done(page)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("article")).to_have_count(0)
    assert [said["content"] for said in ask(page, "anew")["messages"]] == ["anew"]


def test_a_new_chat_stops_the_answer_of_the_old_one(live: MakeLive, open_page: Open) -> None:
    running = live(script=lambda _: repeat(70), max_model_len=100_000)
    running.engine.pause()
    page = open_page(running)
    ask(page, "hi")
    running.engine.release()
    expect(answer(page).locator(".text").last).not_to_be_empty()
    page.get_by_role("button", name="New chat").click()
    running.wait_until(lambda engine: bool(engine.aborted))
    expect(page.locator("article")).to_have_count(0)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_settings_are_sent_where_they_are_set(live: MakeLive, open_page: Open) -> None:
    page = open_page(live("fine"))
    expect(page.locator("#model option")).to_have_text(["tiny"])
    assert set(ask(page, "hi")) == {"model", "messages", "stream", "stream_options"}
    done(page)
    page.get_by_text("Settings").click()
    for label, value in (("Temperature", "0.5"), ("Top p", "0.9"), ("Max tokens", "2"), ("System prompt", "be brief")):
        page.get_by_label(label).fill(value)
    body = ask(page, "again")
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.5, 0.9, 2)
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    done(page)
    expect(answer(page).locator(".note")).to_contain_text("cut off: max tokens")


def test_a_setting_out_of_range_is_shown_and_nothing_is_sent(live: MakeLive, open_page: Open) -> None:
    running = live("fine")
    page = open_page(running)
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("3")
    page.get_by_text("Settings").click()
    page.get_by_label("Message", exact=True).fill("hi")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Temperature")).to_be_focused()
    assert running.engine.requests == []


def test_what_the_server_refuses_is_told_in_its_words(live: MakeLive, open_page: Open) -> None:
    page = open_page(live("fine"))
    page.get_by_text("Settings").click()
    page.get_by_label("Top p").fill("0")
    ask(page, "hi")
    done(page)
    expect(answer(page).locator(".problem")).to_contain_text("top_p")
    expect(page.get_by_label("Message", exact=True)).to_have_value("hi")  # to be sent again
    page.get_by_label("Top p").fill("1")
    assert [said["content"] for said in ask(page, "hi")["messages"]] == ["hi"]
    done(page)
    expect(answer(page).locator(".text").last).to_have_text("fine")


def test_an_engine_that_dies_in_mid_stream_is_told(live: MakeLive, open_page: Open) -> None:
    running = live("hello world")
    running.engine.pause()
    page = open_page(running)
    ask(page, "hi")
    running.engine.release(2)
    expect(answer(page).locator(".text").last).to_have_text("hello")
    running.engine.fail("the engine process ended with signal 9")
    done(page)
    expect(answer(page).locator(".problem")).to_contain_text("signal 9")
    expect(page.locator("#state")).to_have_text("failed")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param({}, "The server cannot be reached.", id="no connection"),
        pytest.param({"status": 502, "body": "<h1>Bad Gateway"}, "answered 502 Bad Gateway.", id="a proxy's answer"),
        pytest.param({"status": 200, "body": "data: {"}, "The connection ended before the answer did.", id="an end"),
    ],
)
def test_what_comes_between_is_told_in_words(live: MakeLive, open_page: Open, fault: Any, words: str) -> None:
    page = open_page(live("fine"))
    page.route("**/chat/completions", lambda route: route.fulfill(**fault) if fault else route.abort())
    ask(page, "hi")
    done(page)
    expect(answer(page).locator(".problem")).to_contain_text(words)


HTML = '<img src="x" onerror="document.title=1"><b>bold</b> &amp; <script>document.title=2</script>'


def test_html_in_an_answer_is_text(live: MakeLive, open_page: Open) -> None:
    page = open_page(live(f"{HTML}\n```html\n{HTML}\n```\n`{HTML}`", max_model_len=2000))
    ask(page, HTML)
    done(page)
    expect(page.locator("article.question .text")).to_have_text(HTML)
    expect(answer(page).locator(".text > div").first).to_have_text(HTML)
    expect(answer(page).locator("pre")).to_have_text(HTML)
    expect(answer(page).locator("div > code")).to_have_text(HTML)
    assert page.locator("#log :is(img, b, script, a)").count() == 0
    assert page.title() == "Strata"


MARKS = "# Head\nuse `a*b` and **c**:\n\n````py\n```\n  d\n````\nthen 2 ** 3\n~~~\nopen"


def test_code_and_emphasis_have_elements_while_they_come(live: MakeLive, open_page: Open) -> None:
    page = open_page(live(MARKS, max_model_len=2000))
    ask(page, "hi")
    done(page)
    expect(answer(page).locator("pre")).to_have_text(["```\n  d", "open"])
    expect(answer(page).locator("strong")).to_have_text(["Head", "c"])
    expect(answer(page).locator("div > code")).to_have_text(["a*b"])
    expect(answer(page).locator(".text > div").last).to_have_text("then 2 ** 3")


def test_reasoning_is_folded(live: MakeLive, open_page: Open, family_store: Callable[[str], Path]) -> None:
    text = "<think>\nHm, a greeting.\n</think>\n\nHello!"
    page = open_page(live(text, directory=family_store("qwen"), max_model_len=2000))
    ask(page, "hi")
    done(page)
    expect(answer(page).locator("> .text")).to_have_text("Hello!")
    thoughts = answer(page).locator(".reasoning .text")
    expect(thoughts).to_be_hidden()
    page.get_by_text("Reasoning").click()
    expect(thoughts).to_have_text("Hm, a greeting.")
    assert [said["content"] for said in ask(page, "again")["messages"]] == ["hi", "Hello!", "again"]
