"""A checkpoint's tensors on their way into a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from torch import Tensor

from strata.kernels.embedding.reference import EmbeddingFn
from strata.kernels.layer import Expert, Kernels
from strata.kernels.matrix import Matrix, Norm
from strata.quant import QuantizedTensor

Weight: TypeAlias = "Tensor | QuantizedTensor"


class Weights:
    """Hands out a checkpoint's tensors as the matrices and norms that ``kernels`` prepares its steps of.

    Tensors leave the dict as they are taken (unless kept), so that raw and prepared weights are never both there as a
    whole. ``took`` is told the bytes of each that has left.
    """

    def __init__(
        self,
        tensors: dict[str, Weight],
        kernels: Kernels,
        took: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        self._tensors = tensors
        self._took = took
        self.kernels = kernels
        first = next(iter(tensors.values()))
        self.device = (first if isinstance(first, Tensor) else next(iter(first.parts.values()))).device

    def norm(self, name: str, eps: float) -> Norm:
        """The norm with weight ``NAME.weight``."""
        return Norm(self.vector(f"{name}.weight"), eps)

    def vector(self, name: str) -> Tensor:
        """The tensor called ``name`` itself."""
        vector = self._take(name)
        assert isinstance(vector, Tensor), f"{name} is a vector, vectors are never quantised"
        return vector

    def matrix(self, name: str) -> Matrix:
        """``NAME.weight``, with ``NAME.bias`` if there is one."""
        bias = self.vector(f"{name}.bias") if f"{name}.bias" in self._tensors else None
        return _matrix(self._take(f"{name}.weight"), bias)

    def matrices(self, *names: str) -> tuple[Matrix, ...]:
        """Several of them."""
        return tuple(map(self.matrix, names))

    def experts(self, name: str, count: int) -> Iterator[Expert]:
        """``NAME.0`` to ``NAME.(count - 1)``, each taken when it is asked for."""
        for expert in (f"{name}.{i}" for i in range(count)):
            yield Expert(self.matrices(f"{expert}.gate_proj", f"{expert}.up_proj"), self.matrix(f"{expert}.down_proj"))

    def embedding(self, name: str, *, keep: bool = False) -> EmbeddingFn:
        """The gather from table ``NAME.weight``."""
        weight = self._tensors[f"{name}.weight"] if keep else self._take(f"{name}.weight")
        return self.kernels.embedding(_matrix(weight))

    def _take(self, name: str) -> Weight:
        weight = self._tensors.pop(name)
        self._took(num_bytes(weight))
        return weight


def num_bytes(weight: Weight) -> int:
    """Bytes of a weight in memory."""
    return weight.num_bytes if isinstance(weight, QuantizedTensor) else int(weight.nbytes)


def _matrix(weight: Weight, bias: Tensor | None = None) -> Matrix:
    if isinstance(weight, QuantizedTensor):
        return Matrix(weight.format, weight.parts, bias)
    return Matrix("bf16", {"weight": weight}, bias)
