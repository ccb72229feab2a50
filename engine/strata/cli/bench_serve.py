"""`strata bench serve`: load on a running server of the OpenAI API."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from strata.bench.serve.address import API_KEY, DEFAULT_URL, check_url
from strata.bench.serve.mix import PUBLISHED, PUBLISHED_STREAMS, format_mix, parse_mix
from strata.cli.arguments import listed, positive, require, whole
from strata.cli.progress import ProgressBar
from strata.doctor.packages import install_hint
from strata.engine import logs

MIX, STREAMS = format_mix(PUBLISHED), ",".join(map(str, PUBLISHED_STREAMS))

EXAMPLE = "  strata bench serve --concurrency 8,16,32,64 --output report\n"
EPILOG = f"""examples:
{EXAMPLE}\
  strata bench serve --url http://10.0.0.7:8000 --request-rate 1,2,4 --requests 100
  strata bench serve --mix 1:64:64 --concurrency 1 --requests 8 --json

Requests are streamed and go on to their number of tokens. Ctrl-C ends the measurement and reports what there is.
{API_KEY} holds the key for a server that asks for one.
"""


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the measurement and its options."""
    parser = kinds.add_parser(
        "serve",
        help="tok/s and latencies of a server under load",
        description="Measure tok/s and latencies of a server of the OpenAI API, Strata's or another, under load.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    _add_server_options(parser)
    _add_load_options(parser)
    _add_report_options(parser)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--url", default=DEFAULT_URL, help=f"where it is, with or without /v1 (default: {DEFAULT_URL})")
    server.add_argument("--model", metavar="NAME", help="name of the model (default: the server's first)")
    server.add_argument(
        "--endpoint",
        choices=("completions", "chat"),
        default="completions",
        help="which of /v1/completions and /v1/chat/completions (default: completions)",
    )
    server.add_argument(
        "--timeout",
        type=positive,
        default=600.0,
        metavar="S",
        help="seconds of silence after which a request has failed (default: 600)",
    )


def _add_load_options(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument(
        "--mix",
        default=MIX,
        metavar="MIX",
        help=f"weight:prompt tokens:output tokens of each kind of request (default: {MIX})",
    )
    level = load.add_mutually_exclusive_group()
    level.add_argument(
        "--concurrency",
        type=listed(whole(1, 4096)),
        default=PUBLISHED_STREAMS,
        metavar="N,N,...",
        help=f"streams at once, one level after another (default: {STREAMS})",
    )
    level.add_argument(
        "--request-rate",
        type=listed(positive),
        default=(),
        metavar="R,R,...",
        help="instead: requests a second at random times, however many are in flight (default: none)",
    )
    load.add_argument(
        "--requests",
        type=whole(1),
        metavar="N",
        help="requests of a level (default: 4 a stream, or 64 with --request-rate)",
    )
    load.add_argument(
        "--warmup", type=whole(1), default=4, metavar="N", help="requests before, which are not counted (default: 4)"
    )
    load.add_argument(
        "--seed", type=whole(0), default=0, metavar="N", help="of prompts, their order and times (default: 0)"
    )


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    report = parser.add_argument_group("report")
    report.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write report.md, report.json and report.png there (default: print the tables only)",
    )
    report.add_argument("--json", action="store_true", help="print the figures as JSON (default: tables)")


def run(arguments: argparse.Namespace) -> int:
    """Measure with a progress bar, print and write the report; 1 if no request at all was answered."""
    check_url(arguments.url)
    require(extra="bench")
    import asyncio

    from strata.bench.serve import sweep
    from strata.bench.serve.report import INTERRUPTED, has_matplotlib, save

    options = sweep.ServeOptions(
        url=arguments.url,
        model=arguments.model,
        api_key=os.environ.get(API_KEY),
        endpoint=arguments.endpoint,
        mix=parse_mix(arguments.mix),
        concurrency=arguments.concurrency,
        rates=arguments.request_rate,
        num_requests=arguments.requests,
        num_warmup=arguments.warmup,
        seed=arguments.seed,
        timeout_seconds=arguments.timeout,
    )
    logs.configure("INFO")
    with ProgressBar() as progress:
        report = asyncio.run(sweep.run(options, progress))
    print(json.dumps(report.as_dict(), indent=1) if arguments.json else report.markdown(), end="\n" * arguments.json)
    if arguments.output is not None:
        written = save(report, arguments.output)
        _say(f"written: {', '.join(map(str, written))}")
        if not has_matplotlib():
            _say(f"no report.png: matplotlib is not installed; {install_hint('plot')}")
    if report.ended_by == INTERRUPTED:
        return 130
    if report.ended_by is not None:
        _say(f"strata: error: {report.ended_by}")
        return 1
    return 0 if any(level.num_answered for level in report.levels) else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr)
