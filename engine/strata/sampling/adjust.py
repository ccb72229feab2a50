"""What a request changes in single logits: penalties for tokens that it has seen, and a bias for those that it names.

Only these tokens are listed, each once, so a step costs what has been written, not the size of the vocabulary; and
since no token stands twice in a list, nothing depends on the order in which a GPU works. The lists are on the host,
where the drawn tokens are known anyway; a device sees ``MAX_ADJUSTED`` entries of them at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from strata.plan.memory import MAX_ADJUSTED
from strata.request import SamplingParams


def needs_adjusting(params: SamplingParams) -> bool:
    """Whether a request changes any logit before its token is drawn."""
    return bool(params.logit_bias) or _has_penalty(params)


def _has_penalty(params: SamplingParams) -> bool:
    off = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1, 0, 0)
    return not off


class Adjustment:
    """The list of one request: what its logits are divided by (or multiplied, see ``adjust``), and what is added."""

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> None:
        """The prompt counts for repetition_penalty alone."""
        self._params = params
        self._bias = dict(params.logit_bias)
        self._counts: dict[int, int] = {}  # how often the output has a token
        self._places: dict[int, int] = {}
        self.token_ids = array("i")
        self.divisors = array("f")
        self.addends = array("f")
        seen = set(prompt_token_ids) if params.repetition_penalty != 1 else set()
        for token_id in sorted(seen | self._bias.keys()):
            divisor = params.repetition_penalty if token_id in seen else 1.0
            self._append(token_id, divisor, self._bias.get(token_id, 0.0))

    def record(self, token_id: int) -> None:
        """Count a drawn token."""
        params = self._params
        if not _has_penalty(params):
            return
        count = self._counts[token_id] = self._counts.get(token_id, 0) + 1
        addend = self._bias.get(token_id, 0.0) - params.frequency_penalty * count - params.presence_penalty
        place = self._places.get(token_id)
        if place is None:
            self._append(token_id, params.repetition_penalty, addend)
        else:
            self.divisors[place] = params.repetition_penalty
            self.addends[place] = addend

    def _append(self, token_id: int, divisor: float, addend: float) -> None:
        self._places[token_id] = len(self.token_ids)
        self.token_ids.append(token_id)
        self.divisors.append(divisor)
        self.addends.append(addend)


def adjust(logits: Tensor, adjustments: Mapping[int, Adjustment]) -> None:
    """Change the rows of logits float32 [rows, vocab] that have an adjustment, in place.

    repetition_penalty divides a positive logit of a seen token, and multiplies others (Keskar et al. 2019, CTRL);
    then bias is added, and taken off are frequency_penalty for each time the output has the token and
    presence_penalty if it has it at all, as OpenAI defines them. Numbers that are not finite are left alone.
    """
    lists = {row: adjustment for row, adjustment in adjustments.items() if adjustment.token_ids}
    if not lists:
        return
    vocab, flat = logits.shape[1], logits.view(-1)
    places = torch.cat([_view(one.token_ids, torch.int32).to(torch.int64) + row * vocab for row, one in lists.items()])
    divisors = torch.cat([_view(one.divisors, torch.float32) for one in lists.values()])
    addends = torch.cat([_view(one.addends, torch.float32) for one in lists.values()])
    for pieces in zip(*(numbers.split(MAX_ADJUSTED) for numbers in (places, divisors, addends)), strict=True):
        at, divisor, addend = (piece.to(logits.device) for piece in pieces)
        values = flat[at]
        changed = torch.where(values > 0, values / divisor, values * divisor).add_(addend)
        flat[at] = torch.where(values.isfinite(), changed, values)


def _view(numbers: array[int] | array[float], dtype: torch.dtype) -> Tensor:
    """The memory of an array, which must not grow while this is in use."""
    return torch.frombuffer(numbers, dtype=dtype)
