"""How fast decoding can be at most: bytes that a step moves over the rates at which they move.

    t_step = (D + h*A + B*K(L)) / G  +  r*A / min(P + C, M)  +  d*A / S  +  t_sync        tok/s = B / t_step

    D  bytes of the weights that every step reads          G  read rate of the memory of the device that computes
    A  bytes of the routed experts that a step reads       P  PCIe to the card      C  the CPU's expert kernels
    h, r, d  shares of A in VRAM, in host memory, on disk  M  host memory           S  the disk
    K(L)  bytes of one sequence's KV at context L, and     B  sequences decoded together
          of its states, read and written

It is a bound from below on time: arithmetic, launches and caches are not in it, and a term never hides behind another
where both use the same memory. On a CPU everything is read from host memory: G = M and h = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata.config import ModelConfig
from strata.plan.parts import WeightParts, weight_counts
from strata.plan.states import state_bytes

# One round trip from a CUDA graph to a CPU thread and back by stream memory operations, once a layer that has a miss.
# 3.3 us for a spinning kernel, 30 to 50 us for a host function.
SYNC_SECONDS = 6.5e-6


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second. ``device``: the memory that the computing device reads; the next four serve experts beyond it.
    What only ``plan.expect`` uses: ``flops``, multiplications and additions a second of large bf16 products;
    ``cycles``, multiprocessors * clock; ``overlaps``, whether a launch overlaps with the kernel before it."""

    device: float
    pcie: float = 0.0
    cpu: float = 0.0
    dram: float = 0.0
    disk: float = 0.0
    flops: float = 0.0
    cycles: float = 0.0
    overlaps: bool = True

    @property
    def misses(self) -> float:
        """Experts from host memory, over both legs: both of them read that memory."""
        return min(self.pcie + self.cpu, self.dram)


@dataclass(frozen=True, slots=True)
class Shares:
    """Where a step finds the bytes of its experts; the three make 1."""

    vram: float = 1.0
    ram: float = 0.0
    disk: float = 0.0


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What one decode step of ``num_seqs`` sequences moves. ``kv``: keys and values, and states. ``sync_layers``:
    layers whose misses the CPU may serve."""

    weights: float
    experts: float
    kv: float
    num_seqs: int
    sync_layers: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step by what they go to, at least (``roofline``) or as expected (``plan.expect``);
    ``tokens_per_second`` of all sequences together."""

    seconds: dict[str, float]
    tokens_per_second: float

    @property
    def limit(self) -> str:
        """The term that takes most of the step."""
        return max(self.seconds, key=lambda name: self.seconds[name])


def step_bytes(
    model: ModelConfig, parts: WeightParts, *, context: int, num_seqs: int = 1, element_bytes: int = 2
) -> StepBytes:
    """A step in which each of ``num_seqs`` sequences has ``context`` tokens in a KV cache of ``element_bytes``."""
    experts = 0.0
    num_expert_layers = sum(model.expert_layers)
    if model.experts is not None:
        distinct = distinct_experts(model.experts.num_experts, model.experts.num_experts_per_tok, num_seqs)
        experts = distinct * num_expert_layers * parts.expert
    kv = num_seqs * sequence_bytes(model, context, element_bytes)
    return StepBytes(parts.shared_per_token, experts, kv, num_seqs, num_expert_layers)


def distinct_experts(num_experts: int, top_k: int, num_tokens: int) -> float:
    """Experts of a layer that ``num_tokens`` tokens take together, when each draws its ``top_k`` evenly and on its own:
    n * (1 - (1 - k/n)^tokens). Real routing is uneven, so that it is fewer."""
    return num_experts * (1.0 - (1.0 - top_k / num_experts) ** num_tokens)


def sequence_bytes(model: ModelConfig, context: int, element_bytes: int) -> int:
    """Bytes that a token at position ``context`` moves of what its sequence has: it reads the KV cache, and reads and
    writes the states."""
    return kv_read_bytes(model, context, element_bytes) + 2 * state_bytes(model, element_bytes)


def kv_read_bytes(model: ModelConfig, context: int, element_bytes: int) -> int:
    """Bytes of KV cache that a token at position ``context`` reads; a layer with a sliding window reads no more than
    that, one with an indexer the keys of all groups, and what it chooses."""
    of_position, indexer = 2 * model.num_kv_heads * model.head_dim * element_bytes, model.indexer
    if indexer is not None:
        groups = context // indexer.group_size
        seen = min(context, indexer.budget + context % indexer.group_size)
        return model.num_kv_layers * (groups * indexer.head_dim * element_bytes + seen * of_position)
    return of_position * sum(context if window is None else min(context, window) for window in model.kv_windows)


def roofline(step: StepBytes, rates: Rates, shares: Shares = Shares()) -> StepTime:
    """The bound for one step. A rate of 0 where bytes must move gives 0 tok/s."""
    seconds = {"device memory": _over(step.weights + shares.vram * step.experts + step.kv, rates.device)}
    if shares.ram and step.experts:
        seconds["experts from host memory"] = _over(shares.ram * step.experts, rates.misses)
        if rates.cpu:
            seconds["synchronising with the CPU"] = step.sync_layers * SYNC_SECONDS
    if shares.disk and step.experts:
        seconds["experts from disk"] = _over(shares.disk * step.experts, rates.disk)
    return StepTime(seconds, step.num_seqs / sum(seconds.values()))


def prefill_roofline(
    model: ModelConfig,
    parts: WeightParts,
    rates: Rates,
    *,
    tokens: int,
    chunk_tokens: int,
    vram: float = 1.0,
    element_bytes: int = 2,
) -> StepTime:
    """The bound for a prompt in chunks, to its first token. Each chunk reads the weights, and the states, which it
    writes, brings the experts that it takes of those that are not in VRAM, the share 1 - ``vram``, over PCIe, and
    multiplies: the longest of the three."""
    chunks = [min(chunk_tokens, tokens - start) for start in range(0, tokens, chunk_tokens)]
    steps = [step_bytes(model, parts, context=0, num_seqs=chunk) for chunk in chunks]
    missing = (1 - vram) * sum(step.experts for step in steps)
    states = 2 * state_bytes(model, element_bytes)
    seconds = {
        "products": 2 * multiplications_per_token(model) * tokens / rates.flops if rates.flops else 0.0,
        "device memory": _over(sum(step.weights + step.experts + states for step in steps), rates.device),
        "experts over PCIe": _over(missing, rates.pcie) if missing else 0.0,
    }
    return StepTime(seconds, tokens / max(seconds.values()))


def multiplications_per_token(model: ModelConfig) -> int:
    """Weights that a token is multiplied with in all layers: of the experts those that it takes. Neither the embedding
    nor the head is: a chunk needs the logits of its last token alone."""
    counts = weight_counts(model)
    everywhere = counts.attention + counts.dense + counts.router + counts.mixers
    return round(everywhere + counts.expert * counts.experts_per_token)


def _over(num_bytes: float, rate: float) -> float:
    return num_bytes / rate if rate else float("inf")
