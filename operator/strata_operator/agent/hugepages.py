"""Huge pages for the models of a node: how many on which NUMA node, and how the kernel is asked for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strata_operator.agent.hardware import Host, NodePages
from strata_operator.api.conditions import Trouble
from strata_operator.api.node import PAGE_BYTES, NodeSpec, PagesOriginal, TunedPages

log = logging.getLogger(__name__)

# Compaction moves memory about under the running models; what it did not yield it will not yield a moment later.
RETRY_SECONDS = 300.0

Place = tuple[int, str]  # NUMA node and size
Record = tuple[PagesOriginal, ...]


def wanted(spec: NodeSpec) -> dict[str, int]:
    """Pages of each size that all models together want."""
    if spec.suspend:
        return {}
    sums: dict[str, int] = {}
    for wish in spec.tuning.models:
        for pages in wish.hugepages:
            sums[pages.size] = sums.get(pages.size, 0) + pages.pages
    return sums


@dataclass(frozen=True, slots=True)
class PagesPlan:
    """``originals`` have to be written down before any of ``targets`` is asked for."""

    originals: Record
    targets: Mapping[Place, int]  # only where the number changes


def plan(
    pages: Sequence[NodePages], wants: Mapping[str, int], record: Record, promised: Mapping[str, int]
) -> PagesPlan:
    """At least as many pages as are wanted, over all NUMA nodes, those that were there before among them. Pure.

    Pages that are in use or ``promised`` to somebody are never given back, and never fewer are kept than there were.
    """
    before: dict[Place, int] = {(one.node, one.size): one.pages for one in record}
    targets: dict[Place, int] = {}
    for size in PAGE_BYTES:
        here = [one for one in pages if one.size == size]
        want = wants.get(size, 0)
        if want:
            # Once a size is wanted, all its places are on record: a shortage on one is made up for on another.
            before |= {(one.node, size): before.get((one.node, size), one.total) for one in here}
        held = [one for one in here if (one.node, size) in before]
        if not held:
            continue
        least = [before[one.node, size] for one in held]
        total = max(want, sum(least))
        if (
            want
            and sum(one.total for one in held) == total
            and all(one.total >= before[one.node, size] for one in held)
        ):
            continue  # as many as are wanted, if not as evenly as one might: one node may have made up for another
        goals = spread(total, least)
        for one, goal in zip(held, goals, strict=True):
            # Which node's pages are promised is not told: all of them are kept on each.
            kept = min(one.total, one.total - one.free + promised.get(size, 0))
            targets[one.node, size] = max(goal, kept)
    now = {(one.node, one.size): one.total for one in pages}
    back = {place for place in before if not wants.get(place[1]) and now.get(place) == before[place]}
    return PagesPlan(
        originals=tuple(PagesOriginal(node, size, before[node, size]) for node, size in sorted(before.keys() - back)),
        targets={place: target for place, target in targets.items() if now[place] != target},
    )


def spread(total: int, least: Sequence[int]) -> list[int]:
    """``total`` over places that have ``least`` already, as evenly as that allows; their sum is ``total``."""
    low, high = 0, total
    while low < high:  # the highest level to which all can be filled
        level = (low + high + 1) // 2
        low, high = (level, high) if sum(max(one, level) for one in least) <= total else (low, level - 1)
    made = [max(one, low) for one in least]
    for number, one in enumerate(least):
        if sum(made) < total and one <= low:
            made[number] += 1
    return made


class Reserver:
    """Asks the kernel; where it gives less, again after compaction, then on the other nodes, then not for a while."""

    def __init__(self, host: Host, clock: Callable[[], float]) -> None:
        self._host = host
        self._clock = clock
        self._tried: dict[str, tuple[float, int]] = {}  # by size: when, and for how many pages

    def turn(
        self, pages: Sequence[NodePages], wants: Mapping[str, int], record: Record, write: Callable[[Record], None]
    ) -> Record:
        """One step towards what is wanted; returns the record. ``write`` as in ``tuner.Tuner.turn``.

        Raises HardwareError where the kernel cannot be asked.
        """
        promised = {size: self._host.promised_hugepages(size) for size in {one.size for one in pages}}
        made = plan(pages, wants, record, promised)
        if made.originals != record:
            write(made.originals)
        for size in PAGE_BYTES:
            targets = {place: target for place, target in made.targets.items() if place[1] == size}
            now = {(one.node, size): one.total for one in pages if one.size == size}
            if targets and not self._is_too_early(size, wants.get(size, 0)):
                short = self._reserve(now, targets)
                if short:
                    self._tried[size] = (self._clock(), wants.get(size, 0))
                else:
                    self._tried.pop(size, None)
        return made.originals

    def _is_too_early(self, size: str, want: int) -> bool:
        at, pages = self._tried.get(size, (float("-inf"), -1))
        return pages == want and self._clock() - at < RETRY_SECONDS

    def _reserve(self, now: dict[Place, int], targets: Mapping[Place, int]) -> int:
        """How many are missing in the end."""
        short = 0
        for place, target in targets.items():
            now[place] = self._ask(place, target)
            short += max(0, target - now[place])
        if short:
            self._host.compact_memory()
            short = 0
            for place, target in targets.items():
                now[place] = max(now[place], self._ask(place, target))
                short += max(0, target - now[place])
        for place in now:
            if short and now[place] >= targets.get(place, now[place]):
                more = self._ask(place, now[place] + short)
                short -= max(0, more - now[place])
                now[place] = more
        return short

    def _ask(self, place: Place, target: int) -> int:
        got = self._host.reserve_hugepages(*place, target)
        log.info("huge pages of %s on NUMA node %d: %d asked for, %d there", place[1], place[0], target, got)
        return got


def tuned(
    pages: Sequence[NodePages], wants: Mapping[str, int], allocatable: Mapping[str, int]
) -> tuple[TunedPages, ...]:
    """For the status. ``allocatable``: pages that the kubelet tells of, by size."""
    return tuple(
        TunedPages(
            size,
            requested=want,
            enforced=sum(one.total for one in pages if one.size == size),
            allocatable=allocatable.get(size, 0),
        )
        for size, want in sorted(wants.items())
    )


def troubles(tuned_pages: Sequence[TunedPages], pages: Sequence[NodePages]) -> list[Trouble]:
    """What keeps models from their huge pages, with what to do."""
    found = []
    for one in tuned_pages:
        where = (
            ", ".join(f"{p.total} on NUMA node {p.node}" for p in pages if p.size == one.size) or "no NUMA node has any"
        )
        if one.enforced < one.requested:
            kib = PAGE_BYTES[one.size] // 1024
            advice = f"restart the node, or reserve them when it starts (hugepagesz={kib}K hugepages={one.requested})"
            found.append(
                Trouble(
                    "PagesShort",
                    f"{one.enforced} of {one.requested} pages of {one.size} could be made ({where}): memory is in use "
                    f"or too fragmented; {advice}",
                )
            )
        if one.allocatable < min(one.enforced, one.requested):
            found.append(
                Trouble(
                    "KubeletRestartNeeded",
                    f"{one.enforced} pages of {one.size} are reserved, and the kubelet gives {one.allocatable} to "
                    "pods: it counts them when it starts; restart the kubelet of this node",
                )
            )
    return found


def still_held(record: Record, pages: Sequence[NodePages], wants: Mapping[str, int]) -> list[Trouble]:
    """Pages that nobody wants any more and that somebody still uses."""
    now = {(one.node, one.size): one for one in pages}
    held = [one for one in record if not wants.get(one.size) and (one.node, one.size) in now]
    return [
        Trouble(
            "PagesInUse",
            f"pages of {one.size} on NUMA node {one.node} are given back once nobody uses them; there were {one.pages}",
        )
        for one in held
        if now[one.node, one.size].total > one.pages
    ]
