"""`strata convert`: a checkpoint to a store, once."""

from __future__ import annotations

import argparse
from pathlib import Path

from strata.cli.arguments import require, whole
from strata.cli.options import add_dtype, add_revision, add_source, source
from strata.cli.progress import ProgressBar
from strata.config.engine import SHARD_SIZE
from strata.engine import logs

DEFAULT_SHARD_MB = SHARD_SIZE >> 20

EPILOG = """examples:
  strata convert /models/Llama-3.2-1B-Instruct --output-dir /stores/llama-3.2-1b --dtype int4
  strata convert model.gguf --output-dir store --dtype bf16
  strata convert Qwen/Qwen3-8B --revision main --output-dir /stores/qwen3-8b

The store is what `strata serve` starts from without converting again. A conversion that was stopped goes on where it
was when the same command runs again.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser(
        "convert",
        help="convert a checkpoint to a store",
        description="Convert a checkpoint to a store: weights in Strata's bit formats, tokenizer and settings beside.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    add_source(parser, "SOURCE", "--model_name_or_path")
    add_revision(parser)
    parser.add_argument(
        "--output-dir",
        "--output_dir",
        required=True,
        metavar="DIR",
        type=Path,
        help="directory of the new store; it must not exist, or be empty",
    )
    add_dtype(parser)
    parser.add_argument(
        "--expert-shard-size",
        "--expert_shard_size",
        type=whole(1, 65536),
        default=DEFAULT_SHARD_MB,
        metavar="MB",
        help=f"size of a file of weights, at most, in MB of 2^20 bytes (default: {DEFAULT_SHARD_MB})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert with a progress bar; says where the store is."""
    checkpoint = source(arguments)
    require()

    from strata.store.convert import convert

    logs.configure("INFO")
    with ProgressBar() as progress:
        path = convert(
            checkpoint,
            arguments.output_dir,
            arguments.dtype,
            shard_size=arguments.expert_shard_size << 20,
            progress=progress,
        )
    print(f"{path} is ready: strata serve {path}")
    return 0
