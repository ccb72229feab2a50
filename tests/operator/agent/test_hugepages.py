from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_operator.agent.fake_host import FakeSysfs
from strata_operator.agent.hardware import NodePages
from strata_operator.agent.hugepages import (
    RETRY_SECONDS,
    Record,
    Reserver,
    plan,
    spread,
    still_held,
    troubles,
    tuned,
    wanted,
)
from strata_operator.api.node import NodeSpec, PagesOriginal, PagesWish, TunedPages, Tuning, Wish


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """A fake host, an agent's reserver, and the record that outlives it."""

    def __init__(self, root: Path, nodes: int = 2) -> None:
        self.host = FakeSysfs(root, nodes=nodes)
        self.clock = Clock()
        self.reserver = Reserver(self.host, self.clock)
        self.record: Record = ()

    def had(self, *pages: int, size: str = "2Mi") -> Machine:
        """What an administrator reserved."""
        for node, number in enumerate(pages):
            self.host.memory[node, size].total = number
        self.host.refresh()
        return self

    def turn(self, wants: dict[str, int]) -> list[int]:
        """Pages of 2Mi by node afterwards."""
        self.record = self.reserver.turn(self.host.hugepages(), wants, self.record, self.write)
        return self.totals()

    def write(self, record: Record) -> None:
        self.record = record

    def totals(self, size: str = "2Mi") -> list[int]:
        return [one.total for one in self.host.hugepages() if one.size == size]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_wishes_of_all_models_add_up() -> None:
    a = Wish("ns/a", hugepages=(PagesWish("2Mi", 100), PagesWish("1Gi", 2)))
    b = Wish("ns/b", hugepages=(PagesWish("2Mi", 50),))
    assert wanted(NodeSpec(Tuning((a, b)))) == {"2Mi": 150, "1Gi": 2}
    assert wanted(NodeSpec(Tuning((a, b)), suspend=True)) == {}


@pytest.mark.parametrize(
    ("total", "least", "expected"),
    [
        (10, [0, 0], [5, 5]),
        (11, [0, 0], [6, 5]),
        (10, [8, 0], [8, 2]),
        (10, [8, 2], [8, 2]),
        (0, [0, 0], [0, 0]),
        (7, [1, 5, 0], [1, 5, 1]),
    ],
)
def test_spread(total: int, least: list[int], expected: list[int]) -> None:
    assert spread(total, least) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(0, 5000))
def test_spread_reaches_its_sum_and_takes_nothing_away(least: list[int], more: int) -> None:
    made = spread(sum(least) + more, least)
    assert sum(made) == sum(least) + more
    assert all(now >= before for now, before in zip(made, least, strict=True))
    raised = [now for now, before in zip(made, least, strict=True) if now > before]
    assert not raised or max(raised) - min(made) <= 1


def test_reserved_evenly_and_given_back(machine: Machine) -> None:
    assert machine.had(10, 0).turn({"2Mi": 512}) == [256, 256]
    assert list(machine.record) == [PagesOriginal(0, "2Mi", 10), PagesOriginal(1, "2Mi", 0)]
    assert machine.turn({"2Mi": 512}) == [256, 256]
    assert machine.turn({}) == [10, 0]
    machine.turn({})
    assert machine.record == ()


def test_what_an_administrator_reserved_counts(machine: Machine) -> None:
    assert machine.had(600, 0).turn({"2Mi": 512}) == [600, 0]


def test_the_record_comes_first(machine: Machine) -> None:
    def refuse(record: Record) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        machine.reserver.turn(machine.host.hugepages(), {"2Mi": 8}, (), refuse)
    assert machine.totals() == [0, 0]


def test_after_a_restart_of_the_machine_they_are_reserved_again(machine: Machine) -> None:
    machine.had(10, 0).turn({"2Mi": 512})
    machine.host.restart("another")
    assert machine.turn({"2Mi": 512}) == [256, 256]
    assert machine.turn({}) == [10, 0]


def test_compaction_is_tried_where_memory_is_fragmented(machine: Machine) -> None:
    for node in (0, 1):
        machine.host.memory[node, "2Mi"].possible = 100
        machine.host.memory[node, "2Mi"].after_compaction = 300
    assert machine.turn({"2Mi": 512}) == [256, 256]
    assert machine.host.num_compactions == 1


def test_another_node_makes_up_and_that_is_left_so(machine: Machine) -> None:
    machine.host.memory[0, "2Mi"].possible = machine.host.memory[0, "2Mi"].after_compaction = 100
    assert machine.turn({"2Mi": 512}) == [100, 412]
    compactions = machine.host.num_compactions
    assert machine.turn({"2Mi": 512}) == [100, 412]
    assert machine.host.num_compactions == compactions


def test_a_shortage_is_told_with_numbers_and_not_tried_all_the_time(machine: Machine) -> None:
    for node in (0, 1):
        machine.host.memory[node, "2Mi"].possible = machine.host.memory[node, "2Mi"].after_compaction = 100
    wants = {"2Mi": 512}
    assert machine.turn(wants) == [100, 100]
    pages = machine.host.hugepages()
    (short,) = troubles(tuned(pages, wants, {"2Mi": 200}), pages)
    assert short.reason == "PagesShort"
    assert "200 of 512 pages of 2Mi could be made (100 on NUMA node 0, 100 on NUMA node 1)" in short.message
    assert "hugepagesz=2048K hugepages=512" in short.message
    machine.turn(wants)
    assert machine.host.num_compactions == 1
    machine.clock.now += RETRY_SECONDS
    for node in (0, 1):
        machine.host.memory[node, "2Mi"].after_compaction = 400
    assert machine.turn(wants) == [256, 256]


def test_another_number_is_tried_at_once(machine: Machine) -> None:
    for node in (0, 1):
        machine.host.memory[node, "2Mi"].possible = machine.host.memory[node, "2Mi"].after_compaction = 100
    machine.turn({"2Mi": 512})
    assert machine.turn({"2Mi": 100}) == [50, 50]


def test_pages_in_use_are_never_dropped(machine: Machine) -> None:
    machine.turn({"2Mi": 512})
    machine.host.memory[0, "2Mi"].used = 200
    machine.host.refresh()
    assert machine.turn({}) == [200, 0]
    (held,) = still_held(machine.record, machine.host.hugepages(), {})
    assert held.message.startswith("pages of 2Mi on NUMA node 0 are given back once nobody uses them; there were 0")
    machine.host.memory[0, "2Mi"].used = 0
    machine.host.refresh()
    assert machine.turn({}) == [0, 0]
    assert machine.turn({}) == [0, 0]
    assert machine.record == ()


def test_promised_pages_are_kept(machine: Machine) -> None:
    """Mapped and not touched yet: the kernel counts them as free, and a pod relies on them."""
    machine.turn({"2Mi": 512})
    machine.host.promised["2Mi"] = 64
    machine.host.refresh()
    assert machine.turn({}) == [64, 64]


def test_sizes_do_not_mix(machine: Machine) -> None:
    assert machine.had(5, 5).turn({"1Gi": 4}) == [5, 5]
    assert machine.totals("1Gi") == [2, 2]
    assert {one.size for one in machine.record} == {"1Gi"}


def test_the_kubelet_has_to_count_anew() -> None:
    pages = (NodePages(0, "2Mi", 512, 512),)
    (trouble,) = troubles((TunedPages("2Mi", 512, 512, 0),), pages)
    assert trouble.reason == "KubeletRestartNeeded"
    assert "512 pages of 2Mi are reserved, and the kubelet gives 0 to pods" in trouble.message
    assert troubles((TunedPages("2Mi", 512, 512, 512),), pages) == []
    assert troubles((TunedPages("2Mi", 512, 600, 512),), pages) == []


def test_a_host_without_huge_pages(tmp_path: Path) -> None:
    assert plan((), {"2Mi": 4}, (), {}).targets == {}
    assert len(troubles(tuned((), {"2Mi": 4}, {}), ())) == 1
