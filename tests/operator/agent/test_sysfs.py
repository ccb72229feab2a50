from __future__ import annotations

from pathlib import Path

import pytest

from strata_operator.agent.errors import UnsupportedError
from strata_operator.agent.fake_host import FakeSysfs
from strata_operator.agent.hardware import NodePages
from strata_operator.agent.sysfs import Sysfs
from strata_operator.api.node import NumaNode, Pages

GIB = 1 << 30


def test_facts_of_a_host(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.reserve_hugepages(1, "2Mi", 512)
    facts = host.facts()
    assert (facts.cpu, facts.cores, facts.memory_bytes) == ("Pretend CPU", 16, 128 * GIB)
    assert facts.cpu_flags == ("avx2", "avx512_vnni", "avx512bw", "avx512f", "f16c", "fma")
    assert facts.numa == (NumaNode(0, "0-7", 64 * GIB), NumaNode(1, "8-15", 64 * GIB, (Pages("2Mi", 512),)))
    assert (facts.memlock_bytes, facts.cgroup_version, facts.pods_memory_bytes) == (8 << 20, 2, 112 * GIB)
    assert host.boot_id() == "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("9223372036854771712\n", None), (f"{8 * GIB}\n", 8 * GIB)],
    ids=["v2-none", "v1-none", "limited"],
)
def test_the_limit_of_all_pods(tmp_path: Path, text: str, limit: int | None) -> None:
    host = FakeSysfs(tmp_path)
    (tmp_path / "sys/fs/cgroup/kubepods.slice/memory.max").write_text(text)
    assert host.facts().pods_memory_bytes == limit


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    groups = tmp_path / "sys/fs/cgroup"
    (groups / "cgroup.controllers").unlink()
    (groups / "kubepods.slice/memory.max").unlink()
    (groups / "memory/kubepods").mkdir(parents=True)
    (groups / "memory/kubepods/memory.limit_in_bytes").write_text(str(3 * GIB))
    facts = host.facts()
    assert (facts.cgroup_version, facts.pods_memory_bytes) == (1, 3 * GIB)


def test_pages_are_of_a_node_and_a_size(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    assert host.reserve_hugepages(0, "1Gi", 3) == 3
    assert host.hugepages() == (
        NodePages(0, "2Mi", 0, 0),
        NodePages(0, "1Gi", 3, 3),
        NodePages(1, "2Mi", 0, 0),
        NodePages(1, "1Gi", 0, 0),
    )


def test_a_card_s_numa_node(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.put_card("00000000:65:00.0", 1)
    assert host.numa_node_of("00000000:65:00.0") == 1
    assert host.numa_node_of("00000000:66:00.0") is None


def test_what_the_kernel_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="nr_hugepages: No such file or directory; this kernel"):
        FakeSysfs(tmp_path, nodes=1).reserve_hugepages(7, "2Mi", 1)


def test_this_machine_can_be_read() -> None:
    """Reading only."""
    facts = Sysfs().facts()
    assert facts.memory_bytes > GIB
    assert facts.cores >= 1
    assert len(Sysfs().boot_id()) == 36
