"""What pages tell to run can be run: make's targets, files of the repository, commands of strata with their options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache

import pytest

from docs import site
from strata.cli.main import build_parser

# A changelog tells of what was.
PAGES = sorted(site.sources().keys() - {"CHANGELOG.md"})
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (site.ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
FOLDERS = r"(?:manifests|charts|tests|docs|dashboards|images|engine/strata|operator/strata_operator)/"


def code(text: str) -> list[str]:
    """Fenced blocks, spans, indented lines; lines that go on in the next one are joined."""
    found = [block[0] for block in site.FENCED.finditer(text)]
    text = site.blanked(site.FENCED, text)
    found += [span[0].strip("`") for span in site.INLINE.finditer(text)]
    found += re.findall(r"^ {4}(.*)$", text, re.MULTILINE)
    return [part.replace("\\\n", " ") for part in found]


@cache
def commands() -> dict[str, set[str]]:
    """Each command of strata, "bench decode" among them, with its long options."""

    def below(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, set[str]]]:
        yield name, {option for action in parser._actions for option in action.option_strings}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, part in action.choices.items():
                    yield from below(part, f"{name} {word}".strip())

    return dict(below(build_parser(), ""))


def faults(text: str) -> list[str]:
    found = []
    for part in code(text):
        asked = re.findall(r"^(?:.*&& )?make ([a-z][a-z-]*)", part, re.MULTILINE)
        found += [f"make {target}" for target in asked if target not in TARGETS]
        paths = re.findall(rf"(?<![\w/.~-]){FOLDERS}[\w./-]*\w", part)
        found += [path for path in paths if not (site.ROOT / path).exists()]
        for line in re.findall(r"^(?:[A-Z_]+=\S+ )*strata ([a-z][^#\n|]*)", part, re.MULTILINE):
            words = line.split()
            name = next((name for name in (" ".join(words[:2]), words[0]) if name in commands()), None)
            if name is None:
                found.append(f"strata {words[0]}")
                continue
            options = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
            found += [f"strata {name} {option}" for option in sorted(options - commands()[name])]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_tells_to_run_is_there(page: str) -> None:
    assert faults((site.ROOT / page).read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`make nothing`", "make nothing"),
        ("```\ncd x && make nothing\n```", "make nothing"),
        ("    helm install x charts/nothing", "charts/nothing"),
        ("`strata nothing`", "strata nothing"),
        ("```\nstrata serve m \\\n  --nothing 1\n```", "strata serve --nothing"),
        ("    STRATA_API_KEY=k strata bench serve --nothing", "strata bench serve --nothing"),
    ],
)
def test_what_is_not_there_is_found(text: str, fault: str) -> None:
    assert faults(text) == [fault]
