"""`strata doctor`: is this machine, and this model, fit to serve?"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from strata.cli.options import add_dtype, add_revision, add_source, source_if_given

EPILOG = """examples:
  strata doctor
  strata doctor /models/qwen3-30b-a3b --dtype int4
  strata doctor --json

Nothing is changed. OK: all is well. WARN: works, slower or less than it could. FAIL: does not work; the exit code is 1.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine, and a model's files",
        description="Check driver, cards, CPU, memory, disk and packages of this machine, and a model's files.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    add_source(parser, "MODEL", "--model", about="a model to check as well: ")
    add_revision(parser)
    add_dtype(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON (default: lines)")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 if one of them is FAIL."""
    from strata.doctor.examine import examine
    from strata.doctor.finding import Level, lines

    findings = examine(source_if_given(arguments), arguments.dtype)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print("\n".join(lines(findings)))
    return 1 if any(finding.level is Level.FAIL for finding in findings) else 0
