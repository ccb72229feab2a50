"""`strata calibrate`: how experts beyond the GPU's memory are best had on this machine."""

from __future__ import annotations

import argparse
import json

from strata.cli.arguments import require
from strata.cli.options import add_dtype, add_expert_vram, add_hugepages, add_revision, add_source, source
from strata.cli.progress import ProgressBar
from strata.engine import logs

EPILOG = """examples:
  strata calibrate /models/qwen3-30b-a3b
  strata calibrate Qwen/Qwen3-30B-A3B --dtype int4 --expert-vram-gib 8
  strata bench shape qwen3-30b-a3b --out /stores/shape && strata calibrate /stores/shape     without the model

An expert that the GPU's memory has not is fetched over PCIe or computed by the CPU, and both at once are faster than
either. For each number of a token's experts that may be missing this tries how many of them are best fetched, with both
busy, then decodes a few tokens each way. 'strata serve' does the same at its start (--expert-placement auto); what
is measured here is kept for it, under the names of card, driver and CPU and the shape of the experts. It looks again
where a start finds other times. Nothing else should run on the machine meanwhile.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser(
        "calibrate",
        help="measure how PCIe and the CPU best share experts beyond VRAM",
        description="Measure on this machine how experts that the GPU's memory has not are best split between PCIe "
        "and the CPU, and keep it for 'strata serve'.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    add_source(parser, "MODEL", "--model")
    add_revision(parser)
    add_dtype(parser)
    add_expert_vram(parser, default="so many that every number of a token's experts may be missing or fetched")
    add_hugepages(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON (default: tables)")


def run(arguments: argparse.Namespace) -> int:
    """Load the model, measure, and print."""
    model = source(arguments)
    require()

    from strata.bench import calibrate

    logs.configure("INFO")
    with ProgressBar() as progress:
        report = calibrate.run(
            model,
            arguments.dtype,
            expert_vram_bytes=arguments.expert_vram_bytes,
            hugepages=arguments.hugepages,
            progress=progress,
        )
    print(json.dumps(report.as_dict(), indent=1) if arguments.json else "\n".join(report.lines()))
    return 0
