"""The blocks of code of all pages, and what the comment before each says of it.

``<!-- run: RUNNER; FROM = TO; ... -->``: a test runs it, with those words in place of what is not here, such as a model
to be downloaded. ``<!-- not run: REASON -->``: why none does. RUNNERS and REASONS are all that there are.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from docs import site

# A changelog shows nothing to run; the translation has the blocks of README.md (test_translation.py).
PAGES = sorted(site.sources().keys() - {"CHANGELOG.md", "README.zh-CN.md"})
RUNNERS = {
    "shell": "bash, in a network of its own without any other machine; `make` says what it would do",
    "client": "the same beside a server of the built-in model at port 8000",
    "python": "Python beside such a server",
    "model": "a StrataModel or a part of one: the definition takes it, and the operator reads it",
    "promql": "Prometheus reads each query",
    "values": "helm renders the chart with these options",
    "cluster": "bash where `make demo` has been; tests/e2e/test_pages.py has variables that stand for what is there",
    "output": "what the blocks of `cluster` before it print, if columns are as wide as you like; `…` is anything",
}
REASONS = {
    "model": "it needs a model that calls tools, or has experts beyond VRAM",
    "card": "it needs an NVIDIA card, or its driver",
    "host": "it sets up a machine: a service, a container runtime, a registry, packages",
    "add-on": "it needs Prometheus's operator, or metrics-server, which the tests' cluster has not",
    "shown": "it shows what something looks like, and is nothing to run",
}
_COMMENT = re.compile(r"<!-- (run|not run): ((?:(?!-->).)+?) -->\n\n?[ ]*$")
_LANGUAGE = re.compile(r"[ ]*`+([\w-]*)")


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    text: str  # as it is written, without its fences
    runner: str = ""
    reason: str = ""
    changes: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def code(self) -> str:
        """With the changes made. Raises ValueError for one that changes nothing."""
        text = self.text
        for old, new in self.changes:
            if old not in text:
                raise ValueError(f"{self}: nothing in the block is {old!r}, which is to be {new!r}")
            text = text.replace(old, new)
        return text


def blocks_of(page: str, text: str) -> list[Block]:
    found = []
    for match in site.FENCED.finditer(text):
        body = textwrap.dedent(match[0].partition("\n")[2].rpartition("\n")[0])
        said = _COMMENT.search(text[: match.start()])
        kind, words = (said[1], said[2]) if said else ("", "")
        first, *others = (part.strip() for part in words.split(";"))
        pairs = [part.partition(" = ") for part in others]
        found.append(
            Block(
                page,
                text.count("\n", 0, match.start()) + 1,
                body,
                first if kind == "run" else "",
                first if kind == "not run" else "",
                tuple((old, new) for old, _, new in pairs),
            )
        )
    return found


def blocks(runner: str = "") -> list[Block]:
    """Those of all pages; of one runner alone, if it is named."""
    found = [block for page in PAGES for block in blocks_of(page, (site.ROOT / page).read_text("utf-8"))]
    return [block for block in found if block.runner == runner] if runner else found


def missing(block: Block, printed: str) -> list[str]:
    """Lines of a block of output that have not been printed."""

    def lines(text: str) -> list[str]:
        return [" ".join(line.split()) for line in text.splitlines()]

    patterns = {line: re.escape(line).replace("…", ".*") for line in lines(block.code)}
    return [line for line, pattern in patterns.items() if not any(re.fullmatch(pattern, one) for one in lines(printed))]
