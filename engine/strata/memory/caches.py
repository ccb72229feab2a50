"""What the layers of a model keep of sequences, in the layers' order."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from strata.kernels.delta_rule.state import DeltaState
from strata.memory.kv import KVPool
from strata.memory.states import StatePool


class Caches:
    """``layers``: keys and values (see ``KVPool``) of each layer, or the states of its linear attention."""

    def __init__(self, linear_layers: Sequence[bool], kv: KVPool, states: StatePool | None = None) -> None:
        """``linear_layers``: whether each layer has linear attention; ``kv`` has views for the others, ``states``,
        None where there are none, for these."""
        self.kv = kv
        self.states = states
        pages, linear = iter(kv.layers), iter(states.layers if states else ())
        self.layers: tuple[Tensor | DeltaState, ...] = tuple(
            next(linear if it_is else pages) for it_is in linear_layers
        )
