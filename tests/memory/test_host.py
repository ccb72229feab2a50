"""Memory for experts beside a GPU: what it lies in, and what is said where there is not enough."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.config.engine import PAGE_BYTES
from strata.errors import HardwareError
from strata.memory import driver, host
from strata.memory.host import PinnedMemory
from strata.plan.host import huge_pages

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
GIB = 1 << 30
RESERVED = Path("/proc/sys/vm/nr_hugepages")


@pytest.fixture
def pages() -> Iterator[int]:
    """Some pages of 2 MiB more than there were; the test may count on so many."""
    with ExitStack() as stack:
        try:
            before = int(RESERVED.read_text())
            RESERVED.write_text(f"{before + 4}")
        except OSError:
            pytest.skip("this process may not reserve huge pages")
        stack.callback(RESERVED.write_text, f"{before}")
        if free_pages() < 4:
            pytest.skip("the kernel finds no memory for huge pages")
        yield 4


def free_pages() -> int:
    return next((each.free for each in huge_pages() if each.page_bytes == PAGE_BYTES["2Mi"]), 0)


def smaps(address: int) -> str:
    """What the kernel says of the mapping that begins there."""
    text = Path("/proc/self/smaps").read_text()
    return text[text.index(f"\n{address:x}-") + 1 :].split("VmFlags")[0]


def test_every_byte_can_be_written() -> None:
    memory = PinnedMemory(3 << 20, CPU)
    assert memory.tensor.shape == (3 << 20,)
    assert memory.tensor.data_ptr() % 4096 == 0
    memory.tensor.fill_(7)
    assert int(memory.tensor.sum(dtype=torch.int64)) == 7 * (3 << 20)


def test_all_pages_are_there_before_they_are_touched() -> None:
    memory = PinnedMemory(5 << 20, CPU)
    assert re.search(r"^Rss: +5120 kB", smaps(memory.tensor.data_ptr()), re.MULTILINE)


def test_the_threads_of_a_node_are_given_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[int, Any]] = []
    move = os.sched_setaffinity
    before = os.sched_getaffinity(0)

    def record(who: int, cpus: Any) -> None:
        moved.append((threading.get_native_id(), cpus))
        move(who, cpus)

    monkeypatch.setattr(os, "sched_setaffinity", record)
    monkeypatch.setattr(host, "_PART_BYTES", 1 << 20)
    cpu = max(before)
    memory = PinnedMemory(4 << 20, CPU, near=[cpu])
    assert [cpus for _, cpus in moved] == [[cpu]], "one thread for each core"
    assert moved[0][0] != threading.get_native_id()
    assert os.sched_getaffinity(0) == before
    assert re.search(r"^Rss: +4096 kB", smaps(memory.tensor.data_ptr()), re.MULTILINE)


def test_it_lies_in_reserved_pages(pages: int) -> None:
    free = free_pages()
    memory = PinnedMemory((pages - 1) * PAGE_BYTES["2Mi"] + 1, CPU, "2Mi")
    assert "KernelPageSize:     2048 kB" in smaps(memory.tensor.data_ptr())
    assert free_pages() == free - pages
    memory.tensor.fill_(7)
    del memory
    assert free_pages() == free


def test_more_than_the_reserved_pages(pages: int) -> None:
    free = free_pages()
    with pytest.raises(
        HardwareError, match=rf"{free + 1} pages of 2Mi are needed; of \d+ that are reserved {free} are"
    ):
        PinnedMemory(free * PAGE_BYTES["2Mi"] + 1, CPU, "2Mi")
    assert free_pages() == free


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_pages_that_no_machine_has(tmp_path: Path) -> None:
    directory = "sys/kernel/mm/hugepages/hugepages-1048576kB"
    files = {
        f"{directory}/nr_hugepages": "48\n",
        f"{directory}/free_hugepages": "40\n",
        f"{directory}/resv_hugepages": "3\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/hugetlb.1GB.max": f"{36 * GIB}\n",
    }
    expected = (
        "the kernel does not give 2097152.0 GiB of host memory for experts in huge pages: 2097152 pages of 1Gi are "
        "needed; of 48 that are reserved 37 are free, and the control group allows 36. Reserve more "
        "(/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages, or hugepagesz=1048576K hugepages=N when the "
        "machine starts), raise the container's limit of them, let more experts into VRAM, or set hugepages off"
    )
    with pytest.raises(HardwareError, match=rf"^{re.escape(expected)}$"):
        PinnedMemory(1 << 51, CPU, "1Gi", root=machine(tmp_path, files))


def test_a_control_group_that_leaves_too_little(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": f"MemAvailable: {64 << 20} kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{9 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{6 * GIB}\n",
    }
    with pytest.raises(
        HardwareError, match=r"2\.1 GiB of host memory are needed for experts; .* leave 2\.0 GiB\. Raise"
    ):
        PinnedMemory(2 * GIB + 1, CPU, root=machine(tmp_path, files))


class Libc:
    """Refuses the second part; ``code``: with which error."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.parts: list[tuple[int, int]] = []

    def madvise(self, address: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
        assert advice == 23
        self.parts.append((int(address.value or 0), int(size.value)))
        if len(self.parts) != 2:
            return 0
        ctypes.set_errno(self.code)
        return -1


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel that refuses with a certain error; parts are asked for one after another."""

    def make(code: int) -> Libc:
        libc = Libc(code)
        monkeypatch.setattr(host, "_PART_BYTES", 1 << 20)
        monkeypatch.setattr(host, "num_cpus", lambda: 1)
        monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: libc)
        return libc

    return make


def test_pages_that_are_promised_and_not_given(kernel: Any) -> None:
    kernel(errno.EFAULT)
    with pytest.raises(HardwareError, match=r"the kernel does not give 2\.5 MiB of .* \(Bad address\); .* are left"):
        PinnedMemory(5 << 19, CPU)


class Driver:
    """Locks by addresses as the CUDA driver does, with its refusals; ``code``: with which it refuses everything."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.locked: dict[int, int] = {}  # address: bytes
        self.contexts = 0  # that are kept or current
        self.mode = 0  # in which this thread captures

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:  # noqa: N802
        assert device == 0
        self.contexts += 1
        context._obj.value = 77
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:  # noqa: N802
        self.contexts -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context: ctypes.c_void_p) -> int:  # noqa: N802
        assert context.value == 77
        self.contexts += 1
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.contexts -= 1
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    def cuMemHostRegister_v2(self, address: ctypes.c_void_p, size: ctypes.c_size_t, flags: int) -> int:  # noqa: N802
        begin = int(address.value or 0)
        assert (begin % 4096, flags) == (0, 3)
        if self.code:
            return self.code
        if any(begin < other + self.locked[other] and other < begin + size.value for other in self.locked):
            return 712
        self.locked[begin] = int(size.value)
        return 0

    def cuMemHostUnregister(self, address: ctypes.c_void_p) -> int:  # noqa: N802
        begin = int(address.value or 0)
        assert self.mode == 2, "a capture in this thread would end"
        assert smaps(begin), "still mapped"
        del self.locked[begin]
        return 0


@pytest.fixture
def locking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr(driver, "_driver", lambda: made)
    yield made
    assert (made.locked, made.contexts, made.mode) == ({}, 0, 0)


def test_a_driver_that_does_not_lock_memory(locking: Driver) -> None:
    granted = [PinnedMemory(2 << 20, GPU), PinnedMemory(1 << 20, GPU)]
    locking.code = 2
    expected = (
        r"the driver did not lock 3\.0 MiB of host memory for the GPU \(error 2\) beside {} that are locked; "
        r".* are left\. Raise the container"
    )
    for locked in (r"3\.0 MiB", r"2\.0 MiB", "0 B"):
        with pytest.raises(HardwareError, match=expected.format(locked)):
            PinnedMemory(3 << 20, GPU)
        granted[-1:] = []


def test_memory_is_unlocked_before_other_memory_lies_there(locking: Driver) -> None:
    """Which the kernel likes to give the same addresses."""
    begins = set()
    for _ in range(3):
        memory = PinnedMemory(3 << 20, GPU)
        begins.add(memory.tensor.data_ptr())
        assert locking.locked == {memory.tensor.data_ptr(): 3 << 20}
        del memory
        assert not locking.locked
    assert len(begins) < 3, "no address came again, and this showed nothing"


def test_a_tensor_keeps_what_it_lies_in_locked(locking: Driver) -> None:
    view = PinnedMemory(3 << 20, GPU).tensor[1 << 20 :].view(torch.int32)
    gc.collect()
    assert len(locking.locked) == 1
    assert int(view.fill_(5)[-1]) == 5
    del view
    assert not locking.locked


def test_an_owner_in_a_cycle_unlocks(locking: Driver) -> None:
    memory: Any = PinnedMemory(3 << 20, GPU)
    memory.itself = memory
    del memory
    gc.collect()
    assert not locking.locked


def test_an_owner_that_is_not_finished_unlocks(locking: Driver) -> None:
    class Owner:
        def __init__(self) -> None:
            self.memory = PinnedMemory(3 << 20, GPU)
            assert locking.locked
            PinnedMemory(1 << 60, GPU)

    with pytest.raises(HardwareError, match="are needed for experts"):
        Owner()
    assert not locking.locked


def test_pages_are_touched_where_the_kernel_cannot_be_asked(kernel: Any) -> None:
    libc = kernel(errno.EINVAL)
    memory = PinnedMemory(5 << 19, CPU)
    begin = memory.tensor.data_ptr()
    assert libc.parts == [(begin, 1 << 20), (begin + (1 << 20), 1 << 20), (begin + (2 << 20), 1 << 19)]
    assert re.search(r"^Rss: +(1024|2048) kB", smaps(begin), re.MULTILINE), "of the part that was refused"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def torch_knows_it(self) -> None:
        torch.cuda.init()  # else no memory is pinned for torch

    def test_copies_come_from_new_memory_at_the_same_addresses(self) -> None:
        for value in range(4):
            memory = PinnedMemory(3 << 20, GPU)
            assert memory.tensor.is_pinned()
            memory.tensor.fill_(value)
            assert bool((memory.tensor.to(GPU, non_blocking=True) == value).all())
            del memory

    def test_a_refusal_is_not_told_again(self) -> None:
        memory = PinnedMemory(3 << 20, GPU)
        with pytest.raises(driver.DriverError, match="error 712"):
            driver.Lock(memory.tensor.data_ptr(), 3 << 20, 0)
        assert int(torch.ones(4, device=GPU).sum()) == 4

    def test_memory_goes_when_the_gpu_has_read_it(self) -> None:
        memory = PinnedMemory(64 << 20, GPU)
        memory.tensor.fill_(7)
        target = torch.zeros(64 << 20, dtype=torch.uint8, device=GPU)
        torch.cuda.synchronize()
        torch.cuda._sleep(1 << 28)
        target.copy_(memory.tensor, non_blocking=True)
        del memory
        assert bool((target == 7).all())
