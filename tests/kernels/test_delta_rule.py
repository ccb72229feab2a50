"""Linear attention on a card, against the reference in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from strata.config.engine import MAX_DRAFT
from strata.kernels.attention.batch import Drafted, PagedBatch
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
            DeltaState(*(None if part is None else part.to(device) for part in parts(state))),
            replace(
                batch,
                **{name: getattr(batch, name).to(device) for name in ("positions", "lengths", "starts", "states")},
                drafted=batch.drafted and Drafted(batch.drafted.replayed.to(device), batch.drafted.drafts.to(device)),
            ),
        )


def parts(state: DeltaState) -> tuple[Tensor, Tensor, Tensor | None]:
    return state.conv, state.recurrent, state.gates


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
    drafted: Sequence[tuple[int, int]] | None = None,
    seed: int = 0,
) -> Step:
    """Sequences behind ``start`` tokens whose states are random; the slot of one that begins holds NaN. ``drafted``:
    the tokens before these that each one's state lacks, and those of its draft."""
    torch.manual_seed(seed)
    net = DeltaNet(
        key_heads, value_heads, key_dim, value_dim, *_weights(key_heads, value_heads, key_dim, value_dim, kernel)
    )
    net = replace(net, sigmoid_gate=sigmoid_gate)
    tokens = sum(new for _, new in spans)
    states = torch.randperm(len(spans) + 2)[: len(spans)].int()
    conv = torch.randn(len(spans) + 2, ring, net.channels).bfloat16()
    recurrent = torch.randn(len(spans) + 2, value_heads, key_dim, value_dim)
    lacking = [0] * len(spans) if drafted is None else [replayed for replayed, _ in drafted]
    for (start, _), replayed, slot in zip(spans, lacking, states.tolist(), strict=True):
        if start == 0:
            conv[slot] = torch.nan
        if start == replayed:
            recurrent[slot] = torch.nan
    starts = torch.tensor([0, *accumulate(new for _, new in spans)], dtype=torch.int32)
    positions = torch.cat([torch.arange(start, start + new) for start, new in spans])
    lengths = torch.tensor([start + new for start, new in spans], dtype=torch.int32)
    batch = PagedBatch(positions, positions, lengths[:, None], lengths, starts, max(new for _, new in spans), states)
    projected = torch.randn(tokens, net.channels + net.value_width).bfloat16()
    gates, kept = 2 * torch.randn(tokens, 2 * value_heads), None
    if drafted is not None:
        batch = replace(batch, drafted=Drafted(*torch.tensor(drafted, dtype=torch.int32).T.contiguous()))
        kept = 2 * torch.randn(len(conv), ring, 2 * value_heads)
    return Step(net, projected, gates, DeltaState(conv, recurrent, kept), batch)


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
    kept = step.state.gates
    state = DeltaState(step.state.conv.float(), step.state.recurrent.clone(), None if kept is None else kept.clone())
    attend = Kernels(REFERENCE, torch.float32).delta_net(step.net)
    return attend(step.projected.float(), step.gates, state, step.batch), state.conv, state.recurrent


def run(step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The heads, and the parts of the states after them. What the kernels do not write is NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        out = prepare(step.net)(step.projected, step.gates, step.state, step.batch)
    finally:
        torch.use_deterministic_algorithms(False)
    assert isinstance(out, QuantizedRows) == wants_quantized(len(step.projected))
    out = dequantize_rows(out) if isinstance(out, QuantizedRows) else out.float()
    conv, recurrent, gates = parts(step.state)
    return out.cpu(), conv.cpu(), recurrent.cpu(), None if gates is None else gates.cpu()


MIXED = [(40, 1), (9, 1), (0, 33), (16, CHUNK + 24), (5, 1)]
RING = 4 + 2 * MAX_DRAFT


def make_drafted(spans: Sequence[tuple[Span, int, int]], *shape: int, **settings: Any) -> Step:
    """Of each sequence its span, the tokens that its state lacks, and those of its draft."""
    drafted = [(replayed, drafts) for _, replayed, drafts in spans]
    return make_step([span for span, _, _ in spans], *shape, **{"ring": RING, "drafted": drafted, **settings})


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
        pytest.param(lambda: make_drafted([((0, 1), 0, 0)]), id="drafts may come, first token"),
        pytest.param(lambda: make_drafted([((40, 4), 0, 3)]), id="a draft"),
        pytest.param(lambda: make_drafted([((0, 8), 0, 7)]), id="a draft behind the first token"),
        pytest.param(lambda: make_drafted([((40, 1), 5, 0)], 2, 4), id="right drafts of the step before"),
        pytest.param(
            lambda: make_drafted([((7, 8), 7, 7)]), id="as many of both as there can be, state from the start"
        ),
        pytest.param(
            lambda: make_drafted([((40, 3), 2, 2)], 2, 2, 64, 16, kernel=3, ring=3 + 2 * MAX_DRAFT, sigmoid_gate=True),
            id="a draft, values narrower than keys, sigmoid",
        ),
        pytest.param(
            lambda: make_drafted([((30, 5), 1, 4), ((9, 1), 0, 0), ((70, 8), 3, 7)]), id="drafts, too many to quantise"
        ),
        pytest.param(
            lambda: make_drafted(
                [((40, 1), 3, 0), ((9, 1), 0, 0), ((0, 33), 0, 0), ((2, 6), 0, 0), ((5, CHUNK), 0, 0)]
            ),
            id="right drafts beside chunks, some of them short",
        ),
        pytest.param(lambda: make_drafted([((3, CHUNK + 4), 0, 0)]), id="a chunk alone where drafts may come"),
    ],
)
def test_delta_net(machine: Machine, step: Step) -> None:
    made = step()  # type: ignore[operator]
    heads, conv, recurrent, _ = machine.call(run, made.to(machine.device))
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


def test_inputs_of_drafts_are_kept_for_the_next_step(machine: Machine) -> None:
    made = make_drafted([((40, 4), 2, 3), ((9, 1), 0, 0)])
    *_, kept = machine.call(run, made.to(machine.device))
    for (slot, first), (position, tokens) in zip(
        zip(_slots(made).tolist(), (0, 4), strict=True), ((40, 4), (9, 1)), strict=True
    ):
        rows = [(position + token) % RING for token in range(tokens)]
        assert torch.equal(kept[slot][rows], made.gates[first : first + tokens])


@pytest.mark.parametrize("right", [0, 2, 5], ids=["none", "some", "all"])
def test_what_is_right_of_a_draft_is_as_if_it_had_come_token_by_token(machine: Machine, right: int) -> None:
    """Three steps: a draft of which ``right`` tokens are right, another draft, a token alone."""
    made = make_step([(20, 14)], ring=RING, seed=3)
    expected, *_ = reference(made)
    slot = made.batch.states
    state = DeltaState(made.state.conv, made.state.recurrent, torch.full((3, RING, 4), torch.nan))
    begin, lacking = 0, 0
    for tokens, kept in ((6, right), (4, 3), (1, 0)):
        part = make_drafted([((20 + begin, tokens), lacking, tokens - 1)])
        projected, gates = part.projected.clone(), part.gates.clone()  # those of wrong tokens are of other ones
        there = slice(begin, begin + kept + 1)
        projected[: kept + 1], gates[: kept + 1] = made.projected[there], made.gates[there]
        step = Step(made.net, projected, gates, state, replace(part.batch, states=slot))
        rows, *after = machine.call(run, step.to(machine.device))
        state = DeltaState(*after)
        assert (rows[: kept + 1] - expected[there]).norm() < 3e-2 * expected[there].norm()
        begin, lacking = begin + kept + 1, kept


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
