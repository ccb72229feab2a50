"""Experts that are fetched before their layer asks: which, who makes room for them, and when nobody does."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from strata.kernels.misses import reference as misses
from strata.kernels.misses.table import Counter, MissTable
from strata.kernels.prefetch import reference
from strata.kernels.prefetch.ahead import Ahead
from tests.kernels.conftest import Machine
from tests.kernels.misses_cases import make_table, to
from tests.kernels.prefetch_cases import call_admit, call_guess_recent, call_guess_routed, call_steps, make_ahead
from tests.kernels.test_misses import assert_same, assert_sound, choose


def assert_same_ahead(found: Ahead, expected: Ahead) -> None:
    for field in fields(expected):
        count = int(expected.count) if field.name == "sources" else len(getattr(expected, field.name))
        assert torch.equal(getattr(found, field.name).cpu()[:count], getattr(expected, field.name)[:count]), field.name


def prefetch_counts(table: MissTable) -> list[int]:
    """Issued, used, wasted."""
    return [
        int(table.counters[counter]) for counter in (Counter.PREFETCHED, Counter.PREFETCH_USED, Counter.PREFETCH_WASTED)
    ]


def experts(*ids: int) -> Tensor:
    return torch.tensor([ids], dtype=torch.int32)


def guess(ids: tuple[int, ...], table: MissTable, ahead: Ahead) -> None:
    """The likelier the earlier."""
    reference.guess_routed(experts(*ids), torch.arange(len(ids), 0, -1).float().view(1, -1), table, ahead)


@pytest.mark.parametrize("predictor", ["gate", "history"])
@pytest.mark.parametrize(
    ("tokens", "top_k", "num_experts", "num_slots", "num_ahead", "num_all"),
    [
        pytest.param(1, 4, 12, 6, 2, 12, id="one token"),
        pytest.param(5, 3, 20, 7, 3, 20, id="several tokens, numbers that are no powers of two"),
        pytest.param(3, 4, 16, 1, 2, 16, id="one slot"),
        pytest.param(1, 2, 8, 8, 1, 8, id="all experts have slots: nothing is missing"),
        pytest.param(3, 4, 11, 4, 2, 22, id="half are other ranks'"),
        pytest.param(3, 4, 16, 4, 2, 32, id="half are other ranks', a power of two"),
        pytest.param(1, 10, 512, 256, 2, 512, id="one token, 512 experts"),
        pytest.param(16, 10, 512, 300, 2, 512, id="many tokens, 512 experts"),
        pytest.param(7, 10, 300, 90, 3, 600, id="300 experts"),
    ],
)
def test_steps_in_turn(
    machine: Machine,
    predictor: str,
    tokens: int,
    top_k: int,
    num_experts: int,
    num_slots: int,
    num_ahead: int,
    num_all: int,
) -> None:
    expected = make_table(num_experts, num_slots, [number // 2 for number in range(num_experts + 1)])
    expected.sources[-1:] = 0  # never fetched
    expected_ahead = make_ahead(num_ahead)
    places = {*expected.slots.tolist(), *expected_ahead.slots.tolist()}
    found, ahead = to(expected, machine.device), to(expected_ahead, machine.device)
    for step in range(5):
        ids, shares = choose(tokens, top_k, num_experts, step // 2, num_all)  # a guess comes true every other time
        if predictor == "gate":
            reference.guess_routed(ids, shares, expected, expected_ahead)
            arguments = (ids.to(machine.device), shares.to(machine.device))
            found, ahead = machine.call(call_guess_routed, *arguments, found, ahead)
        else:
            reference.guess_recent(30, expected, expected_ahead)
            found, ahead = machine.call(call_guess_recent, 30, found, ahead)
        assert_same_ahead(ahead, expected_ahead)
        ids, _ = choose(tokens, top_k, num_experts, (step + 1) // 2, num_all)
        reference.admit(ids, expected, expected_ahead)
        found, ahead = machine.call(call_admit, ids.to(machine.device), found, ahead)
        assert_same(found, expected)
        assert_same_ahead(ahead, expected_ahead)
        assert_sound(expected)
        assert {*expected.slots.tolist(), *expected_ahead.slots.tolist()} == places
        misses.share_out(ids, expected)
        found = to(expected, machine.device)
    issued, used, wasted = prefetch_counts(expected)
    assert (used > 0) == (num_slots < num_experts)
    assert issued == used + wasted


def test_the_likeliest_that_are_missing_are_fetched() -> None:
    table, ahead = make_table(8, 2, [0] * 9), make_ahead(2)
    guess((0, 5, 1, 6, 7), table, ahead)  # 0 and 1 are there
    assert ahead.experts.tolist() == [5, 6]
    assert ahead.sources.tolist() == table.sources[[5, 6]].tolist()
    table.sources[7] = 0
    guess((0, 7, 3), table, ahead)
    assert ahead.experts.tolist() == [3, -1]
    assert (int(ahead.count), prefetch_counts(table)) == (1, [3, 0, 0])


def test_tokens_of_a_step_add_up_their_shares() -> None:
    table, ahead = make_table(8, 1, [0] * 9), make_ahead(1)
    ids = torch.tensor([[5, 6], [7, 6]], dtype=torch.int32)
    reference.guess_routed(ids, torch.tensor([[0.6, 0.4], [0.6, 0.4]]), table, ahead)
    assert ahead.experts.tolist() == [6]


@pytest.mark.parametrize(
    ("least", "fetched"),
    [
        pytest.param(85, [2, 6], id="of the last step, those that were needed before as well"),
        pytest.param(116, [2, -1], id="in all of three steps"),
        pytest.param(131, [-1, -1], id="more than three steps can say"),
    ],
)
def test_recent_steps_say_who_is_likely(least: int, fetched: list[int]) -> None:
    table, ahead = make_table(8, 1, [0] * 9), make_ahead(2)
    for needed in ((2, 5), (2, 6), (2, 6, 7)):
        reference.admit(experts(*needed), table, ahead)
    reference.guess_recent(least, table, ahead)
    assert ahead.experts.tolist() == fetched


def test_what_no_recent_step_needed_is_not_fetched_however_low_the_bar() -> None:
    table, ahead = make_table(8, 1, [0] * 9), make_ahead(2)
    reference.admit(experts(3), table, ahead)
    for left in (3, 3, 3, -1):  # for three steps
        reference.guess_recent(0, table, ahead)
        assert ahead.experts.tolist() == [left, -1]
        reference.admit(experts(0), table, ahead)


def test_a_right_guess_takes_the_coldest_place_and_a_wrong_one_takes_none() -> None:
    table, ahead = make_table(8, 3, [0] * 9), make_ahead(2)
    for used in ([0, 2], [2, 1]):
        misses.share_out(experts(*used), table)
    guess((5, 6), table, ahead)
    spare, coldest = int(ahead.slots[0]), int(table.slots[0])
    reference.admit(experts(1, 5), table, ahead)
    assert table.owners.tolist() == [5, 1, 2]
    assert int(table.addresses[5]) == spare
    assert int(table.addresses[0]) == int(table.addresses[6]) == 0
    assert ahead.slots.tolist()[0] == coldest, "the place that was left is spare"
    assert ahead.experts.tolist() == [-1, -1]
    assert prefetch_counts(table) == [2, 1, 1]
    assert misses.share_out(experts(1, 5), table).tolist() == [[-1, -1]]


def test_what_a_step_needs_keeps_its_slot() -> None:
    table, ahead = make_table(8, 2, [0] * 9), make_ahead(1)
    guess((5,), table, ahead)
    reference.admit(experts(0, 1, 5), table, ahead)
    assert table.owners.tolist() == [0, 1]
    assert int(table.addresses[5]) == 0
    assert prefetch_counts(table) == [1, 0, 1]


def test_adversarial_routing_never_breaks_the_table(machine: Machine) -> None:
    """Every step other experts, round and round, and every second guess is right."""
    table, ahead = make_table(16, 3, [min(number, 2) for number in range(17)]), make_ahead(2)
    start = to(table, machine.device), to(ahead, machine.device)
    shares, steps, expected = torch.tensor([[4.0, 3.0, 2.0, 1.0]]), [], []
    for step in range(24):
        guessed, needed = (experts(*((4 * first + i) % 16 for i in range(4))) for first in (step + step % 2, step))
        reference.guess_routed(guessed, shares, table, ahead)
        owned = {owner for owner in table.owners.tolist() if owner in needed}
        reference.admit(needed, table, ahead)
        assert owned <= set(table.owners.tolist()), "a guess took the place of an expert that the step needs"
        misses.share_out(needed, table)
        assert_sound(table)
        assert len({*table.slots.tolist(), *ahead.slots.tolist()}) == 5
        steps.append(tuple(each.to(machine.device) for each in (guessed, needed, shares)))
        expected.append((to(table, "cpu"), to(ahead, "cpu")))
    issued, used, wasted = prefetch_counts(table)
    assert min(used, wasted) > 4
    assert issued == used + wasted
    for found, wanted in zip(machine.call(call_steps, steps, *start), expected, strict=True):
        assert_same(found[0], wanted[0])
        assert_same_ahead(found[1], wanted[1])
