"""How fast a GPU computes the routed experts of one layer, all of them in its memory, step by step.

A step reads each expert that some token takes once, however many take it, so for few tokens it is as good as the share
of the memory's bandwidth that it reaches. Around the number of tokens from which tensor cores take over
(``experts.blobs``) both ways are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from strata.bench.experts import SAMPLES, Experts, random_blobs
from strata.bench.gpu_time import Measurement, Work, copies, measure
from strata.store.layout import BLOB_ALIGNMENT

if TYPE_CHECKING:
    import torch

    from strata.kernels.layer import Routed

TOKENS = (1, 4, 16, 24, 32, 48, 64, 2048)


def run(cases: Sequence[Experts], tokens: Sequence[int]) -> Iterator[Measurement]:
    """Measure the steps of each with each number of tokens on the current GPU. Raises HardwareError without one."""
    return measure(lambda device: _works(cases, tokens, device))


def _works(cases: Sequence[Experts], tokens: Sequence[int], device: Any) -> Iterator[Work]:
    for case in cases:
        blobs = _blobs(case, device)
        for count in tokens:
            for way in ways(count):
                taken, steps, inputs = _prepare(case, count, way, blobs)
                num_bytes, operations = case.read_bytes(taken), case.operations(count)
                for name, calls in steps.items():
                    yield Work(f"{case} {name} {way}", count, num_bytes[name], operations[name], calls, inputs)


def ways(tokens: int) -> tuple[str, ...]:
    """Those of ``blobs.WAYS`` that are worth measuring: both where tensor cores might take over."""
    from strata.kernels.experts.blobs import MAX_FEW

    if MAX_FEW / 2 <= tokens <= 2 * MAX_FEW:
        return "gemv", "gemm"
    return ("gemv",) if tokens <= MAX_FEW else ("gemm",)


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
