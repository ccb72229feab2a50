"""Attention that reads pages in place, against the reference in float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.attention.triton import prepare
from strata.kernels.rows import QuantizedRows, dequantize_rows, wants_quantized
from tests.kernels.conftest import Machine
from tests.kernels.paged import Step, make_step


def run(step: Step) -> tuple[Tensor, Tensor]:
    """The attended heads, and the cache after it. What the kernels do not write is NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        out = prepare(step.heads)(step.qkv, step.rotation, step.cache, step.batch)
    finally:
        torch.use_deterministic_algorithms(False)
    assert isinstance(out, QuantizedRows) == wants_quantized(len(step.qkv))
    return (dequantize_rows(out) if isinstance(out, QuantizedRows) else out.float()).cpu(), step.cache.cpu()


def check(machine: Machine, step: Step) -> None:
    attended, cache = machine.call(run, step.to(machine.device))
    expected, after = step.expected
    for row in range(len(expected)):
        error = (attended[row] - expected[row]).norm() / expected[row].norm()
        assert error < 2e-2, f"row {row}: {error}"
    assert torch.equal(cache.isnan(), after.isnan()), "written elsewhere than into the new tokens' slots"
    assert torch.allclose(cache.float(), after, rtol=2**-6, atol=2e-3, equal_nan=True)


MIXED = [(40, 1), (9, 1), (0, 33), (16, 24), (5, 1)]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda: make_step([(0, 1)]), id="decode, first token"),
        pytest.param(lambda: make_step([(16, 1), (15, 1), (70, 1)]), id="decode, at the edges of blocks"),
        pytest.param(lambda: make_step([(63, 1), (64, 1), (130, 1)], window=66), id="decode, at the edges of tiles"),
        pytest.param(lambda: make_step([(9 * n, 1) for n in range(9)], 2, 1), id="decode, too many to quantise"),
        pytest.param(lambda: make_step([(40, 1)], 16, 1, norm=False, sinks=True), id="decode, sinks, all share a head"),
        pytest.param(lambda: make_step([(40, 1), (90, 1)], window=7, block_size=32), id="decode, window in a block"),
        pytest.param(lambda: make_step([(40, 1)], 2, 2, 96), id="decode, no head is shared, 96 wide"),
        pytest.param(lambda: make_step([(20, 1)], 6, 2, 16), id="decode, two heads in a group of the quantised"),
        pytest.param(lambda: make_step([(0, 37)], 6, 2), id="prompt from its start, three share a head"),
        pytest.param(lambda: make_step([(70, 20)], 2, 2, 96, norm=False), id="chunk after others, 96 wide"),
        pytest.param(lambda: make_step([(3, 4)]), id="chunk, short enough to quantise"),
        pytest.param(lambda: make_step([(10, 70)], window=9, sinks=True), id="chunk longer than its window, sinks"),
        pytest.param(lambda: make_step(MIXED), id="decode and chunks"),
        pytest.param(
            lambda: make_step([(40, 1)], 16, 2, 64, gated=True, rotary_dim=16), id="decode, gates, a part turned"
        ),
        pytest.param(lambda: make_step(MIXED, gated=True, rotary_dim=8), id="decode and chunks, gates, a part turned"),
        pytest.param(lambda: make_step(MIXED, window=23, sinks=True, block_size=32), id="decode and chunks, window"),
    ],
)
def test_attention(machine: Machine, step: Step) -> None:
    check(machine, step())  # type: ignore[operator]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([(5000, 1), (0, 1), (1023, 1)], id="decode"),
        pytest.param([(1500, 1), (0, 300), (2000, 130), (77, 1)], id="decode and chunks"),
    ],
)
def test_long_attention(window: int | None, spans: list[tuple[int, int]]) -> None:
    machine = Machine("cuda", lambda function, *arguments: function(*arguments))
    check(machine, make_step(spans, 32, 4, 128, window=window))
    check(machine, make_step(spans, 64, 8, 64, window=window, norm=False, sinks=True))


def test_padding_rows_leave_no_trace(machine: Machine) -> None:
    step = make_step([(20, 1), (33, 1)])
    batch = step.batch
    padded = replace(
        step,
        qkv=functional.pad(step.qkv, (0, 0, 0, 2), value=torch.nan),
        rotation=replace(step.rotation, cos=_pad(step.rotation.cos), sin=_pad(step.rotation.sin)),
        batch=replace(
            batch,
            slots=functional.pad(batch.slots, (0, 2)),
            tables=functional.pad(batch.tables, (0, 0, 0, 2)),
            lengths=functional.pad(batch.lengths, (0, 2)),
            starts=torch.arange(5, dtype=torch.int32),
        ),
    )
    attended, cache = machine.call(run, padded.to(machine.device))
    alone = machine.call(run, step.to(machine.device))
    assert not attended[2:].any()
    assert torch.equal(cache.isnan(), alone[1].isnan())


def _pad(turn: Tensor) -> Tensor:
    return functional.pad(turn, (0, 0, 0, 0, 0, 2), value=torch.nan)


@pytest.mark.parametrize("spans", [[(0, 21)], [(7, 1), (30, 1), (16, 18), (0, 3)]], ids=str)
@pytest.mark.parametrize("window", [None, 23])
def test_sequences_without_new_tokens_change_nothing(
    machine: Machine, spans: list[tuple[int, int]], window: int | None
) -> None:
    """A graph has room for more sequences than a step may have, and for more new tokens of one."""
    step = make_step(spans, 6, 2, window=window)
    batch = step.batch
    padded = replace(
        batch,
        tables=functional.pad(batch.tables, (0, 3, 0, 4)),
        lengths=functional.pad(batch.lengths, (0, 4)),
        starts=functional.pad(batch.starts, (0, 4), value=len(step.qkv)),
        max_query=len(step.qkv),
    )
    check(machine, replace(step, batch=padded))


def test_a_row_does_not_depend_on_the_others(machine: Machine) -> None:
    step = make_step([(20, 1), (33, 1), (40, 1)])
    qkv, lengths = step.qkv.clone(), step.batch.lengths.clone()
    qkv[1:] *= -2
    lengths[1] -= 7
    other = replace(step, qkv=qkv, cache=step.cache.clone(), batch=replace(step.batch, lengths=lengths))
    found, expected = (machine.call(run, case.to(machine.device))[0] for case in (other, step))
    assert torch.equal(found[0], expected[0])
    assert not torch.equal(found[2], expected[2])
