"""Routed experts straight from their blobs, on an NVIDIA GPU: which kernels run for how many tokens.

- up to MAX_FEW tokens: each pair of token and expert by itself (``gemv``), two launches;
- beyond: on tensor cores, an expert's weights once for all its tokens (``gemm``), four launches.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from strata.kernels.experts import gemm, gemv
from strata.kernels.experts.blob import BlobLayout
from strata.kernels.experts.grouping import combine, group
from strata.kernels.experts.place import Experts
from strata.kernels.layer import Routed
from strata.kernels.matrix import Activation
from strata.kernels.rows import GROUP

MAX_FEW = 32  # tokens whose activations are given as QuantizedRows, and as bf16 beyond


def reads(layout: BlobLayout) -> bool:
    """Whether there are kernels for such blobs."""
    gate, up, down = layout.gate, layout.up, layout.down
    whole = all(place.rows % GROUP == 0 and place.cols % GROUP == 0 for place in (gate, up, down))
    return whole and gate.kind == up.kind and {gate.kind, down.kind} <= {"bf16", "int8", "int4", "mxfp4"}


def prepare(layout: BlobLayout, addresses: Tensor, activation: Activation) -> Callable[[Routed, Tensor], Tensor]:
    """x float32 [tokens, hidden] += the sum of shares * experts, of the experts at ``addresses`` int64 [experts], which
    are read at every call; routed: of ``router.triton``.

    An expert whose address is 0 is computed elsewhere and adds nothing here.
    """
    experts = Experts.of(layout, addresses, activation)

    def run(routed: Routed, x: Tensor) -> Tensor:
        ids, shares = routed.ids, routed.shares
        if ids.shape[0] <= MAX_FEW:
            return gemv.down_add(experts, ids, shares, gemv.gate_up(experts, ids, routed.inner), x)
        grouped = group(ids, experts.count)
        results = gemm.down(experts, grouped, gemm.gate_up(experts, grouped, routed.inner))
        return combine(results, ids, shares, addresses, x)

    return run
