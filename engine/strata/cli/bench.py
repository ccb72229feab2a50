"""`strata bench`: measurements of a model on this machine, of its kernels (``cli.bench_kernels``), of tables of n-grams
(``cli.bench_ngrams``), and of a server (``cli.bench_serve``); stores to measure with (``cli.bench_shape``)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from strata.cli import bench_kernels, bench_ngrams, bench_serve, bench_shape
from strata.cli.arguments import gibibytes, listed, probability, require, whole
from strata.cli.options import add_device, add_dtype, add_revision, add_source, device_config, source
from strata.cli.progress import ProgressBar
from strata.config import DeviceConfig
from strata.engine import logs
from strata.errors import OptionError

if TYPE_CHECKING:
    from strata.bench.decode import DecodeReport
    from strata.bench.perplexity import PerplexityReport
    from strata.bench.prefill import PrefillReport

    Report: TypeAlias = DecodeReport | PrefillReport | PerplexityReport

R = TypeVar("R", bound="Reported")


class Reported(Protocol):
    """What a measurement gives."""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""


EXAMPLES = {
    "decode": "  strata bench decode builtin://smollm2-135m --dtype int4 --threads 2\n",
    "prefill": "  strata bench prefill builtin://smollm2-135m --prompt-tokens 2048\n",
    "offload": "  strata bench offload /stores/shape-30b --vram-shares 0,0.5 --ways auto,cpu\n",
    "perplexity": "  strata bench perplexity builtin://smollm2-135m --dtype int8 --text book.txt\n",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command, its measurements and their options."""
    parser = commands.add_parser(
        "bench",
        help="measure a model or a server: speed, perplexity, kernels, load",
        description="Measure a model on this machine, or a server.",
        epilog="examples:\n"
        + "".join(EXAMPLES.values())
        + bench_kernels.EXAMPLE
        + bench_ngrams.EXAMPLE
        + bench_serve.EXAMPLE
        + bench_shape.EXAMPLE,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True, title="measurements")
    decode = _add_kind(kinds, "decode", "tokens a second, beside what the memory's bandwidth allows")
    decode.set_defaults(measure=_measure_decode)
    decode.add_argument(
        "--batch-size",
        type=listed(whole(1)),
        default=(1,),
        metavar="N,N,...",
        help="sequences decoded together, one number after another (default: 1)",
    )
    decode.add_argument(
        "--prompt-tokens",
        type=whole(1),
        default=64,
        metavar="N",
        help="tokens before the measured ones (default: 64)",
    )
    decode.add_argument(
        "--output-tokens", type=whole(1), default=128, metavar="N", help="tokens that are measured (default: 128)"
    )
    prefill = _add_kind(kinds, "prefill", "prompt tokens a second, beside what products and memory allow")
    prefill.set_defaults(measure=_measure_prefill)
    prefill.add_argument(
        "--prompt-tokens",
        type=listed(whole(1)),
        default=(2048,),
        metavar="N,N,...",
        help="tokens of the prompt, one length after another (default: 2048)",
    )
    prefill.add_argument(
        "--max-num-batched-tokens",
        type=whole(1),
        metavar="N",
        help="tokens of one step; a longer prompt runs in chunks (default: the whole prompt in one)",
    )
    offload = _add_kind(kinds, "offload", "experts in VRAM and beyond: each share and way, and which is best")
    offload.set_defaults(run=_run_offload)
    offload.add_argument(
        "--vram-shares",
        type=listed(probability),
        default=(0.0, 0.25, 0.5, 0.75),
        metavar="S,S,...",
        help="shares of the routed experts in VRAM, each from 0 to 1 (default: 0,0.25,0.5,0.75)",
    )
    offload.add_argument(
        "--ways",
        type=listed(str),
        default=("auto", "fetch", "cpu"),
        metavar="W,W,...",
        help="to the others: auto, fetch, cpu (default: all three)",
    )
    for name, default, about in (
        ("--batch-size", 1, "sequences decoded together"),
        ("--prompt-tokens", 64, "tokens before the measured ones"),
        ("--output-tokens", 64, "tokens that are measured"),
    ):
        offload.add_argument(name, type=whole(1), default=default, metavar="N", help=f"{about} (default: {default})")
    perplexity = _add_kind(kinds, "perplexity", "how well the model predicts a text; lower is better")
    perplexity.set_defaults(measure=_measure_perplexity)
    perplexity.add_argument("--text", required=True, metavar="FILE", help="a text in UTF-8")
    perplexity.add_argument(
        "--window",
        type=whole(2),
        default=512,
        metavar="TOKENS",
        help="tokens that a prediction may look back at; half of them are new each time (default: 512)",
    )
    bench_kernels.add_parser(kinds)
    bench_ngrams.add_parser(kinds)
    bench_serve.add_parser(kinds)
    bench_shape.add_parser(kinds)


def _add_kind(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str
) -> argparse.ArgumentParser:
    parser = kinds.add_parser(name, help=about, description=f"Measures {about}.", epilog=f"example:\n{EXAMPLES[name]}")
    parser.set_defaults(run=_run)
    add_source(parser, "MODEL", "--model")
    add_revision(parser)
    add_dtype(parser)
    add_device(parser)
    parser.add_argument(
        "--vram-gib",
        type=gibibytes,
        dest="vram_bytes",
        metavar="GIB",
        help="play a card with so much memory: what a smaller one could not hold lies elsewhere (default: all of it)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the figures as JSON, a line for each measurement (default: tables)"
    )
    return parser


def _run(arguments: argparse.Namespace) -> int:
    model = source(arguments)
    require()
    logs.configure("INFO")
    measure: Callable[[str, argparse.Namespace, ProgressBar], Iterable[Report]] = arguments.measure
    with ProgressBar() as progress:
        reports = _told(measure(model, arguments, progress), as_json=arguments.json)
    if not arguments.json:
        print("\n\n".join("\n".join(report.lines()) for report in reports))
    return 0


def _told(reports: Iterable[R], *, as_json: bool) -> list[R]:
    """All of them; as JSON each is printed as it comes, so that there is something should the next one fail."""
    found = []
    for report in reports:
        found.append(report)
        if as_json:
            print(json.dumps(report.as_dict()), flush=True)
    return found


def _run_offload(arguments: argparse.Namespace) -> int:
    model = source(arguments)
    if arguments.expert_vram_bytes is not None or arguments.expert_placement != "auto":
        raise OptionError(
            "--expert-vram-gib and --expert-placement are what is tried here; give --vram-shares and --ways"
        )
    require()
    from strata.bench import offload

    logs.configure("INFO")
    with ProgressBar() as progress:
        placements = offload.run(
            model,
            arguments.dtype,
            device=_device(arguments),
            shares=arguments.vram_shares,
            ways=arguments.ways,
            batch_size=arguments.batch_size,
            prompt_tokens=arguments.prompt_tokens,
            output_tokens=arguments.output_tokens,
            progress=progress,
        )
        found = _told(placements, as_json=arguments.json)
    if not arguments.json:
        print("\n".join([offload.HEADER, *map(offload.line, found), "", *offload.verdict(found)]))
    return 0


def _device(arguments: argparse.Namespace) -> DeviceConfig:
    return replace(device_config(arguments), vram_bytes=arguments.vram_bytes)


def _measure_decode(model: str, arguments: argparse.Namespace, progress: ProgressBar) -> Iterable[Report]:
    from strata.bench import decode

    return decode.run(
        model,
        arguments.dtype,
        device=_device(arguments),
        batch_sizes=arguments.batch_size,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        progress=progress,
    )


def _measure_prefill(model: str, arguments: argparse.Namespace, progress: ProgressBar) -> Iterable[Report]:
    from strata.bench import prefill

    return prefill.run(
        model,
        arguments.dtype,
        device=_device(arguments),
        prompt_tokens=arguments.prompt_tokens,
        chunk_tokens=arguments.max_num_batched_tokens,
        progress=progress,
    )


def _measure_perplexity(model: str, arguments: argparse.Namespace, progress: ProgressBar) -> Iterable[Report]:
    from strata.bench import perplexity

    report = perplexity.run(
        model,
        arguments.dtype,
        text=arguments.text,
        window=arguments.window,
        device=_device(arguments),
        progress=progress,
    )
    return (report,)
