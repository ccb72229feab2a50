"""What `strata plan` takes on its command line."""

from __future__ import annotations

import argparse

from strata.cli.arguments import positive, share, whole
from strata.cli.options import DEFAULTS, add_revision, add_source
from strata.config.engine import DTYPES

DRAM_GBPS = 50.0
DISK_GBPS = 3.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare all of them, in groups."""
    add_source(parser, "MODEL", "--model")
    add_revision(parser)
    parser.add_argument("--dtype", choices=DTYPES, help="bit format of the weights (default: a column for each)")
    parser.add_argument(
        "--max-model-len",
        type=whole(1),
        metavar="TOKENS",
        help="tokens of prompt and answer together (default: what the checkpoint declares)",
    )
    parser.add_argument(
        "--concurrency", type=whole(1, 4096), default=1, metavar="N", help="sequences decoded together (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON (default: tables)")
    _add_card_options(parser)
    _add_host_options(parser)


def _add_card_options(parser: argparse.ArgumentParser) -> None:
    card = parser.add_argument_group("card")
    card.add_argument("--gpu", metavar="CARD", help="a card by name, e.g. rtx3090 (default: none, the CPU computes)")
    card.add_argument("--vram-gib", type=positive, metavar="GIB", help="its memory (default: the named card's)")
    card.add_argument(
        "--vram-gbps", type=positive, metavar="GB/S", help="read rate of that memory (default: the named card's)"
    )
    card.add_argument(
        "--gpu-memory-utilization",
        type=share,
        default=DEFAULTS.device.gpu_memory_utilization,
        metavar="SHARE",
        help=f"share of it to fill, above 0 up to 1 (default: {DEFAULTS.device.gpu_memory_utilization})",
    )
    card.add_argument("--pcie", metavar="LINK", help="the card's link, e.g. 3.0x16 (default: the card's fastest)")
    card.add_argument(
        "--hit-share",
        type=share,
        metavar="SHARE",
        help="share of a token's experts that VRAM holds (default: the share of all experts that fit there)",
    )


def _add_host_options(parser: argparse.ArgumentParser) -> None:
    host = parser.add_argument_group("host")
    host.add_argument(
        "--dram-gbps",
        type=positive,
        default=DRAM_GBPS,
        metavar="GB/S",
        help=f"read rate of its memory; 40 to 70 on desktops and older servers (default: {DRAM_GBPS:.0f})",
    )
    host.add_argument(
        "--cpu-gbps",
        type=positive,
        metavar="GB/S",
        help="rate of the CPU's expert kernels (default: that of host memory)",
    )
    host.add_argument(
        "--disk-gbps",
        type=positive,
        default=DISK_GBPS,
        metavar="GB/S",
        help=f"read rate of the disk (default: {DISK_GBPS:.0f})",
    )
    host.add_argument(
        "--ram-gib",
        type=positive,
        metavar="GIB",
        help="its memory (default: with --gpu as much as is needed, else what is free on this machine)",
    )
