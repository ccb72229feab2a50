"""Draws for which the host need not wait: it learns the tokens later, the device goes on with them at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strata.request import SamplingParams
from strata.sampling import filters


def draw_at_once(
    logits: Tensor, best: Tensor, params: Sequence[SamplingParams], uniform: Sequence[float | None]
) -> tuple[Tensor, Tensor]:
    """Draw a token for each row of logits [rows, vocab] as ``filters.draw`` would, from the row's likeliest alone.

    ``best``: see ``kernels.argmax``; it is the token of a row whose ``uniform`` is None. -> int64 [2, rows] with the
    tokens, and 0 for each that is not sure: its filters leave more than was looked at; and float32 [rows, vocab], what
    a second look begins with. Grammars, penalties and biases are not among what it does.
    """
    vocab = logits.shape[1]
    limits = [p.top_k if 0 < p.top_k < vocab else vocab for p in params]
    is_random = [number is not None for number in uniform]
    is_filtered = [it_is and (k < vocab or p.top_p < 1) for p, k, it_is in zip(params, limits, is_random, strict=True)]
    temperature, min_p, limit, top_p, number, random, filtered = _to_device(
        [
            [p.temperature if it_is else 1.0 for p, it_is in zip(params, is_random, strict=True)],
            [p.min_p for p in params],
            limits,
            [p.top_p for p in params],
            [number or 0.0 for number in uniform],
            is_random,
            is_filtered,
        ],
        logits.device,
    )
    scaled = filters.scale(logits, temperature)
    if any(p.min_p > 0 for p in params):
        scaled = filters.drop_unlikely(scaled, min_p)
    tokens, sure = best, torch.ones_like(best)
    if is_random != is_filtered:
        whole = filters.pick(scaled.softmax(-1), number)
        tokens = torch.where(random > 0, whole, tokens)
    if any(is_filtered):
        found = filters.look(scaled, min(filters.LOOKS[0], vocab), limit, top_p)
        chosen = found.ids.gather(-1, filters.pick(found.probs, number)[:, None])[:, 0]
        tokens = torch.where(filtered > 0, chosen, tokens)
        sure = torch.where(filtered > 0, found.complete.long(), sure)
    is_sound = best >= 0
    return torch.stack([torch.where(is_sound, tokens, best), torch.where(is_sound, sure, 1)]), scaled


def _to_device(numbers: Sequence[Sequence[float]], device: torch.device) -> Sequence[Tensor]:
    """Each list as float64 on the device: one copy, for which the host does not wait."""
    packed = torch.tensor(numbers, dtype=torch.float64, pin_memory=device.type == "cuda")
    return packed.to(device, non_blocking=True).unbind(0)
