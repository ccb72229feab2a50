"""Estimates as text for people and as JSON for programs; one column or entry for each bit format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from strata.config import ModelConfig
from strata.plan.estimate import KV_BYTES, Bound, Estimate
from strata.plan.memory import kv_token_bytes
from strata.plan.speed import StepTime
from strata.plan.states import state_bytes
from strata.plan.units import format_bytes

_NAME_WIDTH, _WIDTH = 40, 14


def parts_table(model: ModelConfig, estimates: Sequence[Estimate], *, on_card: bool) -> list[str]:
    """Bytes of every part of the model, and of what a token reads."""
    kv_token = kv_token_bytes(model, KV_BYTES)
    fit = estimates[0].fit
    title = "weights" if on_card else "weights, as the CPU keeps them"
    lines = [_row(title, [estimate.dtype for estimate in estimates])]
    rows: list[tuple[str, Callable[[Estimate], float]]] = [
        (
            "embedding, also the head" if model.tie_word_embeddings and on_card else "embedding",
            lambda e: e.parts.embedding,
        ),
        ("head", lambda e: e.parts.head),
        ("attention", lambda e: e.parts.attention),
        ("dense MLPs", lambda e: e.parts.dense),
        ("routers", lambda e: e.parts.router),
        ("residual streams", lambda e: e.parts.mixers),
        ("norms", lambda e: e.parts.norms),
    ]
    rows += [
        ("routed experts", lambda e: e.parts.experts),
        (f"  one of {estimates[0].parts.num_experts}", lambda e: e.parts.expert),
        ("all weights", lambda e: e.parts.total),
        ("tables of n-grams, on disk", lambda e: e.fit.tables.disk_bytes if e.fit.tables else 0),
        ("read for a token, without experts", lambda e: e.parts.shared_per_token),
        ("read for a token, experts", lambda e: e.parts.experts_per_token_bytes),
    ]
    lines += [_bytes_row(name, estimates, size) for name, size in rows if any(size(e) for e in estimates)]
    lines += [
        "",
        f"KV cache (bf16): {format_bytes(kv_token)} a token, {format_bytes(kv_token * fit.max_model_len)} for "
        f"{fit.max_model_len} tokens",
    ]
    if any(model.linear_layers):
        of_one = format_bytes(state_bytes(model, KV_BYTES))
        lines.append(f"states of linear attention: {of_one} a sequence, however long it is")
    return lines


def fit_table(estimates: Sequence[Estimate], *, on_card: bool) -> list[str]:
    """What lies where, and what to change where it does not fit."""
    first = estimates[0].fit
    memory = "VRAM" if on_card else "RAM"
    lines = [
        _row(f"{memory}", [estimate.dtype for estimate in estimates]),
        _bytes_row("may be filled", estimates, lambda e: e.fit.capacity),
        _bytes_row("weights without experts", estimates, lambda e: e.fit.shared),
        _bytes_row("KV cache", estimates, lambda e: e.fit.kv),
        _row(f"  sequences of {first.max_model_len} tokens", [_whole(e) for e in estimates]),
        _bytes_row("workspace", estimates, lambda e: e.fit.workspace),
    ]
    if first.states:
        lines.insert(-1, _bytes_row("states of linear attention", estimates, lambda e: e.fit.states))
    if estimates[0].parts.num_experts:
        lines.append(_row(f"experts of {estimates[0].parts.num_experts}", [_experts(e) for e in estimates]))
        lines.append(_bytes_row("  in bytes", estimates, _expert_bytes))
        if any(e.fit.staging for e in estimates):
            lines.append(_bytes_row("  buffers for the others, of prompts", estimates, lambda e: e.fit.staging))
    lines.append(_row("left over", [_left(e) for e in estimates]))
    if on_card and estimates[0].parts.num_experts:
        lines.append(_bytes_row("host RAM: experts", estimates, lambda e: e.fit.ram_experts * e.parts.expert))
        if any(e.fit.disk_experts for e in estimates):
            lines.append(
                _bytes_row("disk: experts beyond RAM", estimates, lambda e: e.fit.disk_experts * e.parts.expert)
            )
    lines.append(_bytes_row("disk: the store", estimates, lambda e: e.fit.store_bytes))
    lines += [f"{e.dtype} does not fit: {e.fit.problem}." for e in estimates if e.fit.problem]
    lines += [f"{e.dtype}: {e.fit.tables}." for e in estimates if e.fit.tables and not e.fit.problem]
    lines += [f"{e.dtype}: {e.fit.shortage}." for e in estimates if e.fit.shortage]
    lines += [f"warning: {e.dtype}: {_about_disk(e)}." for e in estimates if e.fit.disk_experts and e.bounds]
    return lines


def _about_disk(estimate: Estimate) -> str:
    """What it costs that host memory does not hold all experts."""
    placed = estimate.fit
    size = format_bytes(int(placed.disk_experts * placed.parts.expert), round_up=True)
    text = (
        f"neither host memory nor VRAM has room for {placed.disk_experts} of {placed.parts.num_experts} experts, {size}"
    )
    bound = estimate.bounds[0]
    in_ram = _rate(bound.in_ram)
    return f"{text}: read from disk, they bound decoding to {_rate(bound.best)} tok/s; RAM for all allows {in_ram}"


def speed_table(estimates: Sequence[Estimate], num_seqs: int, *, on_card: bool) -> list[str]:
    """tok/s as expected and at most, and which term takes most of a step; of a prompt as expected."""
    fitting = [estimate for estimate in estimates if estimate.bounds]
    if not fitting:
        return []
    lines = [_row(f"decode, tok/s ({num_seqs} at once)", [estimate.dtype for estimate in fitting])]
    for index in range(max(len(e.bounds) for e in fitting)):
        bounds = [e.bounds[index] for e in fitting]
        at = f"at {bounds[0].context} tokens of context"
        if any(bound.expected for bound in bounds):
            lines.append(_row(f"{at}, expected", [_rate(b.expected) for b in bounds]))
            lines.append(_row("  at most", [_rate(b.best) for b in bounds]))
        else:
            lines.append(_row(f"{at}, at most", [_rate(b.best) for b in bounds]))
        if any(bound.num_seqs < num_seqs for bound in bounds):
            lines.append(_row("  at once, for want of KV cache", [str(b.num_seqs) for b in bounds]))
        if any(bound.pcie_only for bound in bounds):
            lines.append(_row("  misses over PCIe alone, at most", [_rate(b.pcie_only) for b in bounds]))
            lines.append(_row("  misses on the CPU alone, at most", [_rate(b.cpu_only) for b in bounds]))
        lines.append(_row("  limit", [_share_of_limit(b.best) for b in bounds]))
    limits = dict.fromkeys(bound.best.limit for e in fitting for bound in e.bounds)
    names = [name if on_card else _ON_CPU.get(name, name) for name in limits]
    lines.append(f"limit: share of a step that goes to {' or '.join(names)}")
    if any(estimate.prefill for estimate in fitting):
        prompt = f"prompt of {fitting[0].prompt_tokens} tokens, tok/s"
        lines += ["", _row(f"{prompt} expected", [_rate(estimate.prefill) for estimate in fitting])]
    return lines


def as_dict(model: ModelConfig, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Sizes in bytes, times in seconds, rates in tokens a second."""
    return {
        "architecture": model.architecture,
        "kv_bytes_per_token": kv_token_bytes(model, KV_BYTES),
        "state_bytes_per_sequence": state_bytes(model, KV_BYTES),
        "dtypes": {estimate.dtype: _estimate_dict(estimate) for estimate in estimates},
    }


def _estimate_dict(estimate: Estimate) -> dict[str, Any]:
    parts, fit = estimate.parts, estimate.fit
    places = asdict(fit)
    del places["parts"]
    return {
        "weights": {
            **asdict(parts),
            "experts": parts.experts,
            "total": parts.total,
            "shared_per_token": parts.shared_per_token,
            "experts_per_token_bytes": parts.experts_per_token_bytes,
        },
        "fit": {**places, "free": fit.free, "fits": fit.problem is None},
        "decode": [_bound_dict(bound) for bound in estimate.bounds],
        "prefill": {
            "prompt_tokens": estimate.prompt_tokens,
            "expected_tokens_per_second": estimate.prefill and estimate.prefill.tokens_per_second,
        },
    }


def _bound_dict(bound: Bound) -> dict[str, Any]:
    return {
        "context": bound.context,
        "num_seqs": bound.num_seqs,
        "expected_tokens_per_second": bound.expected and bound.expected.tokens_per_second,
        "expected_seconds": bound.expected and bound.expected.seconds,
        "tokens_per_second": bound.best.tokens_per_second,
        "seconds": bound.best.seconds,
        "limit": bound.best.limit,
        "pcie_only_tokens_per_second": bound.pcie_only.tokens_per_second if bound.pcie_only else None,
        "cpu_only_tokens_per_second": bound.cpu_only.tokens_per_second if bound.cpu_only else None,
        "in_ram_tokens_per_second": bound.in_ram.tokens_per_second if bound.in_ram else None,
    }


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<{_NAME_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def _bytes_row(name: str, estimates: Sequence[Estimate], size: Callable[[Estimate], float]) -> str:
    return _row(name, [format_bytes(int(value)) if (value := size(estimate)) else "-" for estimate in estimates])


def _experts(estimate: Estimate) -> str:
    slots, num_experts = estimate.fit.slots, estimate.parts.num_experts
    if estimate.fit.problem is not None:
        return "-"
    return f"{slots} ({100 * slots // num_experts} %)"


def _expert_bytes(estimate: Estimate) -> float:
    return 0.0 if estimate.fit.problem is not None else estimate.fit.slots * estimate.parts.expert


def _whole(estimate: Estimate) -> str:
    return f"{min(estimate.fit.num_whole_seqs, estimate.fit.num_seqs)} of {estimate.fit.num_seqs}"


def _left(estimate: Estimate) -> str:
    return "does not fit" if estimate.fit.problem else format_bytes(estimate.fit.free)


def _rate(line: StepTime | None) -> str:
    return "-" if line is None else f"{line.tokens_per_second:.1f}"


def _share_of_limit(line: StepTime) -> str:
    return f"{_SHORT[line.limit]} {100 * line.seconds[line.limit] / sum(line.seconds.values()):.0f} %"


_ON_CPU = {"device memory": "reading RAM"}
_SHORT = {
    "device memory": "memory",
    "experts from host memory": "host",
    "synchronising with the CPU": "sync",
    "experts from disk": "disk",
}
