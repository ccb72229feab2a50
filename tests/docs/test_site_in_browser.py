"""The site in a real browser: every page, on a phone and from a machine without a network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from docs import site
from tests.browser import expect
from tests.http_server import running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.real

SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


class Files(SimpleHTTPRequestHandler):
    """Those of a folder, which do not change meanwhile."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=site.ROOT, env={"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture(scope="module")
def url(built: Path) -> Iterator[str]:
    """The site's, served as any web server does."""
    with running(partial(Files, directory=str(built))) as address:
        yield f"{address}/"


def watched(page: Page, url: str) -> list[str]:
    """What goes wrong in it, as it happens: requests to others, files that are not there, errors."""
    found: list[str] = []
    page.on("request", lambda asked: found.extend([] if asked.url.startswith((url, "data:")) else [asked.url]))
    page.on("response", lambda got: found.extend([f"{got.status} {got.url}"] if got.status >= 400 else []))
    page.on("console", lambda said: found.extend([f"{page.url}: {said.text}"] if said.type == "error" else []))
    page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
    return found


def test_every_page_opens_on_a_phone(built: Path, url: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    found = watched(page, url)
    pages = sorted(path.relative_to(built).as_posix() for path in built.rglob("*.html"))
    assert len(pages) > len(site.sources())
    for path in pages:
        page.goto(url + path)
        if page.evaluate(SIDEWAYS):
            found.append(f"{path} is wider than the window")
    page.close()
    assert found == []


def test_the_search_finds_a_page_and_marks_what_was_sought(url: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    found = watched(page, url)
    page.goto(url)
    page.get_by_role("textbox", name="Search").fill("StrataGpuHeldDown")
    page.locator(".md-search-result__link[href*='runbooks/StrataGpuHeldDown']").first.click()
    expect(page.locator("h1")).to_contain_text("StrataGpuHeldDown")
    expect(page.locator("article mark").first).to_contain_text("StrataGpuHeldDown")
    page.close()
    assert found == []
