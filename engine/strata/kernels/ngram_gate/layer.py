"""The weights of a layer that takes embeddings of n-grams, and what it keeps of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from strata.kernels.matrix import Matrix, Norm


@dataclass(frozen=True, slots=True)
class NGramLayer:
    """key: to [streams * hidden]; value: to [hidden]. The norms' weights are [streams, hidden]. conv: [streams *
    hidden, kernel], of whose tokens each lies ``dilation`` before the next."""

    key: Matrix
    value: Matrix
    key_norm: Norm
    query_norm: Norm
    conv_norm: Norm
    conv: Tensor
    dilation: int


@dataclass(frozen=True, slots=True)
class NGramState:
    """Of one layer, a slot for each sequence; that of position p is in row p % ring of both.

    tokens: int64 [slots, ring], the last ones. conv: [slots, ring, streams * hidden], what the convolution was given of
    the last ones. A sequence that begins finds nothing in its slot whatever lies there.
    """

    tokens: Tensor
    conv: Tensor
