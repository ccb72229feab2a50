"""`strata fetch`: a model from the Hub, ahead of its first start."""

from __future__ import annotations

import argparse

from strata.cli.arguments import require
from strata.cli.options import add_revision, add_source, source
from strata.cli.progress import ProgressBar
from strata.cli.progress_port import ProgressPort
from strata.config.engine import DTYPES
from strata.engine import logs

EPILOG = """examples:
  strata fetch Qwen/Qwen3-8B                      into the Hub's cache
  strata fetch Qwen/Qwen3-8B --dtype int4         and converted: strata serve starts at once, without the network
  strata fetch bartowski/Qwen_Qwen3-8B-GGUF:Q4_K_M

Settings of the Hub's client count: HF_TOKEN (or `hf auth login`), HF_ENDPOINT, HF_HOME, HF_HUB_CACHE. A download that
was stopped goes on where it was when the same command runs again. With STRATA_PROGRESS_PORT=8000 it answers GET /ready
there with how far it is.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser(
        "fetch",
        help="fetch a model from the Hugging Face Hub",
        description="Fetch a model from the Hugging Face Hub, or what is newer of it; convert it where that is asked.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    add_source(parser, "MODEL", "--model")
    add_revision(parser)
    parser.add_argument("--dtype", choices=DTYPES, help="convert it to this bit format, too (default: only fetch)")


def run(arguments: argparse.Namespace) -> int:
    """Fetch with a progress bar; says where the model is."""
    model = source(arguments)
    require(*(() if arguments.dtype else ("huggingface-hub", "tqdm")))

    from strata.store.convert import is_store
    from strata.store.locate import resolve
    from strata.store.sources import check_files, obtain

    logs.configure("INFO")
    with ProgressPort.from_environment() as asked, ProgressBar() as shown:

        def progress(phase: str, done: int, total: int) -> None:
            asked(phase, done, total)
            shown(phase, done, total)

        if arguments.dtype is not None:
            path = resolve(model, arguments.dtype, progress=progress, refresh=True)
        else:
            path = obtain(model, progress).path
            if not is_store(path):
                check_files(path)
    dtype = f" --dtype {arguments.dtype}" if arguments.dtype else ""
    print(f"{model} is at {path}: strata serve {model}{dtype}")
    return 0
