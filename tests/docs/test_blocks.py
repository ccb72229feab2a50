"""Every block of code in the pages is run by a test, or says why not."""

from __future__ import annotations

import pytest

from tests.docs.blocks import REASONS, RUNNERS, Block, blocks, blocks_of, missing


def fault(block: Block) -> str | None:
    if bool(block.runner) == bool(block.reason):
        return "write <!-- run: RUNNER --> or <!-- not run: REASON --> before it (tests/docs/blocks.py has both)"
    if block.runner and block.runner not in RUNNERS:
        return f"{block.runner!r} is no runner; there are {', '.join(RUNNERS)}"
    if block.reason and block.reason not in REASONS:
        return f"{block.reason!r} is no reason; there are {', '.join(REASONS)}"
    try:
        assert block.code
    except ValueError as error:
        return str(error)
    return None


def test_every_block_is_run_or_says_why_not() -> None:
    assert {str(block): words for block in blocks() if (words := fault(block))} == {}


def test_every_runner_and_every_reason_has_blocks() -> None:
    assert {block.runner for block in blocks() if block.runner} == set(RUNNERS)
    assert {block.reason for block in blocks() if block.reason} == set(REASONS)


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("", "write <!-- run: RUNNER -->"),
        ("<!-- run: nobody -->\n", "'nobody' is no runner; there are shell"),
        ("<!-- not run: laziness -->\n", "'laziness' is no reason; there are model"),
        ("<!-- run: shell; absent = x -->\n", "nothing in the block is 'absent'"),
        ("<!-- run: shell -->\nwords\n", "write <!-- run: RUNNER -->"),
        ("<!-- run: shell; strata = ./strata -->\n", "None"),
        ("<!-- not run: card -->\n\n", "None"),
    ],
)
def test_a_fault_is_told(comment: str, words: str) -> None:
    (block,) = blocks_of("a.md", f"# A\n\n{comment}```\nstrata version\n```\n")
    assert words in str(fault(block))


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        ("NAME   READY   AGE\nm      True    3s", []),
        ("NAME READY AGE\nm False 3s", ["m True …"]),
        ("NAME READY AGE\nam True 3s", ["m True …"]),
    ],
)
def test_lines_that_were_not_printed_are_found(printed: str, lines: list[str]) -> None:
    (block,) = blocks_of("a.md", "<!-- run: output; 41s = … -->\n```\nNAME  READY  AGE\nm     True   41s\n```\n")
    assert missing(block, printed) == lines
