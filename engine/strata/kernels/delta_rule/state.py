"""What a layer keeps of a sequence in the place of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeltaState:
    """Of one layer, a slot for each sequence.

    conv: [slots, kernel - 1, channels], what the convolution was given for the tokens before, the newest last.
    recurrent: float32 [slots, value_heads, key_dim, value_dim]. A sequence that begins finds zeros in its slot whatever
    lies there.
    """

    conv: Tensor
    recurrent: Tensor
