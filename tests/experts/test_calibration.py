"""What a start tries, and what it takes from an earlier one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strata.experts.calibration import find_times
from strata.experts.saved import Facts, SavedTimes
from strata.experts.splits import best_split
from strata.experts.times import Bounds

FACTS: Facts = {"card": "NVIDIA H200", "top_k": 8}
HALF = Bounds(top_k=8, num_slots=64, num_experts=128)


class Machine:
    """Fetches an expert in ``fetch`` seconds, computes one in ``compute``; for many tokens in twice that."""

    def __init__(self, fetch: float = 50e-6, compute: float = 25e-6) -> None:
        self.fetch, self.compute = fetch, compute
        self.opened: list[int] = []  # tokens of trials
        self.runs = 0

    @contextmanager
    def open_trial(self, tokens: int, num_layers: int) -> Iterator[Machine]:
        self.opened.append(tokens)
        yield self

    def seconds(self, missing: int, fetched: int) -> float:
        self.runs += 1
        each = self.compute * (1 if self.opened[-1] == 1 else 2)
        return max(self.fetch * fetched, each * (missing - fetched))

    def start(self, saved: SavedTimes, bounds: Bounds = HALF, *, anew: bool = False) -> tuple[tuple[int, ...], bool]:
        self.opened, self.runs = [], 0
        times, known = find_times(bounds, 16, self.open_trial, saved, FACTS, anew=anew)
        return best_split(times, "auto", bounds.num_experts), known


def test_many_tokens_are_tried_for_themselves(tmp_path: Path) -> None:
    machine = Machine()
    split, known = machine.start(SavedTimes(tmp_path))
    assert not known
    assert machine.opened == [1, 16]
    assert split[8] == 2, "a third"
    assert split[41] == pytest.approx(41 / 2, abs=3), "half"


def test_the_next_start_tries_little(tmp_path: Path) -> None:
    machine = Machine()
    first = machine.start(SavedTimes(tmp_path))
    runs = machine.runs
    assert machine.start(SavedTimes(tmp_path)) == (first[0], True)
    assert machine.opened == [1]
    assert machine.runs < runs / 5


def test_anew_asks_no_earlier_start_and_is_kept(tmp_path: Path) -> None:
    saved = SavedTimes(tmp_path)
    Machine().start(saved)
    before = saved.read(FACTS)
    machine = Machine(compute=30e-6)
    assert not machine.start(saved, anew=True)[1]
    assert machine.opened == [1, 16]
    assert saved.read(FACTS) != before


def test_a_machine_that_has_changed_is_tried_again(tmp_path: Path) -> None:
    saved = SavedTimes(tmp_path)
    Machine().start(saved)
    slow = Machine(fetch=500e-6)
    split, known = slow.start(saved)
    assert (known, slow.opened) == (False, [1, 16])
    assert split[8] == 0
    assert slow.start(saved) == (split, True)


def test_another_number_of_slots_adds_to_what_is_kept(tmp_path: Path) -> None:
    """And both starts find all of theirs afterwards."""
    saved, machine = SavedTimes(tmp_path), Machine()
    few = Bounds(top_k=8, num_slots=4, num_experts=128)
    machine.start(saved)
    assert not machine.start(saved, few)[1]
    assert machine.start(saved, few)[1]
    assert machine.start(saved)[1]
    assert {1, 8, few.missing_of(16), HALF.missing_of(16)} <= saved.read(FACTS).keys()


def test_few_experts_have_no_trial_of_many_tokens(tmp_path: Path) -> None:
    machine = Machine()
    machine.start(SavedTimes(tmp_path), Bounds(top_k=8, num_slots=120, num_experts=128))
    assert machine.opened == [1]
