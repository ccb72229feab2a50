"""`strata plan`: what a model takes and how fast it can be on a machine, from its config.json alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.cli.arguments import require
from strata.cli.options import DEFAULTS, source
from strata.cli.plan_options import add_options
from strata.config import ModelConfig, SchedulerConfig
from strata.config.engine import DTYPES
from strata.config.model_name import HubName, parse_name
from strata.config.public import SHAPES
from strata.errors import OptionError
from strata.plan.cards import CARDS, find_card, pcie_gbps
from strata.plan.units import format_bytes

if TYPE_CHECKING:
    from strata.plan.estimate import Estimate
    from strata.plan.fit import Machine
    from strata.store.peek import Peek

GIB = 1 << 30

EPILOG = f"""examples:
  strata plan builtin://smollm2-135m                       on this machine's CPU
  strata plan Qwen/Qwen3-30B-A3B --gpu rtx3090 --pcie 3.0x16 --dram-gbps 60
  strata plan gpt-oss-120b --gpu rtx4090                   a public shape, without the network
  strata plan model.gguf --gpu rtx4090 --ram-gib 64 --dtype int4 --concurrency 8 --max-model-len 8192 --json

MODEL may also be a shape, a config.json, or a directory with one and no weights. From the Hub only config.json is
fetched, and not for a model whose shape comes along (Qwen/Qwen3-8B); a GGUF there must be here already (strata fetch).
tok/s at most are bounds from the bytes that a step moves; those expected count launches and what kernels reach as well,
as measured on one card. Measure yours with 'strata bench'. The exit code is 0 whether the model fits or not: --json
says which (fits).

shapes: {", ".join(SHAPES)}
cards: {", ".join(CARDS)}
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser(
        "plan",
        help="what a model takes, where it fits, how fast it can be",
        description="Say what a model takes, what fits where, and how fast it can decode, from its config.json alone.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print tables, or JSON."""
    from strata.plan.estimate import estimate
    from strata.plan.tables import as_dict, fit_table, parts_table, speed_table
    from strata.store.files import is_file
    from strata.store.peek import find_public, peek

    machine = _machine(arguments)
    name = source(arguments)
    if find_public(name) is None:
        if isinstance(parse_name(name), HubName):
            require("huggingface-hub", "gguf", "numpy")
        elif not name.endswith(".json") and not is_file(Path(name, "config.json")):
            require("gguf", "numpy")
    peeked = peek(name)
    model = peeked.model
    config = replace(
        DEFAULTS,
        model=name,
        device=replace(DEFAULTS.device, gpu_memory_utilization=arguments.gpu_memory_utilization),
        scheduler=SchedulerConfig(max_model_len=arguments.max_model_len, max_num_seqs=arguments.concurrency),
    )
    found = [
        estimate(
            model,
            replace(config, dtype=dtype),
            machine,
            expert_format=peeked.expert_format,
            hit_share=arguments.hit_share,
        )
        for dtype in _dtypes(arguments.dtype, peeked)
    ]
    assumptions = _assumptions(arguments, machine, found)
    if peeked.expert_format is not None:
        assumptions.insert(0, f"the experts stay in {peeked.expert_format}, in which the checkpoint has them")
    if arguments.json:
        print(json.dumps({"model": name, **as_dict(model, found), "assumptions": assumptions}, indent=1))
        return 0
    on_card = machine.vram_bytes is not None
    print(f"{name}: {_about(model)}\n")
    sections = (
        parts_table(model, found, on_card=on_card),
        fit_table(found, on_card=on_card),
        speed_table(found, arguments.concurrency, on_card=on_card),
    )
    print("\n\n".join("\n".join(lines) for lines in sections if lines))
    print("\nassumed:\n" + "\n".join(f"- {line}" for line in assumptions))
    return 0


def _dtypes(asked: str | None, peeked: Peek) -> Sequence[Any]:
    if peeked.dtype is None:
        return DTYPES if asked is None else (asked,)
    if asked not in (None, peeked.dtype):
        raise OptionError(f"--dtype {asked} is given, and the store is {peeked.dtype}; leave it out")
    return (peeked.dtype,)


def _about(model: ModelConfig) -> str:
    experts = model.experts
    moe = f", {experts.num_experts_per_tok} of {experts.num_experts} experts a token" if experts else ""
    return f"{model.architecture}, {model.num_layers} layers{moe}"


def _machine(arguments: argparse.Namespace) -> Machine:
    from strata.plan.fit import Machine
    from strata.plan.hardware import available_memory
    from strata.plan.speed import Rates

    ram = None if arguments.ram_gib is None else int(arguments.ram_gib * GIB)
    dram, disk = arguments.dram_gbps * 1e9, arguments.disk_gbps * 1e9
    if arguments.gpu is None:
        for option in ("vram_gib", "vram_gbps", "pcie", "hit_share"):
            if getattr(arguments, option) is not None:
                raise OptionError(f"--{option.replace('_', '-')} is given without --gpu; name the card that it is of")
        return Machine(None, ram if ram is not None else available_memory(), Rates(device=dram, disk=disk))
    card = find_card(arguments.gpu)
    return Machine(
        vram_bytes=int((arguments.vram_gib or card.vram_gib) * GIB),
        ram_bytes=ram,
        rates=card.rates(
            Rates(
                device=0.0,
                pcie=pcie_gbps(arguments.pcie or card.pcie) * 1e9,
                cpu=(arguments.cpu_gbps or arguments.dram_gbps) * 1e9,
                dram=dram,
                disk=disk,
            ),
            arguments.vram_gbps,
        ),
    )


def _assumptions(arguments: argparse.Namespace, machine: Machine, found: list[Estimate]) -> list[str]:
    from strata.plan.fit import HOST_SHARE
    from strata.plan.memory import CPU_KV_SHARE, PROCESS_BYTES

    rates = machine.rates
    bytes_only = "at most: nothing but bytes is counted, no arithmetic, no launches, no sampling"
    if machine.vram_bytes is None:
        ram = format_bytes(machine.ram_bytes or 0)
        rate = f"{rates.device / 1e9:.0f} GB/s"
        return [
            f"the CPU computes and reads {ram} of RAM at {rate}; server and engine take "
            f"{format_bytes(PROCESS_BYTES)} of that, and of what weights and workspace leave, the KV cache up to "
            f"{CPU_KV_SHARE:.0%}",
            bytes_only,
        ]
    card = find_card(arguments.gpu)
    lines = [
        f"{card.title}: {format_bytes(machine.vram_bytes)} of VRAM, read at {rates.device / 1e9:.0f} GB/s",
        bytes_only,
        "expected: launches, and the shares of a card's bandwidth and products that kernels reached on an H200, of the "
        f"data sheet's {rates.flops / 1e12:.0f} TFLOP/s too",
    ]
    if any(item.parts.mixers for item in found):
        lines.append("several residual streams run on a CPU alone yet: what a card could do is what its bytes allow")
    if not any(item.fit.ram_experts for item in found):
        return lines
    if machine.ram_bytes is not None:
        lines.append(f"{format_bytes(machine.ram_bytes)} of RAM, {HOST_SHARE:.0%} of it for experts")
    if any(item.fit.disk_experts for item in found):
        lines += [
            f"the disk is read at {rates.disk / 1e9:.1f} GB/s",
            "what is on disk is read and computed by the CPU; the page cache is taken to have none of it",
        ]
    return [
        *lines,
        f"PCIe {arguments.pcie or card.pcie} carries {rates.pcie / 1e9:.1f} GB/s, expert kernels on the CPU reach "
        f"{rates.cpu / 1e9:.0f}; both together no more than host memory, {rates.dram / 1e9:.0f}",
        "every expert is taken as often as any other; real routing is uneven, which helps a cache in VRAM",
        "VRAM is a cache of experts; those that a step misses come over PCIe or are computed by the CPU, a share each",
    ]
