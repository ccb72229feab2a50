"""A browser for tests and pictures: Debian's Chromium without a window, steered by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.environment import BROWSERS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api._generated import LocatorAssertions


def find_chromium() -> str | None:
    """Where this machine has one; None: it has none."""
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


@contextmanager
def run_browser(executable: str) -> Iterator[Browser]:
    """Start it, and end it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable)
        yield browser
        browser.close()


def expect(locator: Locator) -> LocatorAssertions:
    """Playwright's own, which waits for what it expects; imported when it is needed."""
    from playwright.sync_api import expect

    expect.set_options(timeout=30_000)
    return expect(locator)
