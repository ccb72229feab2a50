"""README.zh-CN.md is in step with README.md: the same headings, code and links, and translated since that changed."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

import pytest

from docs import site

ENGLISH, CHINESE = ((site.ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
EACH_OTHER = {"README.md", "README.zh-CN.md"}


def levels(text: str) -> list[int]:
    """How deep each heading is."""
    return [len(marks) for marks in re.findall(r"^(#+) ", site.blanked(site.FENCED, text), re.MULTILINE)]


def code(text: str) -> list[str]:
    return [found[0] for found in site.FENCED.finditer(text)]


def links(text: str) -> Counter[str]:
    """Each target, but those from one language to the other."""
    return Counter(link[0] for link in site.links(text) if link[0] not in EACH_OTHER)


def digest(text: str) -> str:
    """Of the words: lines may be broken elsewhere."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]


def differences(english: str, chinese: str) -> list[str]:
    found = []
    if levels(english) != levels(chinese):
        found.append(f"headings: {levels(english)} and {levels(chinese)}")
    found += [f"code: {a!r} and {b!r}" for a, b in zip(code(english), code(chinese), strict=False) if a != b]
    if len(code(english)) != len(code(chinese)):
        found.append(f"code: {len(code(english))} blocks and {len(code(chinese))}")
    found += [f"only README.md links to {link}" for link in links(english) - links(chinese)]
    found += [f"only README.zh-CN.md links to {link}" for link in links(chinese) - links(english)]
    return found


def test_both_have_the_same_headings_code_and_links() -> None:
    assert differences(ENGLISH, CHINESE) == []


def test_the_translation_is_of_this_text() -> None:
    (of,) = re.findall(r"<!-- README.md: (\w+) -->", CHINESE)
    assert of == digest(ENGLISH), (
        f"README.md has changed since README.zh-CN.md was brought up to date: translate what is new, "
        f"then write {digest(ENGLISH)} into its last line"
    )


@pytest.mark.parametrize(
    ("chinese", "words"),
    [
        ("# A\n\n```\nx\n```\n\n[b](c.md)\n", "headings: [1, 2] and [1]"),
        ("# A\n\n## B\n\n```\ny\n```\n\n[b](c.md)\n", "code: '```\\nx\\n```' and '```\\ny\\n```'"),
        ("# A\n\n## B\n\n[b](c.md)\n", "code: 1 blocks and 0"),
        ("# A\n\n## B\n\n```\nx\n```\n", "only README.md links to c.md"),
        ("# A\n\n## B\n\n```\nx\n```\n\n[b](c.md) [d](e.md)\n", "only README.zh-CN.md links to e.md"),
    ],
)
def test_a_difference_is_told(chinese: str, words: str) -> None:
    english = "# A\n\n## B\n\n```\nx\n```\n\n[b](c.md) [zh](README.zh-CN.md)\n"
    assert differences(english, chinese) == [words]
    assert differences(english, english) == []
    assert digest(english) == digest(english.replace("\n", "\n\n")) != digest(english + "more")
