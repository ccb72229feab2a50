"""Flags of the published command lines that this version does not act on yet.

A value that asks for nothing is taken, so that such a command line runs; any other is refused with the reason, rather
than dropped in silence.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

_ONE_CARD = "a model runs on one GPU or on the CPU"
_OWN_WAY = "what becomes of experts beyond the GPU's memory is said by --expert-placement and --expert-vram-gib"


def add_published(parser: argparse.ArgumentParser) -> None:
    """Declare them in a group of their own."""
    group = parser.add_argument_group("for later", "taken where they ask for nothing, refused otherwise")
    for option, metavar, nothing, reason, about in (
        ("--tensor-parallel-size", "N", 1, _ONE_CARD, "cards that share each layer"),
        ("--pipeline-parallel-size", "N", 1, _ONE_CARD, "cards that share the layers"),
    ):
        group.add_argument(
            option,
            type=_nothing_but(nothing, float, str(nothing), reason),
            metavar=metavar,
            help=f"{about}: {nothing} (default: {nothing})",
        )
    group.add_argument(
        "--gda-enabled",
        nargs="?",
        const="true",
        type=_nothing_but(False, _flag, "false", _OWN_WAY),
        metavar="BOOL",
        help="let the GPU read experts in host memory: false (default: false)",
    )


def _nothing_but(nothing: float, read: Callable[[str], float], allowed: str, reason: str) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give {allowed}") from None
        if value != nothing:
            raise argparse.ArgumentTypeError(
                f"{text!r} does not act in this version: {reason}; give {allowed}, or leave it out"
            )
        return value

    return convert


def _flag(text: str) -> bool:
    """Raises ValueError for what is neither."""
    words = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]
