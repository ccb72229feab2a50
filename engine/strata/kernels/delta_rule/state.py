"""What a layer keeps of a sequence in the place of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from strata.kernels.ngram_gate.layer import NGramState


@dataclass(frozen=True, slots=True)
class DeltaState:
    """Of one layer, a slot for each sequence.

    conv: [slots, ring, channels], what the convolution was given: that of position p in row p % ring, of the last ones.
    ``ring`` is the kernel's size at least, so that a new token writes where no program that convolves it reads.
    recurrent: float32 [slots, value_heads, key_dim, value_dim]. A sequence that begins finds zeros in its slot whatever
    lies there. gates: float32 [slots, ring, 2 * value_heads], those of the same positions as ``conv``, where steps run
    drafts: with these tokens' inputs the next step takes them in. The ring then has two rows more for each token of a
    draft: those that are taken in and read, and those that are written meanwhile. ngrams:
    where the layer takes embeddings of n-grams.
    """

    conv: Tensor
    recurrent: Tensor
    gates: Tensor | None = None
    ngrams: NGramState | None = None

    def most_at_once(self, kernel: int) -> int:
        """Tokens of a sequence in a step that may have a draft, at most. ``kernel``: the convolution's size."""
        return (self.conv.shape[1] - kernel) // 2 + 1
