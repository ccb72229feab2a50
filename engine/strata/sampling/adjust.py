"""What a request changes in single logits: penalties for tokens that it has seen, and a bias for those that it names.

Only these tokens are listed, each once, so a step costs what has been written, not the size of the vocabulary; and
since no token stands twice in a list, no sum depends on the order in which a GPU adds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from strata.request import SamplingParams

_GROWTH = 256  # columns added at a time


def needs_adjusting(params: SamplingParams) -> bool:
    """Whether a request changes any logit before its token is drawn."""
    return bool(params.logit_bias) or _has_penalty(params)


def _has_penalty(params: SamplingParams) -> bool:
    off = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1, 0, 0)
    return not off


class Adjustments:
    """The lists of all requests that have one, as rows ("slots") of a few tensors on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tokens = torch.zeros(0, 0, dtype=torch.int64, device=device)
        self._bias = torch.zeros(0, 0, device=device)
        self._is_prompt = torch.zeros(0, 0, dtype=torch.bool, device=device)
        self._counts = torch.zeros(0, 0, device=device)  # how often the output has the token
        self._lengths = torch.zeros(0, dtype=torch.int64, device=device)
        self._penalties = torch.zeros(0, 3, device=device)  # repetition, presence, frequency
        self._widths: list[int] = []  # what ``_lengths`` may have come to, known without asking the device
        self._records: list[bool] = []  # whether the request has a penalty, so that its output counts
        self._free: list[int] = []

    # All in inference mode: a tensor that was made in it, as they grow, cannot be changed outside of it.
    @torch.inference_mode()
    def add(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> int:
        """Take a slot for a request. Its prompt counts for repetition_penalty alone."""
        prompt = set(prompt_token_ids) if params.repetition_penalty != 1 else set()
        bias = dict(params.logit_bias)
        tokens = sorted(prompt | bias.keys())
        slot = self._take_slot()
        self._reserve(len(tokens))
        on_device = {"device": self._device}
        self._tokens[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64, **on_device)
        self._bias[slot] = 0
        self._bias[slot, : len(tokens)] = torch.tensor([bias.get(token, 0.0) for token in tokens], **on_device)
        self._is_prompt[slot] = False
        self._is_prompt[slot, : len(tokens)] = torch.tensor([token in prompt for token in tokens], **on_device)
        self._counts[slot] = 0
        self._lengths[slot] = self._widths[slot] = len(tokens)
        self._records[slot] = _has_penalty(params)
        penalties = [params.repetition_penalty, params.presence_penalty, params.frequency_penalty]
        self._penalties[slot] = torch.tensor(penalties, **on_device)
        return slot

    def remove(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    @torch.inference_mode()
    def apply(self, logits: Tensor, rows: Sequence[int], slots: Sequence[int]) -> None:
        """Change ``rows`` of logits float32 [rows, vocab] as their ``slots`` say, in place.

        repetition_penalty divides a positive logit of a seen token, and multiplies others (Keskar et al. 2019, CTRL);
        then bias is added, and taken off are frequency_penalty for each time the output has the token and
        presence_penalty if it has it at all, as OpenAI defines them. Numbers that are not finite are left alone.
        """
        width = max(self._widths[slot] for slot in slots)
        if width == 0:
            return
        slot_ids = torch.tensor(slots, device=self._device)
        tokens = self._tokens[slot_ids, :width]
        counts = self._counts[slot_ids, :width]
        places = torch.tensor(rows, device=self._device)[:, None] * logits.shape[1] + tokens
        flat = logits.view(-1)
        values = flat[places]
        repetition, presence, frequency = self._penalties[slot_ids, :, None].unbind(1)
        is_seen = self._is_prompt[slot_ids, :width] | (counts > 0)
        weakened = torch.where(values > 0, values / repetition, values * repetition)
        change = torch.where(is_seen & (repetition != 1), weakened - values, 0)
        change += self._bias[slot_ids, :width] - frequency * counts - presence * (counts > 0)
        # Beyond the end of a list the token is 0: what is added to it there must be nothing.
        is_listed = torch.arange(width, device=self._device) < self._lengths[slot_ids, None]
        change = torch.where(is_listed & values.isfinite(), change, 0)
        flat.scatter_add_(0, places.view(-1), change.view(-1))

    @torch.inference_mode()
    def record(self, slots: Sequence[int], token_ids: Sequence[int]) -> None:
        """Count one drawn token for each slot."""
        drawn = {slot: token_id for slot, token_id in zip(slots, token_ids, strict=True) if self._records[slot]}
        if not drawn:
            return
        width = max(self._widths[slot] for slot in drawn)
        self._reserve(width + 1)
        slot_ids = torch.tensor(list(drawn), device=self._device)
        tokens = torch.tensor(list(drawn.values()), device=self._device)
        lengths = self._lengths[slot_ids]
        is_listed = torch.arange(width + 1, device=self._device) < lengths[:, None]
        is_token = is_listed & (self._tokens[slot_ids, : width + 1] == tokens[:, None])
        is_new = ~is_token.any(-1)
        place = torch.where(is_new, lengths, is_token.int().argmax(-1))
        self._tokens[slot_ids, place] = tokens
        self._counts[slot_ids, place] += 1
        self._lengths[slot_ids] += is_new
        for slot in drawn:
            self._widths[slot] += 1

    # --- inside

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        num_slots = len(self._widths)
        if num_slots == self._tokens.shape[0]:
            self._grow(rows=max(8, num_slots), columns=0)
        self._widths.append(0)
        self._records.append(False)
        return num_slots

    def _reserve(self, width: int) -> None:
        missing = width - self._tokens.shape[1]
        if missing > 0:
            self._grow(rows=0, columns=-(-missing // _GROWTH) * _GROWTH)

    def _grow(self, *, rows: int, columns: int) -> None:
        for name in ("_tokens", "_bias", "_is_prompt", "_counts"):
            setattr(self, name, functional.pad(getattr(self, name), (0, columns, 0, rows)))
        self._lengths = functional.pad(self._lengths, (0, rows))
        self._penalties = functional.pad(self._penalties, (0, 0, 0, rows))
