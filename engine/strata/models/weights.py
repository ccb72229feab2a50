"""A checkpoint's tensors on their way into a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count, takewhile
from typing import TypeAlias

from torch import Tensor

from strata.experts.prepared import Prepared
from strata.experts.tier import Tier
from strata.kernels.embedding.reference import EmbeddingFn
from strata.kernels.layer import Expert, Kernels
from strata.kernels.matrix import Matrix, Norm
from strata.ngram.table import NGramTable, TensorTable
from strata.plan.shape import expert_name
from strata.quant import QuantizedTensor

Weight: TypeAlias = "Tensor | QuantizedTensor"


class Weights:
    """Hands out a checkpoint's tensors as the matrices and norms that ``kernels`` prepares its steps of.

    Tensors leave the dict as they are taken (unless kept), so that raw and prepared weights are never both there as a
    whole. ``took`` is told the bytes of each that has left. ``tier``: has the routed experts; None where they are
    among the tensors. ``tables``: of n-grams, likewise. ``zero_centred_norms``: see ``ModelConfig``.
    """

    def __init__(
        self,
        tensors: dict[str, Weight],
        kernels: Kernels,
        took: Callable[[int], None] = lambda num_bytes: None,
        tier: Tier | None = None,
        *,
        tables: Mapping[str, NGramTable] | None = None,
        zero_centred_norms: bool = False,
    ) -> None:
        self._tensors = tensors
        self._took = took
        self._tables = tables or {}
        self._zero_centred_norms = zero_centred_norms
        self.kernels = kernels
        self.tier: Tier = tier or Prepared(kernels, self._experts)
        first = next(iter(tensors.values()))
        self.device = (first if isinstance(first, Tensor) else next(iter(first.parts.values()))).device

    def norm(self, name: str, eps: float) -> Norm:
        """The norm of weight ``NAME.weight``."""
        weight = self.vector(f"{name}.weight")
        return Norm(1 + weight.float() if self._zero_centred_norms else weight, eps)

    def stream_norm(self, name: str, eps: float, num_streams: int) -> Norm:
        """Of each residual stream by itself, weight [streams, hidden]."""
        norm = self.norm(name, eps)
        return Norm(norm.weight.view(num_streams, -1), eps)

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

    def embedding(self, name: str, *, keep: bool = False) -> EmbeddingFn:
        """The gather from table ``NAME.weight``."""
        weight = self._tensors[f"{name}.weight"] if keep else self._take(f"{name}.weight")
        return self.kernels.embedding(_matrix(weight))

    def ngram_table(self, name: str) -> NGramTable:
        """The table of n-grams ``NAME.weight``."""
        found = self._tables.get(f"{name}.weight")
        return TensorTable(self.vector(f"{name}.weight"), self.kernels.dtype) if found is None else found

    def _experts(self, layer: int) -> Iterator[Expert]:
        """The experts of a layer, each taken when it is asked for."""
        names = (expert_name(layer, expert) for expert in count())
        for name in takewhile(lambda name: f"{name}.gate_proj.weight" in self._tensors, names):
            yield Expert(self.matrices(f"{name}.gate_proj", f"{name}.up_proj"), self.matrix(f"{name}.down_proj"))

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
