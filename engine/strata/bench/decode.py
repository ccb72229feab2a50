"""Decode speed beside what the memory's bandwidth allows.

    bound = batch size * bandwidth / (bytes of weights that a step reads + bytes of KV cache that its sequences read)

Bandwidth is measured in the same run, on the same device with the same threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strata.bench.bandwidth import read_bandwidth
from strata.bench.loaded import check_positive, open_runner, table, together
from strata.plan.parts import sum_parts
from strata.plan.speed import kv_read_bytes, step_bytes
from strata.plan.units import format_bytes

if TYPE_CHECKING:
    from strata.runner.runner import Runner
    from strata.store.progress import Phases
    from strata.store.reader import Store

WARM_UP = 4  # decode steps that are not counted: torch builds its kernels at their first call


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
    weight_bytes_per_step: int
    kv_bytes_per_token: int  # at the middle of the output
    bandwidth: float
    prefill_seconds: float
    decode_seconds: float
    median_step_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.batch_size * self.output_tokens / self.decode_seconds

    @property
    def bound_tokens_per_second(self) -> float:
        step_bytes = self.weight_bytes_per_step + self.batch_size * self.kv_bytes_per_token
        return self.batch_size * self.bandwidth / step_bytes

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **asdict(self),
            "tokens_per_second": self.tokens_per_second,
            "bound_tokens_per_second": self.bound_tokens_per_second,
            "ratio": self.tokens_per_second / self.bound_tokens_per_second,
        }

    def lines(self) -> tuple[str, ...]:
        """A table for people."""
        rows = {
            "model": f"{self.model} {self.dtype}",
            "device": f"{self.device}, {self.num_threads} threads",
            "prompt, output": f"{self.prompt_tokens}, {self.output_tokens} tokens at batch {self.batch_size}",
            "weights a step": format_bytes(self.weight_bytes_per_step),
            "KV a token": f"{format_bytes(self.kv_bytes_per_token)} (mean)",
            "memory read": f"{self.bandwidth / 1e9:.1f} GB/s measured",
            "bound": f"{self.bound_tokens_per_second:.1f} tok/s",
            "decode": f"{self.tokens_per_second:.1f} tok/s, median step {self.median_step_seconds * 1e3:.2f} ms",
            "decode / bound": f"{self.tokens_per_second / self.bound_tokens_per_second:.2f}",
            "prefill": f"{self.batch_size * self.prompt_tokens / self.prefill_seconds:.1f} tok/s",
        }
        return table(rows)


def run(
    source: str,
    dtype: str = "int4",
    *,
    device: str = "auto",
    num_threads: int | None = None,
    expert_vram_bytes: int | None = None,
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
    total = prompt_tokens + WARM_UP + output_tokens
    store, runner = open_runner(
        source,
        dtype,
        device=device,
        num_threads=num_threads,
        expert_vram_bytes=expert_vram_bytes,
        max_model_len=total,
        max_num_seqs=batch_size,
        progress=progress,
    )
    import torch

    before = read_bandwidth(runner.device)
    prefill_seconds, steps = _decode(runner, batch_size, prompt_tokens, output_tokens, progress)
    # What else runs on the machine comes and goes: the better of two moments bounds what lies between.
    bandwidth = max(before, read_bandwidth(runner.device))
    model = store.model_config
    mean_length = prompt_tokens + WARM_UP + output_tokens // 2
    return DecodeReport(
        model=source,
        dtype=store.dtype,
        device=runner.device_name,
        num_threads=torch.get_num_threads(),
        batch_size=batch_size,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        weight_bytes_per_step=weight_bytes_per_step(store, batch_size),
        kv_bytes_per_token=kv_read_bytes(model, mean_length, runner.pool.tensor.element_size()),
        bandwidth=bandwidth,
        prefill_seconds=prefill_seconds,
        decode_seconds=sum(steps),
        median_step_seconds=statistics.median(steps),
    )


def weight_bytes_per_step(store: Store, batch_size: int) -> int:
    """Bytes of weights that a decode step reads, as they are stored: of an embedding that is not also the head one row,
    of the experts those that the tokens take if they draw evenly, of the rest all."""
    parts = sum_parts(store.model_config, lambda spec: store.manifest.contents.weight(spec).num_bytes)
    step = step_bytes(store.model_config, parts, context=0, num_seqs=batch_size)
    return round(step.weights + step.experts)


def _decode(
    runner: Runner, batch_size: int, prompt_tokens: int, output_tokens: int, progress: Phases
) -> tuple[float, list[float]]:
    """Seconds of the prefill and of each counted decode step."""
    import torch

    total = prompt_tokens + WARM_UP + output_tokens

    def step(token_ids: Sequence[Sequence[int]], start: int) -> list[int]:
        drawn: list[int] = runner.run(together(runner, token_ids, start, total)).best.tolist()
        return drawn  # the list waits for the device

    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, runner.vocab_size, (batch_size, prompt_tokens), generator=generator).tolist()
    step(prompts, 0)
    began = time.perf_counter()
    tokens = step(prompts, 0)
    prefill_seconds = time.perf_counter() - began
    steps = []
    for i in range(WARM_UP + output_tokens):
        began = time.perf_counter()
        tokens = step([(token,) for token in tokens], prompt_tokens + i)
        steps.append(time.perf_counter() - began)
        progress("decode", i + 1, WARM_UP + output_tokens)
    return prefill_seconds, steps[WARM_UP:]
