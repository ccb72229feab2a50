"""`strata bench ngrams`: how fast rows of a table of n-grams come from page cache and disk."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from strata.cli.arguments import gibibytes, listed, require, whole

EXAMPLE = "  strata bench ngrams /stores --gib 8\n"


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the measurement and its options."""
    parser = kinds.add_parser(
        "ngrams",
        help="rows a second of a table of n-grams, from the page cache and from the disk",
        description="Write a table of n-grams, measure how fast its rows come from the page cache (warm) and from the "
        "disk (cold) beside plain reads of as many pages, and remove it.",
        epilog=f"example:\n{EXAMPLE}",
    )
    parser.set_defaults(run=run)
    parser.add_argument("directory", metavar="DIR", type=Path, help="a directory on the disk that is measured")
    parser.add_argument(
        "--gib", type=gibibytes, default=2 << 30, dest="num_bytes", metavar="GIB", help="size of the table (default: 2)"
    )
    parser.add_argument("--dim", type=whole(1), default=160, metavar="N", help="numbers of a row (default: 160)")
    parser.add_argument("--heads", type=whole(1), default=16, metavar="N", help="rows of a token (default: 16)")
    parser.add_argument(
        "--tokens",
        type=listed(whole(1)),
        default=(1, 16, 64, 2048),
        metavar="N,N,...",
        help="tokens of a step, one number after another (default: 1,16,64,2048)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON, a line for each step (default: a table)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print each step as it was measured."""
    require()
    from strata.bench import ngrams

    if not arguments.json:
        print(ngrams.HEADER)
    for found in ngrams.run(
        arguments.directory,
        num_bytes=arguments.num_bytes,
        dim=arguments.dim,
        heads=arguments.heads,
        tokens=arguments.tokens,
    ):
        print(json.dumps(found.as_dict()) if arguments.json else ngrams.line(found), flush=True)
    return 0
