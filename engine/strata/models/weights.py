"""A checkpoint's tensors on their way into a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from strata.kernels.embedding.reference import EmbeddingFn
from strata.kernels.linear.reference import LinearFn
from strata.kernels.rms_norm.reference import NormFn
from strata.kernels.select import Kernels
from strata.quant import QuantizedTensor

Weight: TypeAlias = "Tensor | QuantizedTensor"


class Weights:
    """Hands out a checkpoint's tensors as operations of one device, each prepared for its kernel.

    Tensors leave the dict as they are taken (unless kept), so that raw and prepared weights are never both there as a
    whole. ``took`` is told the bytes of each that has left.
    """

    def __init__(
        self,
        tensors: dict[str, Weight],
        kernels: Kernels,
        dtype: torch.dtype,
        took: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        self._tensors = tensors
        self._took = took
        self.kernels = kernels
        self.dtype = dtype
        first = next(iter(tensors.values()))
        self.device = (first if isinstance(first, Tensor) else next(iter(first.parts.values()))).device

    def rms_norm(self, name: str, eps: float) -> NormFn:
        """The norm with weight ``NAME.weight``."""
        return self.kernels.rms_norm(self.vector(f"{name}.weight"), eps, self.dtype)

    def head_norm(self, heads: Mapping[str, int], eps: float) -> NormFn:
        """The norm of each head by itself: ``NAME.weight`` is for the next so many heads of a token."""
        weights = [self.vector(f"{name}.weight").expand(count, -1) for name, count in heads.items()]
        return self.kernels.rms_norm(torch.cat(weights), eps, self.dtype)

    def vector(self, name: str) -> Tensor:
        """The tensor called ``name`` itself."""
        vector = self._take(name)
        assert isinstance(vector, Tensor), f"{name} is a vector, vectors are never quantised"
        return vector

    def linear(self, *names: str) -> LinearFn:
        """The product with the matrices ``NAME.weight`` stacked along their rows, plus ``NAME.bias`` if there are any.

        One product of stacked matrices costs one call where several cost theirs each.
        """
        matrices = [_parts(self._take(f"{name}.weight")) for name in names]
        biases = [self._take(f"{name}.bias") for name in names if f"{name}.bias" in self._tensors]
        assert len(biases) in (0, len(names)), f"some of {names} have a bias and some not"
        if len({kind for kind, _ in matrices}) > 1:
            products = [self._product([matrix], biases[i : i + 1]) for i, matrix in enumerate(matrices)]
            return lambda x: torch.cat([product(x) for product in products], -1)
        return self._product(matrices, biases)

    def _product(self, matrices: list[tuple[str, Mapping[str, Tensor]]], biases: list[Weight]) -> LinearFn:
        kind, parts = matrices[0]
        stacked = {part: _stack([parts[part] for _, parts in matrices]) for part in parts}
        return self.kernels.linear(kind, stacked, _stack(biases) if biases else None, self.dtype)

    def embedding(self, name: str, *, keep: bool = False) -> EmbeddingFn:
        """The gather from table ``NAME.weight``."""
        weight = self._tensors[f"{name}.weight"] if keep else self._take(f"{name}.weight")
        return self.kernels.embedding(*_parts(weight), self.dtype)

    def _take(self, name: str) -> Weight:
        weight = self._tensors.pop(name)
        self._took(num_bytes(weight))
        return weight


def num_bytes(weight: Weight) -> int:
    """Bytes of a weight in memory."""
    return weight.num_bytes if isinstance(weight, QuantizedTensor) else int(weight.nbytes)


def _parts(weight: Weight) -> tuple[str, Mapping[str, Tensor]]:
    if isinstance(weight, QuantizedTensor):
        return weight.format, weight.parts
    return "bf16", {"weight": weight}


def _stack(tensors: list[Tensor]) -> Tensor:
    """One tensor that is no view of a larger one: what is left of an expert's blob would keep all of it in memory."""
    if len(tensors) > 1:
        return torch.cat(tensors)
    (tensor,) = tensors
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
