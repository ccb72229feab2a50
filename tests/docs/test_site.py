"""Every link and anchor of the pages leads somewhere, every page is in the navigation, and the site has them all."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from docs import site

PAGES = sorted({*site.sources(), "tests/data/README.md", "tests/cluster/README.md"})


@cache
def text_of(page: str) -> str:
    return (site.ROOT / page).read_text("utf-8")


@cache
def anchors(page: str) -> frozenset[str]:
    """Those that every renderer gives: of headings that come once."""
    slugs = Counter(site.slug(heading) for heading in site.headings(text_of(page)))
    return frozenset(slug for slug, times in slugs.items() if times == 1)


def faults(page: str, text: str) -> list[str]:
    """What is wrong with the links of a page, and what Python-Markdown reads otherwise than code hosts do."""
    found = []
    for link in site.links(text):
        if (goal := site.target(page, link[0])) is None:
            continue
        path, anchor = goal
        if not (site.ROOT / path).exists():
            found.append(f"{page}: {link[0]} leads to no file")
        elif anchor and (not path.endswith(".md") or anchor not in anchors(path)):
            found.append(f"{page}: {link[0]}: {path} has no heading #{anchor}, or several")
    lines = ["", *site.without_code(text).splitlines()]
    for before, line in pairwise(lines):
        listed = re.match(r"- |\d+\. |\|", line)
        if listed and before.strip() and not re.match(r"- |\d+\. |\||  |<!--", before):
            found.append(f"{page}: no empty line before {line[:40]!r}, which the site takes for text")
    return found


def places(nav: list[Any]) -> list[str]:
    """The pages that a navigation names."""
    parts = [part for entry in nav for part in (entry.values() if isinstance(entry, dict) else [entry])]
    return [page for part in parts for page in ([part] if isinstance(part, str) else places(part))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert faults(page, text_of(page)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[x](nothing.md)", "leads to no file"),
        ("[x](../README.md#nothing)", "has no heading #nothing"),
        ("[x](#nothing)", "has no heading #nothing"),
        ("[x](../LICENSE#nothing)", "has no heading #nothing"),
        ("words\n- a list", "no empty line before '- a list'"),
        ("words\n| a | b |", "no empty line before '| a | b |'"),
    ],
)
def test_faults_are_found(text: str, fault: str) -> None:
    (found,) = faults("docs/api.md", text)
    assert fault in found


@pytest.mark.parametrize(
    "text",
    [
        "[x](api.md#errors) [y](#errors) [z](decisions/) [w](https://nowhere.example)",
        "`[x](nothing.md)`",
        "```\n[x](nothing.md)\n```",
        "- a\n  b\n- c\n\n1. d\n2. e\n\n| f |\n|---|",
    ],
)
def test_what_is_right_is_no_fault(text: str) -> None:
    assert faults("docs/api.md", text) == []


def test_every_page_is_in_the_navigation_once() -> None:
    settings = yaml.safe_load((site.ROOT / "mkdocs.yml").read_text("utf-8"))
    named = Counter(places(site.expanded(settings["nav"])))
    assert {page: times for page, times in named.items() if times > 1} == {}
    wanted = set(site.sources().values())
    assert (wanted - named.keys(), named.keys() - wanted) == (set(), set()), (
        "mkdocs.yml's nav lacks pages, or has others"
    )


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("`strata bench shape NAME`", "strata-bench-shape-name"),
        ("Experts beyond VRAM, mechanism by mechanism", "experts-beyond-vram-mechanism-by-mechanism"),
        ("A [link](x.md) – and a dash", "a-link--and-a-dash"),
        ("bf16 experts, 4 GiB of them in VRAM", "bf16-experts-4-gib-of-them-in-vram"),
        ("模型与显存", "模型与显存"),
    ],
)
def test_anchors_are_those_of_code_hosts(heading: str, anchor: str) -> None:
    assert site.slug(heading) == anchor


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("index.md", "[a](docs/api.md#errors)", "[a](api.md#errors)"),
        ("index.md", "[d](docs/decisions/)", "[d](decisions/index.md)"),
        ("index.md", "[e](manifests/examples/strata-model.yaml)", "[e](files/manifests/examples/strata-model.yaml.md)"),
        ("decisions/0007-tiles-for-the-cpu.md", "[c](../../CHANGELOG.md)", "[c](../changelog.md)"),
        (
            "api.md",
            "[x](#errors) [y](https://a.example/docs/api.md)",
            "[x](#errors) [y](https://a.example/docs/api.md)",
        ),
        ("files/LICENSE.md", "[a](docs/api.md)", "[a](docs/api.md)"),
        ("chart.md", "<!-- x -->\n| a |\n|---|", "<!-- x -->\n\n| a |\n|---|"),
        ("api.md", "| | |\n|---|---|", "|<i></i>|<i></i>|\n|---|---|"),
    ],
)
def test_links_are_those_of_the_site(place: str, text: str, expected: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place))
    assert site.on_page_markdown(text, page) == expected


def test_decisions_are_titled_by_their_numbers() -> None:
    pages = sorted((site.ROOT / "docs" / "decisions").glob("*.md"))
    titles = {page.name: site.headings(page.read_text("utf-8"))[0] for page in pages}
    assert [name for name, title in titles.items() if not title.startswith(f"{int(name[:4])}. ")] == []


def test_what_pages_link_to_has_a_page() -> None:
    linked = site.linked()
    assert linked["LICENSE"] == "files/LICENSE.md"
    assert linked["docs/decisions"] == "decisions/index.md"
    assert not linked.keys() & site.sources().keys()
    assert "](0007-tiles-for-the-cpu.md)" in site.shown("docs/decisions")
    assert "kind: StrataModel" in site.shown("manifests/examples/strata-model.yaml")
