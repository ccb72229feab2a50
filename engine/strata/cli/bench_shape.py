"""`strata bench shape`: a store with random weights of a public model's shape."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from strata.cli.arguments import require, whole
from strata.cli.options import DEFAULTS
from strata.cli.progress import ProgressBar
from strata.config.engine import DTYPES
from strata.config.public import SHAPES
from strata.engine import logs

EXAMPLE = "  strata bench shape qwen3-30b-a3b --dtype int4 --out /stores/shape-30b\n"
EPILOG = f"""examples:
{EXAMPLE}\
  strata bench shape gpt-oss-20b --dtype mxfp4 --layers 4 --out store
  strata bench shape /models/mine/config.json --router-skew 1 --out store

Answers of such a model are made-up words; its speed, its memory and the choices of its router are a model's.

shapes: {", ".join(SHAPES)}
"""


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = kinds.add_parser(
        "shape",
        help="write a store with random weights of a public model's shape, to measure with",
        description="Write a store with random weights of a public model's shape, without fetching the model.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    parser.add_argument("shape", metavar="NAME", help="a shape from the list below, or the path of a config.json")
    parser.add_argument(
        "--dtype",
        choices=(*DTYPES, "mxfp4"),
        default=DEFAULTS.dtype,
        help=f"bit format of the weights; mxfp4: of the experts, the rest is int4 (default: {DEFAULTS.dtype})",
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="directory of the store; it must not exist, or be empty"
    )
    parser.add_argument("--layers", type=whole(1), metavar="N", help="only so many layers (default: all)")
    parser.add_argument(
        "--router-skew",
        type=_skew,
        default=0.0,
        metavar="S",
        help="how much likelier some experts are, 0 to 8: the logits of each layer's likeliest are spread 4^S as wide "
        "as those of its unlikeliest (default: 0, all are as likely)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write with a progress bar; says where the store is."""
    require()

    from strata.bench.shape import write_shape

    logs.configure("INFO")
    with ProgressBar() as progress:
        path = write_shape(
            arguments.shape,
            arguments.dtype,
            arguments.out,
            num_layers=arguments.layers,
            router_skew=arguments.router_skew,
            progress=progress,
        )
    print(f"{path} is ready: strata bench decode {path}")
    return 0


def _skew(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 8:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give a number from 0 to 8")
    return value
