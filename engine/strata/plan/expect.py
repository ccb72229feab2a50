"""How long a step on a card is expected to take, where ``plan.speed`` says how short it can be at most.

    t_step = n_launches * t_launch + sum over kernels of (bytes / reached rate, or products / reached rate) + t_misses

What kernels reach was measured on one card and is given as shares of its rates, so that it holds for others as far as
these shares do: of the rate at which it reads memory, of that at which it multiplies large matrices, and, for what
takes instructions, per cycle of a multiprocessor. Pure arithmetic. CPUs are not expected: their kernels are torch's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from strata.config import ModelConfig
from strata.plan.parts import WeightParts, weight_counts
from strata.plan.placement import FETCH_SHARE, MIN_SLOTS, copies_whole_layers, max_chosen_tokens
from strata.plan.speed import SYNC_SECONDS, Rates, StepTime, distinct_experts, sequence_bytes
from strata.plan.states import state_bytes

# --- what kernels reach; one H200, 2026-11-30, docs/kernels.md unless said otherwise

# A kernel in a CUDA graph beyond what it reads: what is left of decode steps of Qwen3-8B (36 layers of 8 kernels, 1.76
# ms) and Qwen3-30B-A3B (48 of 9, 1.34 ms) beside their bytes. Without overlapped launches products take 1.2 us more.
LAUNCH_SECONDS, PLAIN_LAUNCH_SECONDS = 1.5e-6, 2.7e-6
STEP_LAUNCHES = 8  # of a step beside its layers: embedding, rotation, norm, head, likeliest tokens, what is fed back

# Products of up to FEW_ROWS rows read 4.8 to 58 MB of int4 in 1.1 us + bytes / 3.64 TB/s; plain reads reach 4.35.
FEW_ROWS, READ_SHARE = 4, 0.84
# bf16: experts 75 MB in 27 us; attention's products are cuBLAS', in more launches that do not overlap.
BF16_EXPERT_SHARE, CUBLAS_LAUNCHES = 0.65, 3
# Keys and values of a decode step: 32 sequences of 1,024 to 8,192 tokens at 2.6 to 4.0 TB/s.
KV_SHARE = 0.75
# On tensor cores weights are unpacked in registers, then multiplied: gate and up of Qwen3-8B for 16, 32 and 64 rows, of
# Qwen3-30B-A3B's experts for 2,048 and 8,192 tokens. Weights a cycle of a multiprocessor; share of large products.
UNPACKED_PER_CYCLE, TENSOR_SHARE = 10.0, 0.55
# Beyond that many rows dense weights are unpacked to memory and multiplied by cuBLAS.
MANY_ROWS, LARGE_SHARE = 128, 0.94
# Routed experts of up to that many tokens, with integer dot products: multiplications a cycle of a multiprocessor, on
# top of what they read. Qwen3-30B-A3B, 1 and 32 tokens.
FEW_TOKENS, DOTS_PER_CYCLE = 64, 33.0

# --- experts beyond VRAM; the same card, PCIe 5.0 x16, 16 cores

CACHED_TOKENS = 16  # of a step, up to which missing experts are dealt with one by one
STREAM_SHARE = 0.83  # of PCIe, prompts' experts that a kernel re-orders on the way: 45.7 of 55 GB/s
# Of host memory's plain read rate, the CPU's expert kernels alone, and while PCIe is busy as well: 93 and 76 GB/s.
CPU_SHARE, CPU_SHARE_OF_BOTH = 0.85, 0.70
MISS_LAUNCHES = 3  # of a layer: who serves what, the fetch, adding up the CPU's answer


@dataclass(frozen=True, slots=True)
class Place:
    """Where routed experts are. ``vram``: the share of them there; ``hits``: the share of a step's experts that it
    finds there, None where all are as likely and nobody guesses; ``ahead``: how many guesses bring over PCIe, right or
    wrong, for each that a step needs. Missing ones come over PCIe as far as there are slots
    ("fetch"), are computed by the CPU ("cpu"), or are split as is fastest ("auto")."""

    vram: float = 1.0
    placement: str = "auto"
    hits: float | None = None
    ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class _Step:
    """``tokens`` of all sequences together. Bytes and products of attention in all layers, those of states included;
    rows of logits."""

    tokens: int
    kv_bytes: float
    attention_flops: float
    logits: int


def expect_decode(
    model: ModelConfig,
    parts: WeightParts,
    rates: Rates,
    *,
    context: int,
    num_seqs: int = 1,
    place: Place = Place(),
    element_bytes: int = 2,
) -> StepTime:
    """A step of ``num_seqs`` sequences of ``context`` tokens each."""
    step = _Step(num_seqs, num_seqs * sequence_bytes(model, context, element_bytes), 0.0, num_seqs)
    seconds = _seconds(model, parts, rates, step, place)
    return StepTime(seconds, num_seqs / sum(seconds.values()))


def expect_prefill(
    model: ModelConfig,
    parts: WeightParts,
    rates: Rates,
    *,
    tokens: int,
    chunk_tokens: int,
    place: Place = Place(),
    element_bytes: int = 2,
) -> StepTime:
    """A prompt of ``tokens`` in chunks, until its first token is there; ``tokens_per_second`` of the prompt."""
    total: dict[str, float] = {}
    for start in range(0, tokens, chunk_tokens):
        end = min(tokens, start + chunk_tokens)
        states = 2 * state_bytes(model, element_bytes)
        step = _Step(end - start, states, _attention_flops(model, start, end), int(end == tokens))
        for name, seconds in _seconds(model, parts, rates, step, place).items():
            total[name] = total.get(name, 0.0) + seconds
    return StepTime(total, tokens / sum(total.values()))


# --- inside


def _seconds(model: ModelConfig, parts: WeightParts, rates: Rates, step: _Step, place: Place) -> dict[str, float]:
    counts, num_layers = weight_counts(model), sum(model.expert_layers)
    launch = LAUNCH_SECONDS if rates.overlaps else PLAIN_LAUNCH_SECONDS
    seconds = {
        "launches": launch * _launches(model, step.tokens) + _of_cublas(model, parts, counts),
        "dense products": _dense(_products(parts), _products(counts), step.tokens, rates),
        "attention": step.kv_bytes / (KV_SHARE * rates.device) + step.attention_flops / (TENSOR_SHARE * rates.flops),
        "head": _dense(parts.head or parts.embedding, counts.head or counts.embedding, step.logits, rates),
    }
    if step.tokens > FEW_TOKENS:
        seconds["activations"] = _activation_bytes(model, step.tokens) / (READ_SHARE * rates.device)
    if not num_layers:
        return seconds
    experts = _experts(model, parts, counts, step.tokens, rates)
    seconds["experts"] = num_layers * experts
    if place.vram < 1:
        layer = sum(seconds.values()) / num_layers - experts  # that experts may arrive beside
        missing = _missing(model, parts, step.tokens, rates, place, experts, layer)
        seconds["missing experts"] = num_layers * missing
        if step.tokens <= CACHED_TOKENS:
            seconds["launches"] += launch * MISS_LAUNCHES * num_layers
    return seconds


def _launches(model: ModelConfig, tokens: int) -> int:
    """Norm, q k v, attention in two, o; then norm, gate and up, down, or router in two, gate and up, down. With more
    rows what follows a product takes a launch of its own, and tokens are grouped by their experts and summed."""
    few, some = tokens <= FEW_ROWS, tokens <= 8
    with_experts = sum(model.expert_layers)
    dense = 8 if few else 11
    experts = 9 if few else 10 if some else 12
    return STEP_LAUNCHES + with_experts * experts + (model.num_layers - with_experts) * dense


def _of_cublas(model: ModelConfig, parts: WeightParts, counts: WeightParts) -> float:
    if not _is_bf16(parts.attention, counts.attention):
        return 0.0
    return PLAIN_LAUNCH_SECONDS * CUBLAS_LAUNCHES * model.num_layers


def _is_bf16(num_bytes: float, weights: float) -> bool:
    return num_bytes >= 2 * weights


def _dense(num_bytes: float, weights: float, rows: int, rates: Rates) -> float:
    """Products of ``rows`` rows with matrices that are read once."""
    if not rows:
        return 0.0
    reading = num_bytes / (READ_SHARE * rates.device)
    if rows <= FEW_ROWS:
        return reading
    if rows <= MANY_ROWS:
        return max(reading, _on_tensor_cores(weights, rows * weights, rates))
    return (num_bytes + 2 * weights) / rates.device + 2 * rows * weights / (LARGE_SHARE * rates.flops)


def _on_tensor_cores(unpacked: float, products: float, rates: Rates) -> float:
    return unpacked / (UNPACKED_PER_CYCLE * rates.cycles) + 2 * products / (TENSOR_SHARE * rates.flops)


def _experts(model: ModelConfig, parts: WeightParts, counts: WeightParts, tokens: int, rates: Rates) -> float:
    """Of one layer, all of them in VRAM."""
    distinct, pairs = _distinct(model, tokens), tokens * _top_k(model)
    if tokens <= FEW_TOKENS:
        share = BF16_EXPERT_SHARE if _is_bf16(parts.expert, counts.expert) else READ_SHARE
        reading = distinct * parts.expert / (share * rates.device)
        return reading + pairs * counts.expert / (DOTS_PER_CYCLE * rates.cycles)
    return _on_tensor_cores(distinct * counts.expert, pairs * counts.expert, rates)


def _missing(
    model: ModelConfig, parts: WeightParts, tokens: int, rates: Rates, place: Place, experts: float, layer: float
) -> float:
    """What a layer takes longer because some of its experts are not in VRAM. ``experts``: what it takes for them were
    they there; ``layer``: for all else."""
    distinct, num_experts = _distinct(model, tokens), _num_experts(model)
    slots = _slots(place, num_experts)
    hits = slots / num_experts if place.hits is None else place.hits
    if tokens <= CACHED_TOKENS:
        splits = ("split", "cpu") if place.placement == "auto" else (place.placement,)
        few = _Few(max(1, round(distinct)), slots, hits, place.ahead * distinct, parts.expert, experts)
        return min(few.seconds(split, rates) for split in splits) - experts
    if tokens <= max_chosen_tokens(num_experts, _top_k(model), slots):  # which come while the layer waits
        return _over((1 - hits) * distinct * parts.expert, FETCH_SHARE * rates.pcie)
    return max(0.0, _arriving(model, parts, rates, place) - experts - layer)


@dataclass(frozen=True, slots=True)
class _Few:
    """A layer of a step of few tokens, which need ``number`` experts and find ``hits`` of them in VRAM; guesses bring
    ``ahead`` for the next one. ``experts``: seconds for all of them were they there."""

    number: int
    slots: int
    hits: float
    ahead: float
    expert_bytes: float
    experts: float

    def seconds(self, placement: str, rates: Rates) -> float:
        expected, over_pcie = 0.0, self.ahead
        for missed, probability in _binomial(self.number, 1 - self.hits):
            most = min(missed, max(0, self.slots - (self.number - missed)))  # no slot whose expert is needed is free
            fetched = {"fetch": [most], "cpu": [0]}.get(placement, range(most + 1))
            in_vram = self.experts / self.number * (self.number - missed)
            took, count = min((_both_ways(n, missed - n, self.expert_bytes, rates, in_vram), n) for n in fetched)
            expected += probability * took
            over_pcie += probability * count
        # Guesses come while the layer computes, behind what it fetches itself.
        return max(expected, _over(over_pcie * self.expert_bytes, FETCH_SHARE * rates.pcie))


def _arriving(model: ModelConfig, parts: WeightParts, rates: Rates, place: Place) -> float:
    """All that a layer has not, which comes while the one before computes: by a kernel that re-orders it on the way, or
    by the copy engine and then re-ordered."""
    num_experts = _num_experts(model)
    missing = (1 - place.vram) * num_experts * parts.expert
    if not copies_whole_layers(_slots(place, num_experts), num_experts):
        return _over(missing, STREAM_SHARE * rates.pcie)
    whole = num_experts * parts.expert
    return _over(whole, rates.pcie) + 2 * whole / (READ_SHARE * rates.device)


def _slots(place: Place, num_experts: int) -> int:
    """Of a layer."""
    return max(MIN_SLOTS, round(place.vram * num_experts))


def _both_ways(fetched: int, computed: int, expert_bytes: float, rates: Rates, in_vram: float) -> float:
    """A layer's experts when so many are fetched and so many computed by the CPU. ``in_vram``: what those in VRAM take;
    the card begins with them when the fetched ones have come."""
    cpu = card = 0.0
    if fetched:
        card = _over(fetched * expert_bytes, FETCH_SHARE * rates.pcie)
        card += fetched * expert_bytes / (READ_SHARE * rates.device)
    if computed:
        cpu = SYNC_SECONDS + _over(computed * expert_bytes, _cpu_rate(rates, bool(fetched)))
    return max(card + in_vram, cpu)


def _cpu_rate(rates: Rates, beside_pcie: bool) -> float:
    """Of the CPU's expert kernels. Both ways read host memory: where that gives no more, PCIe takes its part."""
    if not beside_pcie:
        return CPU_SHARE * rates.cpu
    return max(0.0, min(CPU_SHARE_OF_BOTH * rates.cpu, rates.dram - FETCH_SHARE * rates.pcie))


def _over(num_bytes: float, rate: float) -> float:
    return num_bytes / rate if rate > 0 else math.inf


def _binomial(number: int, probability: float) -> Iterator[tuple[int, float]]:
    for count in range(number + 1):
        ways = math.comb(number, count)
        yield count, ways * probability**count * (1 - probability) ** (number - count)


def _attention_flops(model: ModelConfig, start: int, end: int) -> float:
    """Of scores and sums of a prompt's tokens from ``start`` to ``end``; of linear attention what each token reads of
    its state, adds to it, and reads of it again. With an indexer a chunk scores all groups, and attends to all tokens
    behind a mask."""
    seen = 0.0
    for window in model.kv_windows:
        full = (end * (end + 1) - start * (start + 1)) / 2
        seen += full if window is None else min(full, (end - start) * window)
    scored = model.indexer.num_heads * model.indexer.head_dim / model.indexer.group_size if model.indexer else 0.0
    linear = model.linear_attention.recurrent_elements if model.linear_attention else 0
    of_states = 6 * sum(model.linear_layers) * linear * (end - start)
    return (4 * model.num_heads * model.head_dim + 2 * scored) * seen + of_states


def _activation_bytes(model: ModelConfig, tokens: int) -> float:
    """What a step of many tokens reads and writes beside weights: residual stream, norms, tokens of experts and what
    these make of them."""
    streams = model.stream_width // model.hidden_size
    numbers = 8 * streams * model.num_layers + 2 * _top_k(model) * sum(model.expert_layers)
    return 2.0 * tokens * numbers * model.hidden_size


def _products(parts: WeightParts) -> float:
    """Of the matrices that every token is multiplied with in all layers, routers aside."""
    return parts.attention + parts.dense + parts.mixers


def _distinct(model: ModelConfig, tokens: int) -> float:
    return distinct_experts(_num_experts(model), _top_k(model), tokens)


def _num_experts(model: ModelConfig) -> int:
    return model.experts.num_experts if model.experts else 0


def _top_k(model: ModelConfig) -> int:
    return model.experts.num_experts_per_tok if model.experts else 0
