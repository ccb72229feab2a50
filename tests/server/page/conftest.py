"""Pages in a browser, of which none may fail by itself or ask anybody but its server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import pytest

from tests.server.conftest import Live

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

Open = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser, live: Callable[..., Live]) -> Iterator[Open]:
    """Open a server's page in a window of its own. ``prepare`` is called with it before it asks for anything.

    It is closed before a server of ``live`` ends, which waits for those who read.
    """
    contexts: list[BrowserContext] = []
    strange: list[str] = []  # requests to others, and errors that nothing has caught

    def start(
        live: Live,
        *,
        scheme: Literal["light", "dark"] = "light",
        width: int = 1280,
        prepare: Callable[[Page], object] = lambda page: None,
    ) -> Page:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda asked: strange.extend([] if asked.url.startswith(f"{live.url}/") else [asked.url]))
        page.on("pageerror", lambda error: strange.append(str(error)))
        prepare(page)
        page.goto(live.url)
        return page

    yield start
    for context in contexts:
        context.close()
    assert strange == []
