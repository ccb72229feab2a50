"""Linear attention on a card, against the reference in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from strata.kernels.attention.batch import PagedBatch
from strata.kernels.delta_rule.net import DeltaNet
from strata.kernels.delta_rule.prefill import CHUNK
from strata.kernels.delta_rule.state import DeltaState
from strata.kernels.delta_rule.triton import prepare
from strata.kernels.layer import Kernels
from strata.kernels.matrix import Norm
from strata.kernels.operations import REFERENCE
from strata.kernels.rows import QuantizedRows, dequantize_rows, wants_quantized
from tests.kernels.conftest import Machine

Span = tuple[int, int]  # start, new tokens


@dataclass(frozen=True, slots=True)
class Step:
    net: DeltaNet
    projected: Tensor
    gates: Tensor
    state: DeltaState
    batch: PagedBatch

    def to(self, device: str) -> Step:
        net, state, batch = self.net, self.state, self.batch
        weights = {name: getattr(net, name).to(device) for name in ("conv", "decay", "dt_bias")}
        return Step(
            replace(net, norm=Norm(net.norm.weight.to(device), net.norm.eps), **weights),
            self.projected.to(device),
            self.gates.to(device),
            DeltaState(state.conv.to(device), state.recurrent.to(device)),
            replace(
                batch,
                **{name: getattr(batch, name).to(device) for name in ("positions", "lengths", "starts", "states")},
            ),
        )


def make_step(
    spans: Sequence[Span],
    key_heads: int = 1,
    value_heads: int = 2,
    key_dim: int = 32,
    value_dim: int = 32,
    *,
    kernel: int = 4,
    ring: int = 4,
    sigmoid_gate: bool = False,
    seed: int = 0,
) -> Step:
    """Sequences behind ``start`` tokens whose states are random; the slot of one that begins holds NaN."""
    torch.manual_seed(seed)
    net = DeltaNet(
        key_heads, value_heads, key_dim, value_dim, *_weights(key_heads, value_heads, key_dim, value_dim, kernel)
    )
    net = replace(net, sigmoid_gate=sigmoid_gate)
    tokens = sum(new for _, new in spans)
    states = torch.randperm(len(spans) + 2)[: len(spans)].int()
    conv = torch.randn(len(spans) + 2, ring, net.channels).bfloat16()
    recurrent = torch.randn(len(spans) + 2, value_heads, key_dim, value_dim)
    for (start, _), slot in zip(spans, states.tolist(), strict=True):
        if start == 0:
            conv[slot], recurrent[slot] = torch.nan, torch.nan
    starts = torch.tensor([0, *accumulate(new for _, new in spans)], dtype=torch.int32)
    positions = torch.cat([torch.arange(start, start + new) for start, new in spans])
    lengths = torch.tensor([start + new for start, new in spans], dtype=torch.int32)
    batch = PagedBatch(positions, positions, lengths[:, None], lengths, starts, max(new for _, new in spans), states)
    projected = torch.randn(tokens, net.channels + net.value_width).bfloat16()
    return Step(net, projected, 2 * torch.randn(tokens, 2 * value_heads), DeltaState(conv, recurrent), batch)


def _weights(
    key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int
) -> tuple[Tensor, Tensor, Tensor, Norm]:
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    norm = Norm(1 + 0.3 * torch.randn(value_dim), 1e-6)
    return torch.randn(channels, kernel) / 2, torch.randn(value_heads) - 1, torch.randn(value_heads), norm


def _slots(step: Step) -> Tensor:
    assert step.batch.states is not None
    return step.batch.states.long()


def reference(step: Step) -> tuple[Tensor, Tensor, Tensor]:
    state = DeltaState(step.state.conv.float(), step.state.recurrent.clone())
    attend = Kernels(REFERENCE, torch.float32).delta_net(step.net)
    return attend(step.projected.float(), step.gates, state, step.batch), state.conv, state.recurrent


def run(step: Step) -> tuple[Tensor, Tensor, Tensor]:
    """The heads and the states after them. What the kernels do not write is NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        out = prepare(step.net)(step.projected, step.gates, step.state, step.batch)
    finally:
        torch.use_deterministic_algorithms(False)
    assert isinstance(out, QuantizedRows) == wants_quantized(len(step.projected))
    out = dequantize_rows(out) if isinstance(out, QuantizedRows) else out.float()
    return out.cpu(), step.state.conv.cpu(), step.state.recurrent.cpu()


MIXED = [(40, 1), (9, 1), (0, 33), (16, CHUNK + 24), (5, 1)]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda: make_step([(0, 1)]), id="first token"),
        pytest.param(lambda: make_step([(1, 1), (2, 1), (70, 1)]), id="decode, some before its kernel is full"),
        pytest.param(lambda: make_step([(9 * n, 1) for n in range(9)], 2, 4), id="decode, too many to quantise"),
        pytest.param(lambda: make_step([(40, 1)], 2, 2, 64, 16), id="decode, values narrower than keys"),
        pytest.param(
            lambda: make_step([(40, 1)], kernel=3, ring=7, sigmoid_gate=True), id="decode, long ring, sigmoid"
        ),
        pytest.param(lambda: make_step([(0, 37)]), id="prompt from its start"),
        pytest.param(lambda: make_step([(2, 3)]), id="chunk shorter than the kernel"),
        pytest.param(lambda: make_step([(70, 2 * CHUNK + 5)], 1, 2, 16, 64), id="three chunks, values wider than keys"),
        pytest.param(lambda: make_step([(0, CHUNK), (3, 2 * CHUNK)]), id="whole chunks of two sequences"),
        pytest.param(
            lambda: make_step([(5, 70)], kernel=3, ring=7, sigmoid_gate=True), id="chunks, long ring, sigmoid"
        ),
        pytest.param(lambda: make_step(MIXED), id="decode and chunks"),
    ],
)
def test_delta_net(machine: Machine, step: Step) -> None:
    made = step()  # type: ignore[operator]
    heads, conv, recurrent = machine.call(run, made.to(machine.device))
    expected, conv_after, recurrent_after = reference(made)
    for first, end in pairwise(made.batch.starts.tolist()):  # a row alone may have read next to nothing
        error = (heads[first:end] - expected[first:end]).norm() / expected[first:end].norm()
        assert error < 2e-2, f"rows {first} to {end}: {error}"
    seen = _slots(made)
    error = (recurrent[seen] - recurrent_after[seen]).norm() / recurrent_after[seen].norm()
    assert error < 2e-2, f"states: {error}"
    assert torch.equal(conv.float().nan_to_num(7), conv_after.nan_to_num(7))
    others = [slot for slot in range(len(recurrent)) if slot not in seen.tolist()]
    assert torch.equal(recurrent[others], made.state.recurrent[others]), "a slot of nobody in the step was written"


def test_token_after_token_is_as_one_chunk(machine: Machine) -> None:
    made = make_step([(0, 12)], seed=3)
    whole = machine.call(run, made.to(machine.device))
    state = made.state
    rows = []
    for token in range(12):
        one = make_step([(token, 1)], seed=3)
        batch = replace(one.batch, states=made.batch.states)
        part = Step(made.net, made.projected[token : token + 1], made.gates[token : token + 1], state, batch)
        row, *after = machine.call(run, part.to(machine.device))
        state = DeltaState(*after)
        rows.append(row)
    assert (torch.cat(rows) - whole[0]).norm() < 3e-2 * whole[0].norm()
    slot = int(_slots(made)[0])
    assert (state.recurrent[slot] - whole[2][slot]).norm() < 2e-2 * whole[2][slot].norm()
