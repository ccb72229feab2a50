"""The mathematics of drawing: which tokens stay, and which of them a number in [0, 1) picks. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# How many of the likeliest tokens are looked at, one width after another until a row's filters end within it; then all.
# One row of 49,152 logits on one Zen 4 core: found and sorted in 0.15 ms, 0.2 ms, and all in 4.1 ms.
LOOKS = (512, 4096)


def scale(logits: Tensor, temperature: Sequence[float] | Tensor) -> Tensor:
    """logits [rows, vocab] less each row's largest, divided by its temperature > 0: no temperature overflows."""
    shifted = logits - logits.amax(-1, keepdim=True)
    return shifted.div_(torch.as_tensor(temperature, dtype=logits.dtype, device=logits.device)[:, None])


def drop_unlikely(scaled: Tensor, min_p: Sequence[float] | Tensor) -> Tensor:
    """-inf in the place of tokens less likely than ``min_p`` of the likeliest (Nguyen et al. 2024), changed in place.

    scaled [rows, vocab] as ``scale`` gives it, so that a row's largest is 0. top_k and top_p see what is left.
    """
    least = torch.as_tensor(min_p, dtype=scaled.dtype, device=scaled.device).log()
    return scaled.masked_fill_(scaled < least[:, None], -torch.inf)


def likeliest(scaled: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` largest of each row, values and ids, in the order of a stable sort."""
    if width == scaled.shape[1]:
        return scaled.sort(dim=-1, descending=True, stable=True)
    ids = scaled.topk(width, -1, sorted=False).indices.sort(-1).values
    values, order = scaled.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)


def draw(scaled: Tensor, top_k: Sequence[int], top_p: Sequence[float], uniform: Sequence[float]) -> list[int]:
    """One token a row of ``scaled`` [rows, vocab] (see ``scale``), by ``uniform`` in [0, 1).

    top_k 0 and top_p 1 are off. A row's draw depends on that row and its parameters alone.
    """
    vocab = scaled.shape[1]
    is_filtered = [0 < k < vocab or p < 1 for k, p in zip(top_k, top_p, strict=True)]
    whole = [i for i, it_is in enumerate(is_filtered) if not it_is]
    filtered = [i for i, it_is in enumerate(is_filtered) if it_is]
    token_ids = [0] * len(top_k)
    if whole:
        chosen = pick(rows_of(scaled, whole).softmax(-1), [uniform[i] for i in whole])
        _scatter(token_ids, whole, chosen)
    if filtered:
        rest = rows_of(scaled, filtered)
        ids, probs = candidates(rest, [top_k[i] for i in filtered], [top_p[i] for i in filtered])
        chosen = pick(probs, [uniform[i] for i in filtered])
        _scatter(token_ids, filtered, ids.gather(-1, chosen[:, None])[:, 0])
    return token_ids


def candidates(scaled: Tensor, top_k: Sequence[int], top_p: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The tokens that top_k, then top_p leave of ``scaled`` [rows, vocab].

    -> ids int64 [rows, n], likeliest first, of two alike the smaller; probs float32 [rows, n], 0 where a token is
    dropped, relative to the tokens that top_k leaves. top_p keeps the fewest of them whose probability reaches it, and
    at least one.
    """
    rows, vocab = scaled.shape
    limits = [k if 0 < k < vocab else vocab for k in top_k]
    pending = list(range(rows))
    ids = torch.zeros(rows, 0, dtype=torch.int64, device=scaled.device)
    probs = torch.zeros(rows, 0, device=scaled.device)
    for width in (*(look for look in LOOKS if look < vocab), vocab):
        subset = rows_of(scaled, pending)
        found = look(subset, width, [limits[i] for i in pending], [top_p[i] for i in pending])
        ids, probs = (functional.pad(tensor, (0, width - tensor.shape[1])) for tensor in (ids, probs))
        ids[pending], probs[pending] = found.ids, found.probs
        pending = [i for i, complete in zip(pending, found.complete.tolist(), strict=True) if not complete]
        if not pending:
            break
    return ids, probs


@dataclass(frozen=True, slots=True)
class Found:
    """ids and probs as ``candidates`` gives them, of each row's likeliest; complete: bool [rows], whether they hold all
    that the row's filters leave."""

    ids: Tensor
    probs: Tensor
    complete: Tensor


def look(scaled: Tensor, width: int, limits: Sequence[int] | Tensor, top_p: Sequence[float] | Tensor) -> Found:
    """The filters over each row's ``width`` likeliest tokens. ``limits``: top_k, the whole vocabulary where it is off.
    Asks the device for nothing."""
    rows, vocab = scaled.shape
    values, ids = likeliest(scaled, width)
    limit = torch.as_tensor(limits, dtype=torch.int64, device=scaled.device)[:, None]
    nucleus = torch.as_tensor(top_p, dtype=torch.float64, device=scaled.device)[:, None]
    kept = values.masked_fill(torch.arange(width, device=scaled.device) >= limit, -torch.inf)
    total = kept.logsumexp(-1, keepdim=True)
    if isinstance(limits, Tensor) or max(limits) == vocab:  # what top_k does not cut is measured against all
        total = torch.where(limit < vocab, total, scaled.logsumexp(-1, keepdim=True))
    probs = (kept - total).exp()
    before = probs.cumsum(-1, dtype=torch.float64).sub_(probs)
    probs = probs.masked_fill((before >= nucleus) & (nucleus < 1), 0)
    # Of the tokens alike to the last one seen, some may not be among the values: a row that keeps any needs them all.
    beyond = values.masked_fill(probs == 0, torch.inf).amin(-1) > values[:, -1]
    complete = beyond & ((limit <= width) | (limit == vocab))[:, 0]
    return Found(ids, probs, complete.new_ones(rows) if width == vocab else complete)


def pick(probs: Tensor, uniform: Sequence[float] | Tensor) -> Tensor:
    """Index of the token at the share ``uniform`` of the mass of each row of probs [rows, n]: int64 [rows].

    The sums are in float64: in float32 the likely tokens would swallow the unlikely ones.
    """
    sums = probs.cumsum(-1, dtype=torch.float64)
    target = sums[:, -1:] * torch.as_tensor(uniform, dtype=torch.float64, device=probs.device)[:, None]
    return torch.searchsorted(sums, target, right=True)[:, 0].clamp_(max=probs.shape[1] - 1)


def rows_of(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Some rows, or the tensor itself where they are all of it."""
    return tensor if len(rows) == tensor.shape[0] else tensor[list(rows)]


def _scatter(out: list[int], rows: Sequence[int], values: Tensor) -> None:
    for row, value in zip(rows, values.tolist(), strict=True):
        out[row] = value
