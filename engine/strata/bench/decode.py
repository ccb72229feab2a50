"""Decode speed beside what the planner expects, and what bytes and rates allow.

Rates are measured in the same run, on the same device with the same threads. Tokens come from the engine's own loop, so
that scheduling, drawing and what runs ahead of what are in the figure, as a server has them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strata.bench.loaded import AUTO, Loaded, check_positive, open_model, parts_of, requests, table
from strata.bench.report import Moved, Setting, Speed
from strata.config import DeviceConfig
from strata.plan.expect import Place, expect_decode
from strata.plan.speed import Shares, StepBytes, roofline, step_bytes
from strata.plan.units import format_bytes

if TYPE_CHECKING:
    from strata.experts.counts import ExpertStats
    from strata.store.progress import Phases

WARM_UP = 8  # decode steps that are not counted: torch builds its kernels at their first call


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """One measurement. Sizes in bytes, times in seconds, rates per second."""

    setting: Setting
    batch_size: int  # sequences decoded together
    prompt_tokens: int  # of each
    output_tokens: int  # of each
    bytes_per_step: dict[str, int]  # by what is read: "weights", "experts", "KV cache" (at the middle of the output)
    moved: Moved
    speed: Speed
    prefill_seconds: float
    median_step_seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **self.setting.as_dict(),
            "batch_size": self.batch_size,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "bytes_per_step": self.bytes_per_step,
            **self.moved.as_dict(),
            **self.speed.as_dict(),
            "prefill_seconds": self.prefill_seconds,
            "median_step_seconds": self.median_step_seconds,
        }

    def lines(self) -> tuple[str, ...]:
        """A table for people."""
        read = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.bytes_per_step.items() if size)
        return table(
            self.setting.rows()
            | {
                "prompt, output": f"{self.prompt_tokens}, {self.output_tokens} tokens at batch {self.batch_size}",
                "read a step": read,
                "decode": f"{self.speed.measured:.1f} tok/s, median step {self.median_step_seconds * 1e3:.2f} ms",
                "prefill": f"{self.batch_size * self.prompt_tokens / self.prefill_seconds:.1f} tok/s",
            }
            | self.moved.rows("step")
            | self.speed.rows("decode")
        )


def run(
    source: str,
    dtype: str = "int4",
    *,
    device: DeviceConfig = AUTO,
    batch_sizes: Sequence[int] = (1,),
    prompt_tokens: int = 64,
    output_tokens: int = 128,
    progress: Phases,
) -> Iterator[DecodeReport]:
    """Prefill random prompts, then decode greedily, and measure, for one batch size after another.

    ``source``: what ``strata serve`` takes. ``progress``: called with (phase, done, total). Raises UsageError when an
    argument is at fault.
    """
    check_positive(batch_size=min(batch_sizes), prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    loaded = load(source, dtype, device, max(batch_sizes), prompt_tokens, output_tokens, progress)
    setting = Setting.of(loaded)
    for batch_size in batch_sizes:
        yield measure(loaded, setting, batch_size, prompt_tokens, output_tokens, progress)


def load(
    source: str,
    dtype: str,
    device: DeviceConfig,
    batch_size: int,
    prompt_tokens: int,
    output_tokens: int,
    progress: Phases,
) -> Loaded:
    """A model that ``measure`` can be called with, for up to these numbers."""
    return open_model(
        source,
        dtype,
        device=device,
        max_model_len=prompt_tokens + 1 + WARM_UP + output_tokens,
        max_num_seqs=batch_size,
        max_num_batched_tokens=max(batch_size * prompt_tokens, 512),
        progress=progress,
    )


def measure(
    loaded: Loaded, setting: Setting, batch_size: int, prompt_tokens: int, output_tokens: int, progress: Phases
) -> DecodeReport:
    """One batch size."""
    ran = _decode(loaded, batch_size, prompt_tokens, output_tokens, progress)
    model, parts = loaded.store.model_config, parts_of(loaded.store)
    context = prompt_tokens + 1 + WARM_UP + output_tokens // 2
    element_bytes = loaded.runner.caches.kv.tensor.element_size()
    step = step_bytes(model, parts, context=context, num_seqs=batch_size, element_bytes=element_bytes)
    moved = _moved(ran, step, setting, output_tokens)
    hits = setting.vram if moved.hit_ratio is None else moved.hit_ratio
    expected = None
    if setting.is_card:
        expected = expect_decode(
            model,
            parts,
            setting.rates,
            context=context,
            num_seqs=batch_size,
            place=replace(setting.place or Place(), hits=moved.hit_ratio, ahead=moved.ahead),
            element_bytes=element_bytes,
        )
    return DecodeReport(
        setting=setting,
        batch_size=batch_size,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        bytes_per_step={"weights": round(step.weights), "experts": round(step.experts), "KV cache": round(step.kv)},
        moved=moved,
        speed=Speed(
            batch_size * output_tokens / sum(ran.steps),
            roofline(step, setting.rates, Shares(hits, 1 - hits)),
            expected,
        ),
        prefill_seconds=ran.prefill_seconds,
        median_step_seconds=statistics.median(ran.steps),
    )


@dataclass(frozen=True, slots=True)
class _Ran:
    """Seconds of the prefill and of each counted decode step; what was counted around these."""

    prefill_seconds: float
    steps: list[float]
    before: ExpertStats | None
    after: ExpertStats | None


def _moved(ran: _Ran, step: StepBytes, setting: Setting, num_steps: int) -> Moved:
    shared = step.weights + step.kv
    if ran.before is None or ran.after is None:
        return Moved.of(shared, step.experts, setting=setting)
    return Moved.counted(shared, ran.before, ran.after, num_steps)


def _decode(loaded: Loaded, batch_size: int, prompt_tokens: int, output_tokens: int, progress: Phases) -> _Ran:
    loop, runner = loaded.loop(), loaded.runner
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
    steps, before = [], None
    for i in range(num_steps):
        if i == WARM_UP:
            before = runner.expert_stats(wait=True)
        steps.append(step())
        progress("decode", i + 1, num_steps)
    return _Ran(prefill_seconds, steps[WARM_UP:], before, runner.expert_stats(wait=True))
