"""How fast a GPU computes the routed experts of one layer, all of them in its memory, step by step.

A step reads each expert that some token takes once, however many take it, so for few tokens it is as good as the share
of the memory's bandwidth that it reaches. Around the number of tokens from which tensor cores take over
(``experts.blobs``) both ways are measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata import quant
from strata.bench.bandwidth import read_bandwidth
from strata.bench.gpu_kernels import DTYPES
from strata.bench.gpu_time import Measurement, copies, gpu, seconds
from strata.bench.random_weights import RandomWeights
from strata.errors import OptionError
from strata.plan.shape import Role, TensorSpec, expert_name
from strata.store.layout import BLOB_ALIGNMENT, ExpertLayout, Weight

if TYPE_CHECKING:
    import torch

    from strata.kernels.layer import Routed

TOKENS = (1, 4, 16, 24, 32, 48, 64, 2048)
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


def run(cases: Sequence[Experts], tokens: Sequence[int]) -> Iterator[Measurement]:
    """Measure the steps of each with each number of tokens on the current GPU. Raises HardwareError without one."""
    device = gpu()
    read = read_bandwidth(device)
    for case in cases:
        blobs = _blobs(case, device)
        for count in tokens:
            for way in ways(count):
                taken, steps, inputs = _prepare(case, count, way, blobs)
                num_bytes, operations = case.read_bytes(taken), case.operations(count)
                for name, calls in steps.items():
                    time = seconds(calls, inputs)
                    what = f"{case} {name} {way}"
                    yield Measurement(what, count, time, num_bytes[name] / time, operations[name] / time, read)


def ways(tokens: int) -> tuple[str, ...]:
    """Those of ``blobs.WAYS`` that are worth measuring: both where tensor cores might take over."""
    from strata.kernels.experts.blobs import MAX_FEW

    if MAX_FEW / 2 <= tokens <= 2 * MAX_FEW:
        return "gemv", "gemm"
    return ("gemv",) if tokens <= MAX_FEW else ("gemm",)


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


def _blobs(case: Experts, device: Any) -> torch.Tensor:
    """uint8 [blobs, blob_bytes]: of a whole layer, and more than the GPU's cache holds."""
    from strata.memory.device import aligned

    layout = case.layout()
    size, count = layout.blob_bytes, max(case.num_experts, copies(layout.blob_bytes, device))
    blobs = aligned(count * size, BLOB_ALIGNMENT, device).view(count, size)
    for number, sample in enumerate(random_blobs(layout)):
        blobs[number::SAMPLES] = sample.to(device)
    return blobs


Steps = dict[str, list[Callable[..., Any]]]


def _prepare(case: Experts, tokens: int, way: str, blobs: torch.Tensor) -> tuple[int, Steps, tuple[Any, ...]]:
    """How many experts the tokens take, the calls of each step, and what these take."""
    import torch

    from strata.experts.layout import blob_layout
    from strata.kernels.experts.blobs import WAYS
    from strata.kernels.experts.blobs import Experts as Weights
    from strata.kernels.matrix import SILU, Matrix, Norm
    from strata.kernels.router import triton as routing

    device = blobs.device
    torch.manual_seed(tokens)
    norm = Norm(torch.ones(case.hidden, device=device), 1e-6)
    router = torch.randn(case.num_experts, case.hidden, device=device).bfloat16()
    x = torch.randn(tokens, case.hidden, device=device)

    def router_copy() -> Callable[[Any], Routed]:
        matrix = Matrix("bf16", {"weight": router.clone()})
        return routing.prepare(norm, matrix, case.top_k, normalize=True, max_few=tokens if way == "gemv" else 0)

    routed = router_copy()(x)
    tables = address_tables(routed.ids, case.num_experts, blobs)
    layers = [Weights.of(blob_layout(case.layout()), table, SILU) for table in tables]
    gate_up, down = WAYS[way]
    inner = gate_up(layers[0], routed)

    def all_of(route: Callable[[Any], Routed], layer: Weights) -> Callable[..., Any]:
        def step(x: Any, out: Any) -> Any:
            chosen = route(x)
            return down(layer, chosen, gate_up(layer, chosen), out)

        return step

    def only_router(route: Callable[[Any], Routed]) -> Callable[..., Any]:
        return lambda x, out: route(x)

    def only_gate_up(layer: Weights) -> Callable[..., Any]:
        return lambda x, out: gate_up(layer, routed)

    def only_down(layer: Weights) -> Callable[..., Any]:
        return lambda x, out: down(layer, routed, inner, out)

    steps = {
        "router": [only_router(router_copy()) for _ in range(copies(case.router_bytes, device))],
        "gate_up": [only_gate_up(layer) for layer in layers],
        "down": [only_down(layer) for layer in layers],
        "all": [all_of(router_copy(), layer) for layer in layers],
    }
    return len(routed.ids.unique()), steps, (x, torch.zeros_like(x))


def address_tables(ids: torch.Tensor, num_experts: int, blobs: torch.Tensor) -> list[torch.Tensor]:
    """int64 [experts] each, two at least: the experts of ``ids`` lie in other blobs in each, one table after another
    goes through all of them."""
    import torch

    taken = ids.unique().long()
    places = blobs.data_ptr() + blobs.shape[1] * torch.arange(len(blobs), device=blobs.device)
    tables = []
    for first in range(0, max(len(blobs), 2 * len(taken)), len(taken)):
        table = places[:1].repeat(num_experts)  # those that are not taken are anywhere
        table[taken] = places.roll(-first)[: len(taken)]
        tables.append(table)
    return tables
