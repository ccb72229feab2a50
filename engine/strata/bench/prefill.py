"""Prefill speed beside what the planner expects, and what the device allows.

Every chunk of a prompt reads all weights, brings the experts that VRAM has not over PCIe, and multiplies meanwhile: the
longest of the three bounds it. Rates are measured in the same run. Attention comes on top, and grows with the prompt.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata.bench.loaded import AUTO, Loaded, check_positive, open_model, parts_of, requests, table
from strata.bench.report import Moved, Setting, Speed
from strata.config import DeviceConfig
from strata.plan.expect import Place, expect_prefill
from strata.plan.speed import multiplications_per_token, prefill_roofline, step_bytes

if TYPE_CHECKING:
    from strata.store.progress import Phases

PROMPTS = 3  # that are measured, one after another


@dataclass(frozen=True, slots=True)
class PrefillReport:
    """One measurement. Sizes in bytes, times in seconds, rates per second."""

    setting: Setting
    prompt_tokens: int
    chunk_tokens: int  # of one step, at most
    multiplications_per_token: int  # of weights alone
    moved: Moved
    speed: Speed
    seconds: float  # to the first token, median

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **self.setting.as_dict(),
            "prompt_tokens": self.prompt_tokens,
            "chunk_tokens": self.chunk_tokens,
            "multiplications_per_token": self.multiplications_per_token,
            **self.moved.as_dict(),
            **self.speed.as_dict(),
            "seconds": self.seconds,
        }

    def lines(self) -> tuple[str, ...]:
        """A table for people."""
        return table(
            self.setting.rows()
            | {
                "prompt": f"{self.prompt_tokens} tokens in chunks of {self.chunk_tokens}",
                "computing": f"{2 * self.multiplications_per_token / 1e9:.2f} GFLOP a token",
                "prefill": f"{self.speed.measured:.0f} tok/s, {self.seconds * 1e3:.1f} ms to the first token",
            }
            | self.moved.rows("prompt")
            | self.speed.rows("prefill")
        )


def run(
    source: str,
    dtype: str = "int4",
    *,
    device: DeviceConfig = AUTO,
    prompt_tokens: Sequence[int] = (2048,),
    chunk_tokens: int | None = None,
    progress: Phases,
) -> Iterator[PrefillReport]:
    """Prefill random prompts, one after another, and measure the time to each one's first token, for one length after
    another.

    ``chunk_tokens``: of a step, at most; None: the whole prompt. The rest as ``bench.decode.run``.
    """
    check_positive(prompt_tokens=min(prompt_tokens), chunk_tokens=1 if chunk_tokens is None else chunk_tokens)
    longest = max(prompt_tokens)
    chunk = longest if chunk_tokens is None else min(chunk_tokens, longest)
    loaded = open_model(
        source, dtype, device=device, max_model_len=longest + 1, max_num_batched_tokens=chunk, progress=progress
    )
    setting = Setting.of(loaded)
    for tokens in prompt_tokens:
        yield _measure(loaded, setting, tokens, min(chunk, tokens), progress)


def _measure(loaded: Loaded, setting: Setting, tokens: int, chunk: int, progress: Phases) -> PrefillReport:
    runner, model, parts = loaded.runner, loaded.store.model_config, parts_of(loaded.store)
    before = runner.expert_stats(wait=True)
    seconds = statistics.median(_prefill(loaded, tokens, progress))
    after = runner.expert_stats(wait=True)
    steps = [
        step_bytes(model, parts, context=0, num_seqs=min(chunk, tokens - start)) for start in range(0, tokens, chunk)
    ]
    shared, experts = sum(step.weights for step in steps), sum(step.experts for step in steps)
    moved = Moved.of(shared, experts, setting=setting)
    if before is not None and after is not None:
        moved = Moved.counted(shared, before, after, 1 + PROMPTS)
    expected = None
    if setting.is_card:
        place = setting.place or Place()
        expected = expect_prefill(model, parts, setting.rates, tokens=tokens, chunk_tokens=chunk, place=place)
    return PrefillReport(
        setting=setting,
        prompt_tokens=tokens,
        chunk_tokens=chunk,
        multiplications_per_token=multiplications_per_token(model),
        moved=moved,
        speed=Speed(
            tokens / seconds,
            prefill_roofline(model, parts, setting.rates, tokens=tokens, chunk_tokens=chunk, vram=setting.vram),
            expected,
        ),
        seconds=seconds,
    )


def _prefill(loaded: Loaded, prompt_tokens: int, progress: Phases) -> list[float]:
    """Seconds to the first token of each measured prompt."""
    loop = loaded.loop()
    seconds = []
    for i in range(1 + PROMPTS):  # the first is not counted: kernels are built at their first call
        (request,) = requests(loaded, 1, prompt_tokens, max_tokens=1, seed=i)
        loop.add(request)
        began = time.perf_counter()
        while loop.has_work:
            loop.step()
        seconds.append(time.perf_counter() - began)
        progress("prefill", (i + 1) * prompt_tokens, (1 + PROMPTS) * prompt_tokens)
    return seconds[1:]
