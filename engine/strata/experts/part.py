"""A rank's part of every layer's experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from strata.experts.layout import blob_layout
from strata.kernels.experts.blob import BlobLayout
from strata.kernels.layer import ExpertsFn, Kernels, Router
from strata.kernels.matrix import Activation
from strata.plan.rank import Rank
from strata.store.layout import ExpertLayout


@dataclass(frozen=True, slots=True)
class Part:
    """``layout``: of a store that had the rank's own experts alone, by the numbers that they have there. ``num_all``:
    experts of a layer, of all ranks. A rank that is alone has all of them, and pays nothing here.

    Every rank runs the router. What another one has is chosen as number ``num_experts`` of ``layout``, which is
    nobody's: it has an entry in the tables of addresses that is always 0, so that kernels leave it out
    (``kernels.experts``), and none in any other table.
    """

    rank: Rank
    layout: ExpertLayout
    num_all: int
    kernels: Kernels

    @classmethod
    def of(cls, layout: ExpertLayout, rank: Rank, kernels: Kernels) -> Part:
        """``layout``: of all experts."""
        assert rank.count <= layout.num_experts, f"{rank.count} ranks share {layout.num_experts} experts"
        own = replace(layout, num_experts=rank.num_own(layout.num_experts))
        return cls(rank, own, layout.num_experts, kernels)

    @property
    def blobs(self) -> BlobLayout:
        return blob_layout(self.layout)

    def own(self, ids: Tensor) -> Tensor:
        """ids [tokens, top_k] of all ranks' experts, by the numbers here."""
        if self.rank.is_alone:
            return ids
        return self.kernels.own(ids, self.rank.index, self.rank.count, self.layout.num_experts)

    def router(self, router: Router) -> Router:
        """Whose choice has the numbers here; the scores are still of all experts."""
        if self.rank.is_alone:
            return router

        def choose(scores: Tensor) -> tuple[Tensor, Tensor]:
            ids, shares = router.choose(scores)
            return self.own(ids), shares

        return replace(router, choose=choose)

    def experts(self, addresses: Tensor, activation: Activation) -> ExpertsFn:
        """(routed, x) -> x + the sum of shares * those experts that have an address, on the first rank; on the others
        the sum alone, so that the ranks' results add up to what one alone would have."""
        add = self.kernels.blob_experts(self.blobs, addresses, activation)
        if self.rank.index == 0:
            return add
        return lambda routed, x: add(routed, torch.zeros_like(x))
