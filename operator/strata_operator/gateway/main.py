"""The command ``strata-gateway-sync``: options and exit codes."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import strata_operator
from strata_operator.api.errors import ApiError

log = logging.getLogger(__name__)

_ABOUT = """\
Runs beside LiteLLM's proxy: writes down, in a file that the proxy reads with each request, which StrataModels there are
and which clients' keys (Secrets with the label strata.ai/gateway-key), as often as one of them changes.
"""


def parser() -> argparse.ArgumentParser:
    """Options of ``strata-gateway-sync``."""
    made = argparse.ArgumentParser(prog="strata-gateway-sync", description=_ABOUT, allow_abbrev=False)
    made.add_argument("--file", type=Path, required=True, help="to be written; the proxy's STRATA_GATEWAY_FILE")
    made.add_argument("--keys", required=True, metavar="NAMESPACE", help="where the Secrets with clients' keys are")
    made.add_argument("--namespaces", default="", metavar="NAME,...", help="whose models are served (default: all)")
    made.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    made.add_argument("--version", action="version", version=strata_operator.__version__)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit code 1 where it should be started anew, 2 for what somebody has to mend."""
    options = parser().parse_args(argv)
    from strata_operator.cluster.client import Client, configuration
    from strata_operator.gateway.process import Process

    logging.basicConfig(
        level=options.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stdout
    )
    if not options.file.parent.is_dir():
        parser().error(f"--file is {options.file}; its folder is not there")
    served = tuple(dict.fromkeys(filter(None, options.namespaces.split(","))))
    try:
        client = Client(configuration(), on_request=lambda verb, status: None, threads=len(served) + 3)
    except ApiError as error:
        log.error("%s", error)
        return 2
    process = Process(client, options.file, options.keys, served)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    ailment = process.run()
    if ailment is not None:
        log.error("%s; to be started anew", ailment)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
