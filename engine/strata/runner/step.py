"""What a step gives to the sampler."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from strata.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class StepResult:
    """logits: float32 [rows, vocab] of the sequences that sample, in the batch's order, each with those of its draft;
    the next step may overwrite them. best: int64 [rows], the likeliest token of each, -1 where the largest logit is not
    finite."""

    logits: Tensor
    best: Tensor

    def first(self, rows: int) -> StepResult:
        """The first rows alone."""
        return StepResult(self.logits[:rows], self.best[:rows])


def result_of(model: Decoder, hidden: Tensor) -> StepResult:
    """Of the last layer's output [rows, hidden] of sequences that sample."""
    logits = model.logits(hidden)
    return StepResult(logits, model.likeliest(logits))
