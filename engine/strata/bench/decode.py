"""Decode speed beside what the memory's bandwidth allows.

    bound = batch size * bandwidth / bytes that a step reads: weights, experts that its tokens take, KV cache

Bandwidth is measured in the same run, on the same device with the same threads. Tokens come from the engine's own loop,
so that scheduling, drawing and what runs ahead of what are in the figure, as a server has them.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strata.bench.bandwidth import read_bandwidth
from strata.bench.loaded import AUTO, Loaded, check_positive, open_model, read_of_step, requests, table
from strata.config import DeviceConfig
from strata.plan.speed import Rates, roofline
from strata.plan.units import format_bytes

if TYPE_CHECKING:
    from strata.experts.counts import ExpertCounts
    from strata.runner.runner import Runner
    from strata.store.progress import Phases

WARM_UP = 8  # decode steps that are not counted: torch builds its kernels at their first call


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """One measurement. Sizes in bytes, times in seconds, rates per second."""

    model: str
    dtype: str
    device: str
    num_threads: int
    batch_size: int  # sequences decoded together
    prompt_tokens: int  # of each
    output_tokens: int  # of each
    bytes_per_step: dict[str, int]  # by what is read: "weights", "experts", "KV cache" (at the middle of the output)
    bandwidth: float
    bound_tokens_per_second: float  # the planner's, at that bandwidth
    prefill_seconds: float
    decode_seconds: float
    median_step_seconds: float
    experts: dict[str, float] | None  # where steps found them, as shares; None where all are always in one place

    @property
    def tokens_per_second(self) -> float:
        return self.batch_size * self.output_tokens / self.decode_seconds

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **asdict(self),
            "tokens_per_second": self.tokens_per_second,
            "ratio": self.tokens_per_second / self.bound_tokens_per_second,
        }

    def lines(self) -> tuple[str, ...]:
        """A table for people."""
        read = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.bytes_per_step.items() if size)
        rows = {
            "model": f"{self.model} {self.dtype}",
            "device": f"{self.device}, {self.num_threads} threads",
            "prompt, output": f"{self.prompt_tokens}, {self.output_tokens} tokens at batch {self.batch_size}",
            "read a step": read,
            "memory read": f"{self.bandwidth / 1e9:.1f} GB/s measured",
            "bound": f"{self.bound_tokens_per_second:.1f} tok/s"
            + ("" if self.experts is None else ", were all experts in VRAM"),
            "decode": f"{self.tokens_per_second:.1f} tok/s, median step {self.median_step_seconds * 1e3:.2f} ms",
            "decode / bound": f"{self.tokens_per_second / self.bound_tokens_per_second:.2f}",
            "prefill": f"{self.batch_size * self.prompt_tokens / self.prefill_seconds:.1f} tok/s",
        }
        if self.experts is not None:
            rows["experts"] = ", ".join(f"{share:.1%} {where}" for where, share in self.experts.items())
        return table(rows)


def run(
    source: str,
    dtype: str = "int4",
    *,
    device: DeviceConfig = AUTO,
    batch_size: int = 1,
    prompt_tokens: int = 64,
    output_tokens: int = 128,
    progress: Phases,
) -> DecodeReport:
    """Prefill random prompts, then decode greedily, and measure.

    ``source``: what ``strata serve`` takes. ``progress``: called with (phase, done, total). Raises UsageError when an
    argument is at fault.
    """
    check_positive(batch_size=batch_size, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    loaded = open_model(
        source,
        dtype,
        device=device,
        max_model_len=prompt_tokens + 1 + WARM_UP + output_tokens,
        max_num_seqs=batch_size,
        max_num_batched_tokens=max(batch_size * prompt_tokens, 512),
        progress=progress,
    )
    import torch

    store, runner = loaded.store, loaded.runner
    before = read_bandwidth(runner.device)
    before_counts = _counts(runner)
    prefill_seconds, steps = _decode(loaded, batch_size, prompt_tokens, output_tokens, progress)
    # What else runs on the machine comes and goes: the better of two moments bounds what lies between.
    bandwidth = max(before, read_bandwidth(runner.device))
    step = read_of_step(
        store,
        context=prompt_tokens + 1 + WARM_UP + output_tokens // 2,
        num_seqs=batch_size,
        element_bytes=runner.pool.tensor.element_size(),
    )
    return DecodeReport(
        model=source,
        dtype=store.dtype,
        device=runner.device_name,
        num_threads=torch.get_num_threads(),
        batch_size=batch_size,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        bytes_per_step={"weights": round(step.weights), "experts": round(step.experts), "KV cache": round(step.kv)},
        bandwidth=bandwidth,
        bound_tokens_per_second=roofline(step, Rates(bandwidth)).tokens_per_second,
        prefill_seconds=prefill_seconds,
        decode_seconds=sum(steps),
        median_step_seconds=statistics.median(steps),
        experts=_shares(before_counts, _counts(runner)),
    )


def _counts(runner: Runner) -> ExpertCounts | None:
    return None if runner.model.tier is None else runner.model.tier.counts()


def _shares(before: ExpertCounts | None, after: ExpertCounts | None) -> dict[str, float] | None:
    return None if before is None or after is None else after.since(before).shares()


def _decode(
    loaded: Loaded, batch_size: int, prompt_tokens: int, output_tokens: int, progress: Phases
) -> tuple[float, list[float]]:
    """Seconds of the prefill and of each counted decode step."""
    loop = loaded.loop()
    num_steps = WARM_UP + output_tokens

    def step() -> float:
        began = time.perf_counter()
        outputs = loop.step().outputs  # the tokens are there
        seconds = time.perf_counter() - began
        assert len(outputs) == batch_size, f"{len(outputs)} of {batch_size} requests have a token"
        return seconds

    for request in requests(loaded, batch_size, prompt_tokens, max_tokens=2, seed=1):
        loop.add(request)
    step()
    step()
    for request in requests(loaded, batch_size, prompt_tokens, max_tokens=1 + num_steps):
        loop.add(request)
    prefill_seconds = step()
    steps = []
    for i in range(num_steps):
        steps.append(step())
        progress("decode", i + 1, num_steps)
    return prefill_seconds, steps[WARM_UP:]
