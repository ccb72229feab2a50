"""Prefill speed beside what the device allows.

    bound = tokens / max(2 * weights that a token takes * tokens / multiply rate, bytes of all weights / bandwidth)

Both rates are measured in the same run: a product of large bf16 matrices, a read of a large buffer. Attention comes on
top, and grows with the prompt.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strata.bench.bandwidth import multiply_rate, read_bandwidth
from strata.bench.loaded import AUTO, Loaded, check_positive, open_model, read_of_step, requests, table
from strata.config import DeviceConfig
from strata.plan.shape import Role, needed
from strata.plan.units import format_bytes

if TYPE_CHECKING:
    from strata.config import ModelConfig
    from strata.store.progress import Phases

PROMPTS = 3  # that are measured, one after another


@dataclass(frozen=True, slots=True)
class PrefillReport:
    """One measurement. Sizes in bytes, times in seconds, rates per second."""

    model: str
    dtype: str
    device: str
    num_threads: int
    prompt_tokens: int
    chunk_tokens: int  # of one step, at most
    weight_bytes: int  # read once a chunk
    multiplications_per_token: int  # of weights alone
    bandwidth: float
    multiply_rate: float
    seconds: float  # to the first token, median

    @property
    def tokens_per_second(self) -> float:
        return self.prompt_tokens / self.seconds

    @property
    def bound_tokens_per_second(self) -> float:
        """Every chunk reads the weights once, and multiplies meanwhile."""
        num_chunks = -(-self.prompt_tokens // self.chunk_tokens)
        computing = 2 * self.multiplications_per_token * self.prompt_tokens / self.multiply_rate
        return self.prompt_tokens / max(computing, num_chunks * self.weight_bytes / self.bandwidth)

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
            "prompt": f"{self.prompt_tokens} tokens in chunks of {self.chunk_tokens}",
            "weights": f"{format_bytes(self.weight_bytes)} a chunk",
            "computing": f"{2 * self.multiplications_per_token / 1e9:.2f} GFLOP a token",
            "memory read": f"{self.bandwidth / 1e9:.1f} GB/s measured",
            "products": f"{self.multiply_rate / 1e12:.1f} TFLOP/s measured",
            "bound": f"{self.bound_tokens_per_second:.0f} tok/s",
            "prefill": f"{self.tokens_per_second:.0f} tok/s, {self.seconds * 1e3:.1f} ms to the first token",
            "prefill / bound": f"{self.tokens_per_second / self.bound_tokens_per_second:.2f}",
        }
        return table(rows)


def run(
    source: str,
    dtype: str = "int4",
    *,
    device: DeviceConfig = AUTO,
    prompt_tokens: int = 2048,
    chunk_tokens: int | None = None,
    progress: Phases,
) -> PrefillReport:
    """Prefill random prompts, one after another, and measure the time to each one's first token.

    ``chunk_tokens``: of a step, at most; None: the whole prompt. The rest as ``bench.decode.run``.
    """
    check_positive(prompt_tokens=prompt_tokens, chunk_tokens=1 if chunk_tokens is None else chunk_tokens)
    chunk_tokens = prompt_tokens if chunk_tokens is None else min(chunk_tokens, prompt_tokens)
    loaded = open_model(
        source,
        dtype,
        device=device,
        max_model_len=prompt_tokens + 1,
        max_num_batched_tokens=chunk_tokens,
        progress=progress,
    )
    import torch

    store, runner = loaded.store, loaded.runner
    seconds = _prefill(loaded, prompt_tokens, progress)
    step = read_of_step(store, context=0, num_seqs=chunk_tokens)
    return PrefillReport(
        model=source,
        dtype=store.dtype,
        device=runner.device_name,
        num_threads=torch.get_num_threads(),
        prompt_tokens=prompt_tokens,
        chunk_tokens=chunk_tokens,
        weight_bytes=round(step.weights + step.experts),
        multiplications_per_token=multiplications_per_token(store.model_config),
        bandwidth=read_bandwidth(runner.device),
        multiply_rate=multiply_rate(runner.device),
        seconds=statistics.median(seconds),
    )


def multiplications_per_token(model: ModelConfig) -> int:
    """Weights that a token is multiplied with in all layers: of the experts those that it takes. Neither the embedding
    nor the head is: a chunk needs the logits of its last token alone."""
    taken = {Role.MATRIX: 1.0, Role.ROUTER: 1.0, Role.EXPERT: 0.0}
    if model.experts is not None:
        taken[Role.EXPERT] = model.experts.num_experts_per_tok / model.experts.num_experts
    return round(sum(taken.get(spec.role, 0.0) * math.prod(spec.shape) for spec in needed(model)))


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
