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
    lies there. ngrams: where the layer takes embeddings of n-grams.
    """

    conv: Tensor
    recurrent: Tensor
    ngrams: NGramState | None = None
