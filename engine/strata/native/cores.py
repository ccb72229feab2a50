"""Which cores the pool's threads are bound to."""

from __future__ import annotations

import os
from pathlib import Path

from strata.plan.hardware import cpu_limit
from strata.plan.host import ROOT, numa_nodes, parse_cpus

MAX_NODES = 16  # of src/pool.h


def physical_cores(
    node: int | None = None, root: Path = ROOT, allowed: frozenset[int] | None = None
) -> tuple[int, ...]:
    """One CPU of each physical core of NUMA node ``node`` (None: of all) that this process may run on, in order; no
    more than the control group's quota keeps busy, since all would stop together when it is used up.

    Two threads of one core share its path to memory, which one thread fills. ``allowed``: CPUs; None: the
    process's own.
    """
    allowed = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    if node is not None:
        allowed &= next((each.cpus for each in numa_nodes(root) if each.number == node), frozenset())
    chosen = _physical(allowed, root)
    quota = cpu_limit(root)
    return tuple(chosen if quota is None else chosen[: max(1, int(quota))])


def cores_of_nodes(
    keep: int = 0, root: Path = ROOT, allowed: frozenset[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """As ``physical_cores``, apart for each NUMA node on which there are some. ``keep``: so many are left to others,
    where there are more than twice as many. What is left out is left out of the nodes in turn."""
    allowed = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    nodes = [_physical(allowed & node.cpus, root) for node in numa_nodes(root)]
    nodes = [cores for cores in nodes if cores]
    if not 1 < len(nodes) <= MAX_NODES:
        nodes = [_physical(allowed, root)]
    quota = cpu_limit(root)
    count = sum(map(len, nodes)) if quota is None else min(sum(map(len, nodes)), max(1, int(quota)))
    if count > 2 * keep:
        count -= keep
    while sum(map(len, nodes)) > count:
        max(reversed(nodes), key=len).pop()
    return tuple(tuple(cores) for cores in nodes if cores)


def _physical(allowed: frozenset[int], root: Path) -> list[int]:
    chosen: list[int] = []
    taken: set[int] = set()
    for cpu in sorted(allowed):
        if cpu not in taken:
            chosen.append(cpu)
            taken |= _siblings(cpu, root)
    return chosen


def _siblings(cpu: int, root: Path) -> frozenset[int]:
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        return parse_cpus(path.read_text()) | {cpu}
    except OSError:
        return frozenset({cpu})
