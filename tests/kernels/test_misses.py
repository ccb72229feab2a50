"""Experts that VRAM does not have: who gets a slot, what the CPU is told, and what comes back."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from strata.kernels.misses import reference, table
from strata.kernels.misses.table import Counter, MissTable
from strata.kernels.rows import QuantizedRows, dequantize_rows, quantize_rows
from strata.native.mailbox import COMPUTE, DONE, REQUEST, ROUTE
from tests.kernels.conftest import Machine
from tests.kernels.interpret import Interpreter
from tests.kernels.misses_cases import (
    call_add_answer,
    call_add_answer_that_never_comes,
    call_add_answer_where_nothing_was_asked,
    call_ask_route,
    call_share_out,
    call_share_out_alone,
    call_take_choice,
    make_table,
    to,
)


def assert_same(found: MissTable, expected: MissTable) -> None:
    count = int(expected.count)
    for field in fields(expected):
        if field.name == "scratch":
            continue
        a, b = getattr(found, field.name).cpu(), getattr(expected, field.name)
        if field.name.startswith("copy_"):
            a, b = a[:count], b[:count]
        assert torch.equal(a, b) or torch.allclose(a.double(), b.double(), rtol=1e-6), field.name


def assert_sound(table: MissTable) -> None:
    """Every slot has one owner, and addresses and owners say the same."""
    owners = table.owners.tolist()
    held = {owner: slot for slot, owner in enumerate(owners) if owner >= 0}
    assert len(held) == sum(owner >= 0 for owner in owners)
    for expert, address in enumerate(table.addresses.tolist()):
        assert address == (int(table.slots[held[expert]]) if expert in held else 0)


def choose(tokens: int, top_k: int, num_experts: int, seed: int, num_all: int | None = None) -> tuple[Tensor, Tensor]:
    """``num_all``: experts among which there are others, whose ids are all ``num_experts``."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(num_all or num_experts, generator=generator)[:top_k] for _ in range(tokens)]
    return torch.stack(drawn).int().clamp(max=num_experts), torch.rand(tokens, top_k, generator=generator)


@pytest.mark.parametrize(
    ("tokens", "top_k", "num_experts", "num_slots", "num_fetchable", "num_all"),
    [
        pytest.param(1, 4, 12, 6, 12, 12, id="one token"),
        pytest.param(5, 3, 20, 7, 13, 20, id="several tokens, no powers of two, some are never fetched"),
        pytest.param(3, 4, 16, 1, 16, 16, id="one slot"),
        pytest.param(1, 2, 8, 8, 8, 8, id="all experts have slots"),
        pytest.param(4, 4, 11, 4, 11, 32, id="two thirds are other ranks'"),
        pytest.param(4, 4, 16, 4, 16, 32, id="half are other ranks'"),
        pytest.param(1, 10, 512, 256, 512, 512, id="one token, 512 experts"),
        pytest.param(16, 10, 512, 300, 400, 512, id="many tokens, 512 experts"),
        pytest.param(5, 10, 300, 3, 300, 600, id="300 experts, more are missing than there are slots"),
    ],
)
def test_steps_in_turn(
    machine: Machine, tokens: int, top_k: int, num_experts: int, num_slots: int, num_fetchable: int, num_all: int
) -> None:
    split = [(number + 1) // 2 for number in range(num_experts + 1)]
    expected = make_table(num_experts, num_slots, split)
    expected.sources[num_fetchable:] = 0
    found = to(expected, machine.device)
    for step in range(4):
        ids, shares = choose(tokens, top_k, num_experts, step, num_all)
        inner = quantize_rows(torch.randn(tokens, 64))
        cpu_ids = reference.share_out(ids, expected)
        assert not (cpu_ids == num_experts).any(), "nobody's"
        on_device = (ids.to(machine.device), shares.to(machine.device), _move(inner, machine.device))
        found, ring = machine.call(call_share_out, *on_device, found, 6)
        assert_same(found, expected)
        assert_sound(expected)
        places = ring.layout
        assert torch.equal(ring.array(0, places.ids_offset, ids.numel(), torch.int32).cpu().view_as(ids), cpu_ids)
        assert torch.equal(ring.array(0, places.weights_offset, ids.numel()).cpu().view_as(shares), shares)
        if (cpu_ids >= 0).any():
            posted = ring.array(0, places.x_offset, tokens * 64).cpu().view(tokens, 64)
            assert torch.allclose(posted, dequantize_rows(inner))
        head = ring.array(0, REQUEST, 5, torch.int32).tolist()
        assert head == [1, 6, tokens, COMPUTE, 0]


@pytest.mark.parametrize(
    ("tokens", "top_k", "num_experts", "num_slots", "num_fetched", "only"),
    [
        pytest.param(3, 4, 60, 20, 60, None, id="all that can be are fetched"),
        pytest.param(16, 8, 128, 70, 9, None, id="some of 128 experts"),
        pytest.param(16, 10, 512, 257, 20, None, id="some of 512 experts"),
        pytest.param(7, 3, 512, 2, 512, None, id="two slots of 512 experts"),
        pytest.param(7, 3, 100, 5, 100, 9, id="the same few experts again and again"),
        pytest.param(16, 8, 40, 4, 40, 5, id="hardly a slot whose expert is not needed"),
    ],
)
def test_of_many_alike_the_first_go_before(
    machine: Machine, tokens: int, top_k: int, num_experts: int, num_slots: int, num_fetched: int, only: int | None
) -> None:
    """Ids that come several times or are nobody's, heats that are mostly equal, owners in any order and slots without
    one, and marks of other steps. ``only``: experts among which the ids are."""
    generator = torch.Generator().manual_seed(1)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32)

    split = [min(number, num_fetched) for number in range(num_experts + 1)]
    for _ in range(3):
        expected = make_table(num_experts, num_slots, split)
        owners = torch.randperm(only or num_experts, generator=generator)[:num_slots].int()
        expected.owners[: len(owners)] = torch.where(draw(0, 4, len(owners)) > 0, owners, -1)
        expected.owners[len(owners) :] = -1
        expected.addresses.zero_()
        owned = expected.owners >= 0
        expected.addresses[expected.owners[owned].long()] = expected.slots[owned]
        expected.heat.copy_(draw(0, 3, num_experts))
        expected.sources[draw(0, 5, num_experts) == 0] = 0
        expected.scratch.copy_(draw(-2, tokens * top_k + 2, 2 * num_experts))
        ids = draw(0, only or num_experts, tokens, top_k)
        for nobody in (-1, num_experts, num_experts + 5):
            ids[draw(0, 8, tokens, top_k) == 0] = nobody
        found, shares = to(expected, machine.device), torch.rand(tokens, top_k)
        cpu_ids = reference.share_out(ids, expected)
        on_device = (each.to(machine.device) for each in (ids, shares, torch.randn(tokens, 64)))
        found, ring = machine.call(call_share_out, *on_device, found, 6)
        assert_same(found, expected)
        assert_sound(expected)
        assert torch.equal(ring.array(0, ring.layout.ids_offset, ids.numel(), torch.int32).cpu().view_as(ids), cpu_ids)


@pytest.mark.parametrize(
    ("chosen", "fetched", "closes", "asks"),
    [
        pytest.param([0, 1], 0, False, False, id="VRAM has all"),
        pytest.param([0, 5], 1, False, False, id="what is missing is fetched"),
        pytest.param([0, 5], 0, False, True, id="something is left to the CPU"),
        pytest.param([0, 1], 0, True, True, id="the last layer"),
    ],
)
def test_who_leaves_nothing_to_the_cpu_asks_nothing(
    machine: Machine, chosen: list[int], fetched: int, closes: bool, asks: bool
) -> None:
    """The next request tells how many did so."""
    ids = torch.tensor([chosen], dtype=torch.int32, device=machine.device)
    table = make_table(8, 2, [min(number, fetched) for number in range(9)], machine.device)
    arguments = (ids, torch.rand(1, 2, device=machine.device), torch.randn(1, 64, device=machine.device), table)
    _, ring = machine.call(call_share_out, *arguments, 3, 10, 4, 2, closes)
    assert ring.sent.tolist() == ([11, 0, 1] if asks else [10, 3, 0])
    if asks:
        assert ring.array(3, REQUEST, 5, torch.int32).tolist() == [11, 3, 1, COMPUTE, 2]
    else:
        assert (ring.memory == 0x77).all(), "the host is written nothing"


def test_where_nothing_was_asked_nothing_is_added_or_waited_for(machine: Machine) -> None:
    x, counters = torch.randn(2, 1056), torch.zeros(len(Counter), dtype=torch.int64, device=machine.device)
    found, late = machine.call(call_add_answer_where_nothing_was_asked, x.to(machine.device, copy=True), counters)
    assert torch.equal(found.cpu(), x)
    assert not late.any()


@pytest.mark.parametrize(
    ("before", "depth", "slot"),
    [
        pytest.param(3, 3, 1, id="in turn"),
        pytest.param(-2, 3, 0, id="the last number, 2^32 - 1"),
        pytest.param(-1, 8, 0, id="0 comes after it"),
    ],
)
def test_each_request_has_its_slot(machine: Machine, before: int, depth: int, slot: int) -> None:
    ids, shares = choose(1, 2, 8, 0)
    table = make_table(8, 2, [0] * 9, machine.device)
    arguments = (ids.to(machine.device), shares.to(machine.device), torch.randn(1, 96, device=machine.device), table)
    _, ring = machine.call(call_share_out, *arguments, 0, before, depth)
    assert ring.sent.tolist() == [before + 1, 0, 1]
    assert ring.array(slot, REQUEST, 1, torch.int32).tolist() == [before + 1]
    others = [ring.memory.view(depth, -1)[other] for other in range(depth) if other != slot]
    assert all((other == 0x77).all() for other in others)


def _move(inner: QuantizedRows, device: str) -> QuantizedRows:
    return QuantizedRows(inner.codes.to(device), inner.scales.to(device), inner.sums.to(device))


def test_rows_in_bf16_are_posted_as_they_are(machine: Machine) -> None:
    ids, shares = choose(2, 2, 8, 0)
    inner = torch.randn(2, 96).bfloat16()
    table = make_table(8, 2, [0] * 9, machine.device)
    arguments = (ids.to(machine.device), shares.to(machine.device), inner.to(machine.device), table, 0)
    _, ring = machine.call(call_share_out, *arguments)
    assert torch.equal(ring.array(0, ring.layout.x_offset, 192).cpu().view(2, 96), inner.float())


def test_what_is_another_ranks_is_not_needed() -> None:
    mine, both = (make_table(6, 2, [number // 2 for number in range(7)]) for _ in range(2))
    for ids in ([0, 3], [4, 5], [2, 3]):
        left = reference.share_out(torch.tensor([ids], dtype=torch.int32), mine)
        found = reference.share_out(torch.tensor([[6, *ids, 6]], dtype=torch.int32), both)
        assert found.tolist() == [[-1, *left.flatten().tolist(), -1]]
        assert_same(both, mine)


def test_what_a_step_needs_keeps_its_slot() -> None:
    table = make_table(8, 2, list(range(9)))
    assert reference.share_out(torch.tensor([[0, 1, 5]], dtype=torch.int32), table).tolist() == [[-1, -1, 5]]
    assert table.owners.tolist() == [0, 1]


def test_the_hottest_get_slots_and_the_coldest_lose_them() -> None:
    table = make_table(8, 3, [0] * 9)  # nothing is fetched while heat builds up
    for used in ([0, 6], [2, 6], [0, 5], [2, 6]):
        reference.share_out(torch.tensor([used], dtype=torch.int32), table)
    assert table.owners.tolist() == [0, 1, 2]
    table.split.fill_(1)
    assert reference.share_out(torch.tensor([[5, 6]], dtype=torch.int32), table).tolist() == [[5, -1]]
    assert table.owners.tolist() == [0, 6, 2]


def test_what_has_no_source_is_left_to_the_cpu() -> None:
    table = make_table(8, 4, list(range(9)))
    table.sources[6:] = 0
    table.heat[6:] = 9
    assert reference.share_out(torch.tensor([[5, 6, 7]], dtype=torch.int32), table).tolist() == [[-1, 6, 7]]
    assert int(table.count) == 1
    assert int(table.copy_sources[0]) == int(table.sources[5])


def test_adversarial_routing_never_breaks_the_table() -> None:
    table = make_table(16, 3, [min(number, 2) for number in range(17)])
    for step in range(64):  # every step other experts, round and round
        ids = torch.tensor([[(4 * step + i) % 16 for i in range(4)]], dtype=torch.int32)
        cpu_ids = reference.share_out(ids, table)
        assert_sound(table)
        served = {expert for expert in ids.flatten().tolist() if int(table.addresses[expert])}
        assert served | set(cpu_ids.flatten().tolist()) - {-1} == set(ids.flatten().tolist())
    assert int(table.counters[0]) == 64 * 4


@pytest.mark.parametrize(
    ("number", "depth"),
    [pytest.param(5, 1, id="one slot"), pytest.param(7, 4, id="four"), pytest.param(-1, 3, id="last")],
)
def test_the_answer_is_added(machine: Machine, number: int, depth: int) -> None:
    x, answer = torch.randn(3, 704), torch.randn(3, 704)
    arguments = (x.to(machine.device, copy=True), answer.to(machine.device))
    found, late, counters, _ = machine.call(call_add_answer, *arguments, number, depth)
    assert torch.equal(found.cpu(), x + answer)
    assert not late.any()
    assert counters == [0] * len(Counter), "it was there"


def test_the_wait_for_an_answer_is_counted(machine: Machine) -> None:
    x, answer = torch.zeros(3, 704, device=machine.device), torch.ones(3, 704, device=machine.device)
    for delay in (0.01, 0.1, 1.0):  # the launch itself may take as long
        found, late, counters, took = machine.call(call_add_answer, x.clone(), answer, 5, 4, delay)
        assert found.all()
        assert not late.any()
        waited = counters.pop(Counter.WAITED_NS)
        assert counters == [0] * len(counters)
        assert 0 <= waited <= took
        if waited:
            return
    pytest.fail("the kernel was never there before the answer")


def test_an_answer_that_never_comes_is_waited_for_no_longer_than_that(interpreter: Interpreter) -> None:
    x = torch.randn(2, 1056)
    found, late = interpreter.call(call_add_answer_that_never_comes, x, torch.zeros(len(Counter), dtype=torch.int64))
    assert torch.equal(found, x), "what lies in the slot is another request's"
    assert late.tolist() == [1]


def test_the_kernels_know_the_mailbox_of_the_threads() -> None:
    assert (table.COMPUTE, table.ROUTE, table.DONE_OFFSET) == (COMPUTE, ROUTE, DONE)


@pytest.mark.parametrize("inner", ["none", "quantised", "bf16"])
def test_scores_are_posted_with_the_tokens_that_are_to_be_computed(machine: Machine, inner: str) -> None:
    scores, x = torch.randn(3, 60), torch.randn(3, 96)
    rows = {"none": None, "quantised": quantize_rows(x), "bf16": x.bfloat16()}[inner]
    moved = (
        _move(rows, machine.device)
        if isinstance(rows, QuantizedRows)
        else rows
        if rows is None
        else rows.to(machine.device)
    )
    ring = machine.call(call_ask_route, scores.to(machine.device), moved, 96, 5, -2, 3)
    assert ring.sent.tolist() == [-1, 0, 1]
    places, slot = ring.layout, 0  # 2^32 - 1 is a multiple of 3
    assert torch.equal(ring.array(slot, places.scores_offset, 180).cpu().view(3, 60), scores)
    kind = ROUTE if rows is None else ROUTE | COMPUTE
    assert ring.array(slot, REQUEST, 5, torch.int32).tolist() == [-1, 5, 3, kind, 0]
    posted = ring.array(slot, places.x_offset, 288).cpu().view(3, 96)
    if rows is None:
        assert (posted.view(torch.uint8) == 0x77).all()
    else:
        assert torch.allclose(posted, dequantize_rows(rows) if isinstance(rows, QuantizedRows) else rows.float())


@pytest.mark.parametrize(("number", "depth"), [(5, 1), (7, 4), (-1, 3)])
def test_the_choice_is_taken(machine: Machine, number: int, depth: int) -> None:
    ids, shares = choose(3, 5, 60, 0)
    arguments = (ids.to(machine.device), shares.to(machine.device), number, depth)
    found_ids, found_shares, late = machine.call(call_take_choice, *arguments)
    assert torch.equal(found_ids.cpu(), ids)
    assert torch.equal(found_shares.cpu(), shares)
    assert not late.any()


def test_where_nobody_is_asked_the_table_is_kept_all_the_same(machine: Machine) -> None:
    expected = make_table(8, 2, [0] * 9)
    found = to(expected, machine.device)
    ids, shares = choose(2, 3, 8, 0)
    reference.share_out(ids, expected)
    found = machine.call(call_share_out_alone, ids.to(machine.device), shares.to(machine.device), found)
    assert_same(found, expected)
