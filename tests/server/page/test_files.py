"""The page's files: who gets them, with which headers, and that they are whole and load nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import strata.server.page
from strata.server.app import Access, create_app
from strata.server.keys import ApiKeys
from strata.server.page.routes import PAGE_PATHS
from tests.server.conftest import Serve

ROOT = Path(__file__).parents[3]
DIRECTORY = Path(strata.server.page.__file__).parent
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FILES = sorted(path for path in DIRECTORY.iterdir() if path.suffix[1:] in TYPES)


class Elements(HTMLParser):
    """The elements of a document with their attributes, and what stands in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style"):
            self.inline += data.strip()


def test_the_page_is_served_under_a_policy(serve: Serve) -> None:
    client = serve().client
    answer = client.get("/")
    assert answer.status_code == 200
    assert "<title>Strata</title>" in answer.text
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert not {"script-src", "style-src", "script-src-elem", "connect-src", "img-src"} & set(policy)
    assert (policy["frame-ancestors"], policy["base-uri"]) == ("'none'", "'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (client.head("/").status_code, client.head("/").content) == (200, b"")


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
def test_a_file_has_its_type_and_is_sent_once(serve: Serve, path: str) -> None:
    client = serve().client
    first = client.get(path)
    suffix = path.rpartition(".")[2] if path != "/" else "html"
    assert first.headers["content-type"].partition(";")[0] == TYPES[suffix]
    assert first.headers["cache-control"] == "no-cache"
    again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == first.content


def test_the_page_needs_no_key_but_what_it_asks_for_does(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sk-one")
    client = TestClient(create_app(serve().service, Access(ApiKeys(tmp_path / "keys"))))
    assert {client.get(path).status_code for path in PAGE_PATHS} == {200}
    for path in ("/v1/status", "/v1/models", "/page/other.js", "/page/", "/page/../keys.py"):
        assert client.get(path).status_code == 401, path


@pytest.mark.parametrize("name", ["other.js", "routes.py", "__init__.py", "..%2fkeys.py", ""])
def test_nothing_else_of_the_package_is_served(serve: Serve, name: str) -> None:
    answer = serve().client.get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_nothing_stands_inline() -> None:
    elements = Elements((DIRECTORY / "index.html").read_text("utf-8"))
    assert elements.inline == ""
    for tag, attributes in elements.found:
        assert tag != "style"
        assert not [name for name in attributes if name == "style" or name.startswith("on")], (tag, attributes)


def test_every_file_that_is_named_is_there_and_every_other_address_is_the_apis() -> None:
    elements = Elements((DIRECTORY / "index.html").read_text("utf-8"))
    named = {value for _, attributes in elements.found for name, value in attributes.items() if name in ("src", "href")}
    assert {value for value in named if value and not value.startswith("#")} <= {
        path.removeprefix("/") for path in PAGE_PATHS
    }
    for file in FILES:
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|[\"'(]//|@import|url\(", text), file.name
        for module in re.findall(r'from "([^"]+)"', text):
            assert (DIRECTORY / module).is_file(), (file.name, module)
    assert {f"/page/{file.name}" for file in FILES} | {"/"} == PAGE_PATHS


def test_no_html_is_made_from_text() -> None:
    for file in DIRECTORY.glob("*.js"):
        sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|Function\(|localStorage"
        assert not re.search(sinks, file.read_text("utf-8")), file.name


def test_the_docs_show_both_pictures_and_neither_is_large() -> None:
    page = ROOT / "docs" / "web-page.md"
    pictures = re.findall(r"!\[[^]]+\]\((\S+\.png)\)", page.read_text("utf-8"))
    assert pictures == ["web-page-light.png", "web-page-dark.png"]
    assert all((page.parent / picture).stat().st_size < 150_000 for picture in pictures)


def test_a_wheel_has_the_files(tmp_path: Path) -> None:
    """A wheel without the CPU kernels, which takes seconds less."""
    code = (
        "import sys; from scikit_build_core.build import build_wheel\n"
        "build_wheel(sys.argv[1], config_settings={'wheel.cmake': 'false'})"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"strata/server/page/{file.name}" for file in FILES} <= names
