"""The command ``strata-chart``, which the Helm chart's hooks run: options and exit codes."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import strata_operator
from strata_operator.api.errors import OperatorError

if TYPE_CHECKING:
    from strata_operator.cluster.client import Client

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """Options of ``strata-chart``."""
    made = argparse.ArgumentParser(
        prog="strata-chart", description="What the hooks of Strata's Helm chart run.", allow_abbrev=False
    )
    made.add_argument("--version", action="version", version=strata_operator.__version__)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = "apply the definitions of the custom resources in a folder, and wait until they are served"
    crds = commands.add_parser("crds", help=text, description=text, allow_abbrev=False)
    crds.add_argument("folder", type=Path, help="with one definition in each .yaml file")
    crds.add_argument("--timeout", type=int, default=60, metavar="SECONDS", help="until they are served (default: 60)")
    text = "see whether an operator works, and ask each model that is ready a question"
    trial = commands.add_parser("test", help=text, description=text, allow_abbrev=False)
    trial.add_argument("--namespaces", default="", metavar="NAME,...", help="those that are served (default: all)")
    trial.add_argument(
        "--timeout",
        type=int,
        default=120,
        metavar="SECONDS",
        help="for the operator, and for each answer (default: 120)",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 where an installation does not work, 2 for what somebody has to mend first."""
    options = parser().parse_args(argv)
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
    try:
        return {"crds": _crds, "test": _test}[options.command](options)
    except OperatorError as error:
        log.error("%s", error)
        return 2


def _crds(options: argparse.Namespace) -> int:
    from strata_operator.chart.crds import apply

    apply(_client(), options.folder, has_time=_time(options.timeout), pause=_pause)
    return 0


def _test(options: argparse.Namespace) -> int:
    from strata_operator.chart.trial import ask, trial

    namespaces = tuple(filter(None, options.namespaces.split(",")))
    works = trial(
        _client(), namespaces, lambda url: ask(url, options.timeout), has_time=_time(options.timeout), pause=_pause
    )
    return 0 if works else 1


def _time(seconds: int) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _pause() -> None:
    time.sleep(0.2)


def _client() -> Client:
    """Raises ApiError where there are no credentials."""
    from strata_operator.cluster.client import Client, configuration

    return Client(configuration(), on_request=lambda verb, status: None, threads=1)


if __name__ == "__main__":
    sys.exit(main())
