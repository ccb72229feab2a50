"""The same answers wherever experts lie: every placement, whoever guesses and chooses, at every batch size, against all
in VRAM.

Models: SmolLM2 made a mixture of experts that differ (``upcycled``), and a random tiny one of each architecture with
experts (``tiny``). Without a card, kernels in plain torch take the card's place, beside the CPU's own threads.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.config.engine import EXPERT_PLACEMENTS, PREFETCH, ROUTING_DEVICES
from strata.config.model_name import BuiltinName
from strata.experts import cpu as cpu_module
from strata.native.pool import PoolOptions
from strata.plan import placement as placement_module
from strata.runner import runner as runner_module
from strata.runner.runner import Runner
from strata.store.convert import convert
from strata.store.reader import Store
from strata.store.sources.builtin import builtin_path
from tests.experts.blob_kernels import BlobKernels, CachedKernels
from tests.experts.test_resident import ARCHITECTURES, made_store
from tests.stress.equality import GIVEN, Answer, Compared, Task, answer, compare
from tests.stress.upcycle import SMOLLM2, upcycle

TEXT = Path(__file__).parents[1] / "data" / "alice.txt"
FORMATS = {"int4": "F16", "mxfp4": "MXFP4"}  # of experts in the store, and in the GGUF file that it is made from
TINY_LEN = 128  # positions of a tiny model
# Kernels in plain torch take seconds where a card takes milliseconds.
SIZES: dict[str, dict[str, float | None]] = {
    "cuda": {"prompts": 50, "tokens": 256, "steps": 32, "layers": None, "error_bound": 0.05},
    "cpu": {"prompts": 2, "tokens": 8, "steps": 8, "layers": 2, "error_bound": 1e-3},
}


@dataclass(frozen=True, slots=True)
class Way:
    """Where experts beyond VRAM are computed, who guesses the next ones, who chooses, and more of ``DeviceConfig``."""

    placement: str
    predictor: str = "off"
    routing: str = "gpu"
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return " ".join(
            [self.placement, self.predictor, self.routing, *(f"{key}={value}" for key, value in self.settings)]
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """``device``: "cuda" or "cpu". ``slots``: of VRAM, for the experts of a layer."""

    device: str
    slots: int

    def load(self, store: Store, way: Way, task: Task, max_batch: int) -> tuple[Runner, EngineConfig]:
        """On a CPU in float32, its threads with activations of 15 bits: where they round to 8, a router that wavers may
        choose another expert, and a fault hides beside that."""
        layout = store.manifest.contents.experts
        assert layout is not None, "a model with experts is needed"
        resident, length = way.placement == "vram", task.max_model_len
        device = DeviceConfig(
            device=self.device,  # type: ignore[arg-type]
            num_threads=1 if self.device == "cpu" else None,
            expert_vram_bytes=None if resident else self.slots * len(layout.layers) * layout.blob_bytes,
            expert_placement=way.placement,  # type: ignore[arg-type]
            prefetch=way.predictor,  # type: ignore[arg-type]
            prefetch_probability=0.15,
            routing_device=way.routing,  # type: ignore[arg-type]
        )
        config = EngineConfig(
            model=str(store.path),
            device=replace(device, **dict(way.settings)),
            cache=CacheConfig(num_kv_tokens=max_batch * (length + CacheConfig().block_size), prefix_cache=False),
            scheduler=SchedulerConfig(max_model_len=length, max_num_seqs=max_batch, max_num_batched_tokens=512),
        )
        with ExitStack() as stack:
            stack.enter_context(patch.object(placement_module, "MIN_SLOTS", self.slots))
            if self.device == "cuda":
                return Runner.load(store, config), config
            stack.enter_context(patch.object(cpu_module, "PoolOptions", partial(PoolOptions, activations="int16")))
            kernels = BlobKernels() if resident else CachedKernels()
            stack.enter_context(patch.object(runner_module, "kernels_for", lambda device, dtype: kernels))
            return Runner.load(store, config, compute_dtype=torch.float32), config


VRAM = Way("vram")
# Of both bounds, for another batch size: it takes other kernels, which round activations otherwise, and then a router
# that wavers chooses other experts. One H200, 2026-11-30: 5.3e-2, and 1.0e-2 where experts are all the same.
BATCH_BOUND = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One way at one batch size."""

    model: str
    way: str
    batch_size: int
    compared: Compared

    def __str__(self) -> str:
        c = self.compared
        far = f"; {c.farthest}" if c.farthest else ""
        return (
            f"{self.model:14} {self.way:34} {self.batch_size:5} {c.same:8.1%} {c.whole:4}/{c.prompts:<4} "
            f"{c.error:9.1e} {c.worst:9.1e}{far}"
        )


HEAD = f"{'model':14} {'way':34} batch   tokens prompts       error     worst"


def rows_of(
    name: str, store: Store, task: Task, ways: Sequence[Way], batch_sizes: Sequence[int], machine: Machine
) -> Iterator[Row]:
    """Rows as they come. Those of all in VRAM compare a batch size with the first one: what that alone changes."""
    resident, config = machine.load(store, VRAM, task, max(batch_sizes))
    expected = {size: answer(store, resident, config, task, size) for size in batch_sizes}
    first = expected[batch_sizes[0]]
    for size in batch_sizes[1:]:
        # Each batch size decodes other parts of the text, but for the first.
        alone, many = (Answer(some.tokens, some.logits[:, :1]) for some in (first, expected[size]))
        yield Row(name, str(VRAM), size, compare(many, alone, task, resident))
    for way in ways:
        runner, config = machine.load(store, way, task, max(batch_sizes))
        tier = runner.model.tier
        assert tier is not None
        try:
            for size in batch_sizes:
                found = answer(store, runner, config, task, size)
                yield Row(name, str(way), size, compare(found, expected[size], task, resident))
        finally:
            tier.close()


def all_ways(
    placements: Sequence[str],
    predictors: Sequence[str],
    routings: Sequence[str],
    settings: Sequence[tuple[str, Sequence[Any]]],
) -> list[Way]:
    """Each with each. ``settings``: names of fields and the values of each."""
    names = [name for name, _ in settings]
    values = itertools.product(*(values for _, values in settings))
    more = [tuple(zip(names, chosen, strict=True)) for chosen in values]
    return [Way(*way) for way in itertools.product(placements, predictors, routings, more)]


def upcycled(directory: Path, given: argparse.Namespace) -> Iterator[tuple[str, Store, Task]]:
    """A store for each format of experts, with parts of a real text."""
    source = given.checkpoint or builtin_path(BuiltinName(SMOLLM2))
    for form in given.formats:
        name = f"upcycled-{form}-{given.layers or 'all'}-{given.noise:g}"
        path = directory / name
        if not path.exists():
            file = directory / f"{name}.gguf"
            convert(
                str(upcycle(source, file, layers=given.layers, noise=given.noise, kind=FORMATS[form])), path, "int4"
            )
            file.unlink()
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        text = TEXT.read_text("utf-8")
        words = text.split()
        each = len(words) // given.prompts
        assert each >= 8, f"{TEXT} has {len(words)} words; {given.prompts} prompts of 8 or more are wanted"
        prompts = [tokenizer.encode(" ".join(words[i * each :][: min(each, 20)])).ids for i in range(given.prompts)]
        yield f"SmolLM2 {form}", Store.open(path), Task(prompts, given.tokens, tokenizer.encode(text).ids, given.steps)


def tiny(directory: Path, given: argparse.Namespace) -> Iterator[tuple[str, Store, Task]]:
    """One of each architecture, with random tokens."""
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(2, 96, (4 * max(given.batch_sizes) + 64 + GIVEN,), generator=draw).tolist()
    prompts = [text[i % 8 :][: 4 + i % 16] for i in range(given.prompts)]
    task = Task(prompts, min(given.tokens, TINY_LEN - 21), text, min(given.steps, 64))
    for name, table in ARCHITECTURES.items():
        path = directory / f"tiny-{name.replace(' ', '-')}"
        store = Store.open(path / "store") if path.exists() else made_store(path, "int4", name)
        yield table["architectures"][0].removesuffix("ForCausalLM"), store, task


MODELS = {"upcycled": upcycled, "tiny": tiny}


def setting(text: str) -> tuple[str, list[Any]]:
    """``FIELD=VALUE,VALUE``."""
    name, _, values = text.partition("=")
    known = {field.name: field.default for field in fields(DeviceConfig)}
    if name not in known or not values:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE[,VALUE] of: {', '.join(known)}")
    kind = type(known[name])
    return name, [kind(value) if kind in (int, float) else value for value in values.split(",")]


def several(*known: str) -> Any:
    """Some of them, with commas."""

    def convert_(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} not known; known: {', '.join(known)}")
        return text.split(",")

    return convert_


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make equal", description=__doc__)
    add = parser.add_argument
    placements = [way for way in EXPERT_PLACEMENTS if way not in ("auto", "vram")]
    predictors = [way for way in PREFETCH if way != "auto"]
    routings = [device for device in ROUTING_DEVICES if device != "auto"]
    add("--models", type=several(*MODELS), default=list(MODELS), help=f"of {','.join(MODELS)} (default: all)")
    add("--checkpoint", type=Path, help=f"GGUF file of the dense Llama to upcycle (default: builtin://{SMOLLM2})")
    add("--layers", type=int, metavar="N", help="of it, the first N (default: all on a card, 2 without)")
    add(
        "--noise", type=float, default=0.3, help="how much experts differ (default: %(default)s of a matrix' deviation)"
    )
    add("--formats", type=several(*FORMATS), default=list(FORMATS), help=f"of {','.join(FORMATS)} (default: all)")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a card where there is one")
    add("--placements", type=several(*placements), default=placements, help=f"of {','.join(placements)} (default: all)")
    add("--predictors", type=several(*predictors), default=predictors, help=f"of {','.join(predictors)} (default: all)")
    add("--routing", type=several(*routings), default=routings, help=f"of {','.join(routings)} (default: all)")
    add("--set", type=setting, action="append", default=[], metavar="FIELD=VALUE,VALUE", help="more of DeviceConfig")
    add("--batch-sizes", type=lambda text: [*map(int, text.split(","))], default=[1, 4, 16], help="default: 1,4,16")
    add("--prompts", type=int, metavar="N", help="default: 50 on a card, 2 without")
    add("--tokens", type=int, metavar="N", help="greedy tokens of each prompt (default: 256 on a card, 8 without)")
    add("--steps", type=int, metavar="N", help="of a given text, whose logits are compared (default: 32, 8 without)")
    add("--slots", type=int, default=2, metavar="N", help="of VRAM, for experts of a layer (default: %(default)s)")
    add("--error-bound", type=float, help="of the logits, relative (default: 0.05 on a card, 0.001 without)")
    add("--margin-bound", type=float, default=0.25, help="by which another token may be behind (see --help's end)")
    add("--directory", type=Path, help="of stores, which are kept (default: a temporary one)")
    parser.epilog = (
        "A token that differs is allowed where all in VRAM has it less than --margin-bound behind its own, in "
        "standard deviations of a token's logits (default: 0.25), or no further than all in VRAM is itself at another "
        "batch size, where a router that wavers chooses other experts: rounding explains no more. Exit code 1 where "
        "one is further behind, or the logits' relative error is above --error-bound."
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where something is not equal."""
    given = options().parse_args(arguments)
    device = given.device if given.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    for option, value in SIZES[device].items():
        if getattr(given, option) is None:
            setattr(given, option, value)
    ways = all_ways(given.placements, given.predictors, given.routing, given.set)
    problems: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, patch.dict(os.environ, STRATA_CACHE_DIR=f"{scratch}/cache"):
        directory = given.directory or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        print(HEAD, flush=True)
        for model in given.models:
            for name, store, task in MODELS[model](directory, given):
                itself = 0.0  # how far behind all in VRAM is at another batch size
                for row in rows_of(name, store, task, ways, given.batch_sizes, Machine(device, given.slots)):
                    print(row, flush=True)
                    error, behind = given.error_bound, given.margin_bound * row.compared.spread
                    if row.way == str(VRAM):
                        itself = max(itself, row.compared.behind)
                        found = row.compared.problems(BATCH_BOUND * error, BATCH_BOUND * behind)
                    else:
                        found = row.compared.problems(error, max(behind, itself))
                    problems += [f"{row.model}, {row.way}, batch {row.batch_size}: {problem}" for problem in found]
    print(f"{time.monotonic() - began:.0f} s on {device}")
    for problem in problems:
        print(f"not equal: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
