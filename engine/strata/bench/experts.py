"""Routed experts of one shape, to be measured: how they are written, what they take, random ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata import quant
from strata.bench.gpu_kernels import DTYPES
from strata.bench.random_weights import RandomWeights
from strata.errors import OptionError
from strata.plan.shape import Role, TensorSpec, expert_name
from strata.store.layout import ExpertLayout, Weight

if TYPE_CHECKING:
    import torch

SAMPLES = 4  # different experts; the others are copies
_WRITTEN = "DTYPE:HIDDENxINTERMEDIATE:TOP_K/EXPERTS"


@dataclass(frozen=True, slots=True)
class Experts:
    """``num_experts`` of a layer, of which a token takes ``top_k``: gate and up [intermediate, hidden] and down
    [hidden, intermediate] in ``dtype``."""

    dtype: str
    hidden: int
    intermediate: int
    top_k: int
    num_experts: int

    @classmethod
    def parse(cls, text: str) -> Experts:
        """``DTYPE:HIDDENxINTERMEDIATE:TOP_K/EXPERTS``. Raises OptionError."""
        found = re.fullmatch(r"(\w+):(\d+)x(\d+):(\d+)/(\d+)", text)
        if found is None:
            raise OptionError(f"experts are written {_WRITTEN}, not {text!r}")
        dtype, *numbers = found.groups()
        one = cls(dtype, *map(int, numbers))
        if dtype not in DTYPES:
            raise OptionError(f"{text!r}: dtypes are {', '.join(DTYPES)}")
        if min(one.hidden, one.intermediate) < 1 or one.hidden % 32 or one.intermediate % 32:
            raise OptionError(f"{text!r}: both widths come in groups of 32")
        if not 1 <= one.top_k <= one.num_experts:
            raise OptionError(f"{text!r}: a token takes one expert at least, and at most all of them")
        return one

    def __str__(self) -> str:
        return f"{self.dtype}:{self.hidden}x{self.intermediate}:{self.top_k}/{self.num_experts}"

    def layout(self, num_layers: int = 1) -> ExpertLayout:
        """As a store of such experts has them."""
        wide, narrow = (Weight(self.dtype, size) for size in self._sizes)
        weights = {"gate_proj.weight": wide, "up_proj.weight": wide, "down_proj.weight": narrow}
        return ExpertLayout(tuple(range(num_layers)), self.num_experts, weights, self.num_experts)

    @property
    def _sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.intermediate, self.hidden), (self.hidden, self.intermediate)

    @property
    def gate_up_bytes(self) -> int:
        return 2 * quant.get(self.dtype).num_bytes(*self._sizes[0])

    @property
    def down_bytes(self) -> int:
        return quant.get(self.dtype).num_bytes(*self._sizes[1])

    @property
    def router_bytes(self) -> int:
        return 2 * self.num_experts * self.hidden

    def operations(self, tokens: int) -> dict[str, int]:
        """Multiplications and additions of each step."""
        of_matrix = 2 * tokens * self.top_k * self.hidden * self.intermediate
        router = 2 * tokens * self.num_experts * self.hidden
        return {"router": router, "gate_up": 2 * of_matrix, "down": of_matrix, "all": router + 3 * of_matrix}

    def read_bytes(self, taken: int) -> dict[str, int]:
        """Of the weights that each step has to read, where the tokens take so many different experts."""
        gate_up, down = taken * self.gate_up_bytes, taken * self.down_bytes
        return {
            "router": self.router_bytes,
            "gate_up": gate_up,
            "down": down,
            "all": self.router_bytes + gate_up + down,
        }


QWEN3_30B = Experts("int4", 2048, 768, 8, 128)


def random_blobs(layout: ExpertLayout) -> list[torch.Tensor]:
    """A few experts of a layer: uint8 [blob_bytes] each, on the CPU."""
    import torch

    specs = tuple(
        TensorSpec(f"{expert_name(0, expert)}.{name}", weight.shape, Role.EXPERT, (0, expert))
        for expert in range(SAMPLES)
        for name, weight in layout.weights.items()
    )
    weights = RandomWeights(specs)
    joined = (bytearray().join(weights.blob(layout, 0, expert)) for expert in range(SAMPLES))
    return [torch.frombuffer(blob, dtype=torch.uint8) for blob in joined]
