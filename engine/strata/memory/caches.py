"""What the layers of a model keep of sequences, in the layers' order."""

from __future__ import annotations

from collections.abc import Sequence

from strata.kernels.layer import LayerCache
from strata.memory.index import IndexPool
from strata.memory.kv import KVPool
from strata.memory.states import StatePool


class Caches:
    """``layers``: keys and values of each layer (see ``KVPool``), with index keys if it has any, or the states of its
    linear attention."""

    def __init__(
        self, linear_layers: Sequence[bool], kv: KVPool, states: StatePool | None = None, index: IndexPool | None = None
    ) -> None:
        """``linear_layers``: whether each layer has linear attention; ``kv`` has views for the others, ``states``,
        None where there are none, for these. ``index``: None where attention chooses nothing."""
        self.kv = kv
        self.states = states
        self.index = index
        pages, linear = iter(index.layers if index else kv.layers), iter(states.layers if states else ())
        self.layers: tuple[LayerCache, ...] = tuple(next(linear if it_is else pages) for it_is in linear_layers)
