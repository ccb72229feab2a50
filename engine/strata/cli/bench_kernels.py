"""`strata bench kernels`: how near the kernels of CPU or GPU come to what memory allows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from strata.cli.arguments import listed, require, whole
from strata.errors import OptionError
from strata.native.layout import FORMATS, GROUP, TileLayout
from strata.native.library import variants
from strata.native.pool import ACTIVATIONS, PoolOptions

EXAMPLE = "  strata bench kernels --threads 8,16 --prefetch-bytes 0,2368\n"
EPILOG = f"""examples:
{EXAMPLE}\
  strata bench kernels --dtype mxfp4 --hidden-size 2880 --intermediate-size 2880 --experts-per-token 4
  strata bench kernels --device cuda --tokens 1,32 --products gated:int4:24576x4096
  strata bench kernels --device cuda --attention 32/8/128:32x4095+1,32/8/128:1x0+8192
  strata bench kernels --device cuda --experts mxfp4:2880x2880:4/32 --tokens 1,16,32,64
  strata bench kernels --device cuda --misses

The default shape is Qwen3-30B-A3B's, attention's too; the products are Qwen3-8B's. GB/s are those of the weights, or of
keys and values; `read` is a plain read of the same memory, and of experts that are fetched one large copy.
"""


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the measurement and its options."""
    parser = kinds.add_parser(
        "kernels",
        help="the CPU's expert kernels, or a GPU's products, attention and experts, beside how fast it reads memory",
        description="Measure the CPU's expert kernels on experts in random order, or with --device cuda a GPU's "
        "products with dense matrices, its attention and its experts, beside plain reads of memory; or what experts "
        "cost that are in host memory alone.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    shape = parser.add_argument_group("experts")
    shape.add_argument("--dtype", choices=FORMATS, default="int4", help="bits of their weights (default: int4)")
    shape.add_argument(
        "--hidden-size", type=whole(1), default=2048, metavar="N", help="width of the model (default: 2048)"
    )
    shape.add_argument(
        "--intermediate-size", type=whole(1), default=768, metavar="N", help="width of an expert (default: 768)"
    )
    shape.add_argument(
        "--experts-per-token", type=whole(1), default=8, metavar="N", help="experts that a token takes (default: 8)"
    )
    shape.add_argument(
        "--memory-mib",
        type=whole(1, 1 << 30),
        default=2048,
        metavar="N",
        help="memory that they fill, far more than the CPU's caches (default: 2048)",
    )
    how = parser.add_argument_group("how they are computed, each with each")
    how.add_argument(
        "--variants", type=listed(str), default=(), metavar="V,V,...", help="instruction sets (default: all)"
    )
    how.add_argument(
        "--threads", type=listed(whole(1)), default=(), metavar="N,N,...", help="threads (default: one on each core)"
    )
    how.add_argument(
        "--prefetch-bytes",
        type=listed(whole(0)),
        default=(0, 2368, 4736),
        metavar="N,N,...",
        help="how far ahead of the reads memory is asked for (default: 0,2368,4736)",
    )
    how.add_argument(
        "--activations",
        type=listed(str),
        default=("int8",),
        metavar="A,A,...",
        help=f"bits of the activations: {', '.join(ACTIVATIONS)} (default: int8)",
    )
    how.add_argument(
        "--tokens",
        type=listed(whole(1)),
        default=(),
        metavar="N,N,...",
        help="tokens at once (default: 1; of a GPU's experts 1,4,16,24,32,48,64,2048)",
    )
    gpu = parser.add_argument_group("a GPU")
    gpu.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what is measured (default: cpu)")
    gpu.add_argument(
        "--products",
        type=listed(str),
        default=(),
        metavar="P,P,...",
        help="OPERATION:DTYPE:ROWSxCOLS each; product, add (to the residual), gated (a pair of matrices, "
        "SwiGLU) (default: Qwen3-8B's, where nothing of a GPU is asked for)",
    )
    gpu.add_argument(
        "--attention",
        type=listed(str),
        default=(),
        metavar="A,A,...",
        help="HEADS/KV_HEADS/HEAD_DIM:SEQSxCONTEXT+NEW each: new tokens of sequences after their context "
        "(default: Qwen3-30B-A3B's, where nothing of a GPU is asked for)",
    )
    gpu.add_argument(
        "--experts",
        type=listed(str),
        default=(),
        metavar="E,E,...",
        help="DTYPE:HIDDENxINTERMEDIATE:TOP_K/EXPERTS each, a layer all in VRAM: router and choice, gate and up, down, "
        "and all of it; around the number of tokens from which tensor cores take over both ways, gemv and gemm "
        "(default: Qwen3-30B-A3B's, where nothing of a GPU is asked for)",
    )
    gpu.add_argument(
        "--misses",
        nargs="?",
        const=True,
        metavar="E",
        help="experts, written as above, in 3 GiB of host memory: fetched over PCIe, computed by the CPU, and both at "
        "once (default for E: Qwen3-30B-A3B's)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON (default: a table)")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print, line by line."""
    require()
    if arguments.device == "cuda":
        return _run_gpu(arguments)
    given = [name for name in ("products", "attention", "experts", "misses") if getattr(arguments, name)]
    if given:
        raise OptionError(f"--{given[0]} is measured on a GPU: add --device cuda")
    from strata.bench import cpu_experts

    layout = _layout(arguments.dtype, arguments.hidden_size, arguments.intermediate_size)
    options = PoolOptions(top_k=arguments.experts_per_token)
    choices = cpu_experts.Choices(
        variants=arguments.variants or variants(),
        threads=arguments.threads or (len(options.cores),),
        prefetch_bytes=arguments.prefetch_bytes,
        activations=arguments.activations,
        tokens=arguments.tokens or (1,),
    )
    found = cpu_experts.run(layout, choices, options, arguments.memory_mib << 20)
    return _print([Table(found, cpu_experts.HEADER, cpu_experts.line)], as_json=arguments.json)


class Table(NamedTuple):
    """Figures as they are found, and how they are shown."""

    found: Iterable[Any]
    header: str
    line: Callable[[Any], str]


def _run_gpu(arguments: argparse.Namespace) -> int:
    from strata.bench import gpu_attention, gpu_experts, gpu_kernels, gpu_misses, gpu_time
    from strata.bench.experts import QWEN3_30B, Experts

    products = [gpu_kernels.Product.parse(text) for text in arguments.products]
    attention = [gpu_attention.Attention.parse(text) for text in arguments.attention]
    experts = [Experts.parse(text) for text in arguments.experts]
    misses = arguments.misses
    if not products and not attention and not experts and misses is None:
        products, attention = list(gpu_kernels.QWEN3_8B), list(gpu_attention.QWEN3_30B)
        experts = [QWEN3_30B]
    tables = []
    if products or attention or experts:
        found = chain(
            gpu_kernels.run(products, arguments.tokens or (1,)),
            gpu_attention.run(attention),
            gpu_experts.run(experts, arguments.tokens or gpu_experts.TOKENS),
        )
        tables.append(Table(found, gpu_time.HEADER, gpu_time.line))
    if misses is not None:
        case = QWEN3_30B if misses is True else Experts.parse(misses)
        tables.append(Table(gpu_misses.run(case), gpu_misses.HEADER, gpu_misses.line))
    return _print(tables, as_json=arguments.json)


def _print(tables: Sequence[Table], *, as_json: bool) -> int:
    """Figures as they come, or as JSON together."""
    if as_json:
        print(json.dumps([one.as_dict() for table in tables for one in table.found], indent=1))
        return 0
    for table in tables:
        print(table.header, flush=True)
        for one in table.found:
            print(table.line(one), flush=True)
    return 0


def _layout(dtype: str, hidden: int, intermediate: int) -> TileLayout:
    if dtype != "bf16" and (hidden % GROUP or intermediate % GROUP):
        raise OptionError(
            f"{dtype} has groups of {GROUP}: --hidden-size {hidden} and --intermediate-size {intermediate} must be "
            f"multiples of it"
        )
    return TileLayout(dtype, hidden, intermediate)
