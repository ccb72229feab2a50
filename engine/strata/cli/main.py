"""The `strata` command: finds the subcommand, and turns errors into messages and exit codes.

Exit codes: 0 done; 1 the engine failed; 2 something must be changed first (a flag, a file, a port); 3 a disk cannot be
written or has no room; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import strata
from strata.cli import bench, calibrate, chat, convert, doctor, fetch, plan, serve, version
from strata.cli.arguments import Parser
from strata.config.model_name import ACCEPTED
from strata.errors import StorageError, StrataError, UsageError

TERMINATION_LOG_BYTES = 4096  # what Kubernetes keeps of it

EPILOG = f"""first steps:
  strata doctor                               what this machine can do, and what is missing
  strata plan CONFIG --gpu rtx4090            whether a model fits a card, and how fast it can be
  strata serve builtin://smollm2-135m         a small model that comes along, at http://127.0.0.1:8000
  strata chat "Why is the sky blue?"          ask the server
  strata bench serve                          load it, and see tok/s and latencies

{fill(f"MODEL is everywhere {ACCEPTED}.", 120)}
'strata COMMAND --help' says what a command takes, with examples; docs/cli.md explains all of it.
"""


def build_parser() -> Parser:
    """The whole command line. Subcommands import what they need when they run."""
    parser = Parser(
        prog="strata",
        description="Serve language models on your own hardware, over OpenAI's API.",
        epilog=EPILOG,
    )
    parser.add_argument("-V", "--version", action="version", version=f"strata {strata.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for module in (serve, chat, fetch, convert, plan, doctor, calibrate, bench, version):
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        code: int = arguments.run(arguments)
    except StrataError as error:
        return _fail(str(error), _code(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # e.g. `strata chat ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 1
    except Exception as error:  # a fault of ours: the traceback says where
        _note(f"{type(error).__name__}: {error}")
        raise
    return code


def _code(error: StrataError) -> int:
    if isinstance(error, StorageError):
        return 3
    return 2 if isinstance(error, UsageError) else 1


def _fail(message: str, code: int) -> int:
    print(f"strata: error: {message}", file=sys.stderr)
    _note(message)
    return code


def _note(message: str) -> None:
    """Write the reason into the file that becomes the pod's status, when the environment names one."""
    path = os.environ.get("STRATA_TERMINATION_LOG")
    if path:
        try:
            Path(path).write_bytes(message.encode()[:TERMINATION_LOG_BYTES])
        except OSError as error:
            print(f"strata: STRATA_TERMINATION_LOG={path} cannot be written: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
