"""The pool's threads: jobs in a row, requests through a mailbox, sleep, and failures that end in an error."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from strata.errors import EngineError, HardwareError, OptionError
from strata.native import cores, library
from strata.native.layout import TileLayout
from strata.native.mailbox import COMPUTE, DONE, KIND, LAYER, REQUEST, ROUTE, TOKENS, MailboxLayout
from strata.native.pool import CpuWork, ExpertPool, PoolOptions
from strata.native.tuning import DISTANCES, tune_prefetch
from strata.store.pieces import cached_share
from tests.native.experts import Expert, aligned, expected

LAYOUT = TileLayout("int4", 64, 64)


class Layers:
    """Two layers of two experts, and one expert that is not in host memory."""

    def __init__(self, layout: TileLayout = LAYOUT) -> None:
        self.experts = [[Expert.random(layout, seed=10 * layer + i) for i in range(2)] for layer in range(2)]
        self.blobs = [[expert.tiles() for expert in layer] for layer in self.experts]
        self.table = torch.tensor([[*(blob.data_ptr() for blob in layer), 0] for layer in self.blobs])

    def give(self, pool: ExpertPool) -> None:
        pool.set_table(self.table.data_ptr(), 2, 3, self)


class Job:
    """Buffers of one job, also as a mailbox."""

    def __init__(self, tokens: int = 2, top_k: int = 2, hidden: int = 64) -> None:
        self.layout = MailboxLayout(tokens, top_k, hidden, "float32")
        self.buffer = aligned(self.layout.num_bytes).zero_()
        self.address = self.buffer.data_ptr()
        self.ids = self._view(self.layout.ids_offset, torch.int32, tokens, top_k)
        self.weights = self._view(self.layout.weights_offset, torch.float32, tokens, top_k)
        self.x = self._view(self.layout.x_offset, torch.float32, tokens, hidden)
        self.y = self._view(self.layout.y_offset, torch.float32, tokens, hidden)
        self.ids.copy_(torch.tensor([[0, 1], [1, -1]])[:tokens, :top_k])
        self.weights.copy_(torch.rand(tokens, top_k))
        self.x.copy_(torch.randn(tokens, hidden))

    def _view(self, offset: int, dtype: torch.dtype, rows: int, cols: int) -> torch.Tensor:
        return self.buffer[offset : offset + rows * cols * 4].view(dtype).view(rows, cols)

    def word(self, offset: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_address(self.address + offset)

    def send(self, number: int, layer: int, tokens: int = 2, kind: int = COMPUTE) -> None:
        self.y.fill_(float("nan"))
        self.word(LAYER).value, self.word(TOKENS).value, self.word(KIND).value = layer, tokens, kind
        self.word(REQUEST).value = number

    def run(self, pool: ExpertPool, layer: int, tokens: int = 2) -> None:
        places = (self.x, self.ids, self.weights, self.y)
        pool.run(layer, tokens, *(tensor.data_ptr() for tensor in places))


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.001)


def pool_options(**changes: object) -> PoolOptions:
    defaults: dict[str, object] = {
        "top_k": 2,
        "max_tokens": 2,
        "number": "float32",
        "activations": "int16",
        "cores": [0, 1],
    }
    return PoolOptions(**{**defaults, **changes})  # type: ignore[arg-type]


@pytest.fixture
def pool() -> Iterator[ExpertPool]:
    with ExpertPool(LAYOUT, pool_options()) as pool:
        yield pool


def assert_right(job: Job, layers: Layers, layer: int) -> None:
    wanted = expected(dict(enumerate(layers.experts[layer])), job.x, job.ids, job.weights)
    assert (job.y.double() - wanted).norm() < 3e-4 * wanted.norm()


def test_jobs_in_a_row(pool: ExpertPool) -> None:
    layers, job = Layers(), Job()
    layers.give(pool)
    for i in range(200):
        job.x.copy_(torch.randn(2, 64))
        job.run(pool, i % 2)
        assert_right(job, layers, i % 2)


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param((0, 1, 1), id="each node has one of the experts"),
        pytest.param((0, 1, 2), id="a node whose only expert nobody takes"),
    ],
)
def test_nodes_add_up_their_experts(nodes: tuple[int, ...]) -> None:
    layers, job = Layers(TileLayout("int4", 96, 64)), Job(hidden=96)
    choices = [[0, 1], [1, -1]], [[1, -1], [-1, 1]], [[0, -1], [-1, 0]], [[-1, -1], [-1, -1]]
    with ExpertPool(layers.experts[0][0].layout, pool_options(cores=[0, 1, 1], nodes=nodes)) as pool:
        layers.give(pool)
        for i in range(100):
            job.x.copy_(torch.randn(2, 96))
            job.y.fill_(float("nan"))
            job.ids.copy_(torch.tensor(choices[i % 4]))
            job.run(pool, i % 2)
            if i % 4 < 3:
                assert_right(job, layers, i % 2)
            else:
                assert not job.y.any()


def test_experts_of_a_file_are_read_ahead_together(tmp_path: Path) -> None:
    layout = TileLayout("int4", 512, 1024)
    expert = Expert.random(layout, seed=1)
    path = tmp_path / "tiles"
    path.write_bytes(expert.tiles().numpy().tobytes())
    job = Job(tokens=1, top_k=1, hidden=512)
    job.ids.fill_(0)
    faults = []
    for is_told in (False, True):
        with path.open("r+b") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if cached_share(file.fileno()):
                pytest.skip("this file system's files are memory")
            mapped = mmap.mmap(file.fileno(), layout.num_bytes)
            mapped.madvise(mmap.MADV_RANDOM)  # or a page that is touched brings many others
        tiles = torch.frombuffer(mapped, dtype=torch.uint8)
        table = torch.tensor([[tiles.data_ptr()]])
        with ExpertPool(layout, pool_options(top_k=1, max_tokens=1)) as pool:
            pool.set_table(table.data_ptr(), 1, 1, (table, tiles))
            if is_told:
                pool.set_mapped(tiles.data_ptr(), len(tiles))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
            job.run(pool, 0, 1)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before)
        mapped.madvise(mmap.MADV_DONTNEED)  # or the page cache keeps it
        wanted = expected({0: expert}, job.x, job.ids, job.weights)
        assert (job.y.double() - wanted).norm() < 3e-4 * wanted.norm()
    assert faults[0] > 100 > faults[1], "pages that a thread had to wait for, one after another"


def test_all_nodes_read_together() -> None:
    memory = aligned(11 << 21)
    with ExpertPool(LAYOUT, pool_options(nodes=[0, 1])) as pool:
        pool.read(memory.data_ptr(), len(memory))


def test_a_job_without_experts_gives_zeros(pool: ExpertPool) -> None:
    Layers().give(pool)
    job = Job()
    job.ids.fill_(-1)
    job.y.fill_(float("nan"))
    job.run(pool, 0)
    assert not job.y.any()


def test_more_threads_than_cores() -> None:
    layers, job = Layers(), Job()
    with ExpertPool(LAYOUT, pool_options(cores=[0] * 12)) as pool:
        layers.give(pool)
        for i in range(20):
            job.run(pool, i % 2)
            assert_right(job, layers, i % 2)


@pytest.mark.parametrize(
    ("layer", "tokens", "expert", "words"),
    [
        pytest.param(2, 2, 0, "a layer that the address table does not have", id="layer"),
        pytest.param(0, 3, 0, "more tokens than the pool was opened for", id="tokens"),
        pytest.param(0, 0, 0, "or none", id="no token"),
        pytest.param(0, 2, 3, "an expert that the address table does not have", id="expert"),
        pytest.param(0, 2, 2, "an expert that is not in host memory", id="absent"),
    ],
)
def test_a_job_that_cannot_be_is_refused_and_the_next_one_runs(
    pool: ExpertPool, layer: int, tokens: int, expert: int, words: str
) -> None:
    layers, job = Layers(), Job()
    layers.give(pool)
    job.ids[1, 0] = expert
    with pytest.raises(EngineError, match=words):
        job.run(pool, layer, tokens)
    job.ids[1, 0] = 1
    job.run(pool, 1)
    assert_right(job, layers, 1)


def test_requests_through_a_mailbox(pool: ExpertPool) -> None:
    layers, job = Layers(), Job()
    layers.give(pool)
    pool.attach(job.address, job.layout, job)
    for number in range(1, 51):
        pool.expect(1)
        job.send(number, number % 2)
        wait_for(lambda number=number: job.word(DONE).value == number)  # type: ignore[misc]
        assert_right(job, layers, number % 2)
    pool.check()
    assert pool.work().jobs == 50
    job.run(pool, 0)  # calls go on between requests
    assert_right(job, layers, 0)


def test_jobs_through_a_mailbox_are_counted_with_their_time(pool: ExpertPool) -> None:
    layers, job = Layers(), Job()
    layers.give(pool)
    pool.attach(job.address, job.layout, job)
    assert pool.work() == CpuWork(0, 0.0, 0.0)
    job.run(pool, 0)
    assert pool.work().jobs == 0, "a call is none"
    began = time.monotonic()
    pool.expect(3)
    wait_for(lambda: time.monotonic() > began + 0.05)  # the card is late
    first = time.monotonic()
    for value in (1, 2, 3):  # the last one is refused: the table has no such layer
        job.send(value, 1 if value < 3 else 5)
        wait_for(lambda value=value: job.word(DONE).value == value)  # type: ignore[misc]
        if value == 2:
            work = pool.work()
            busy = time.monotonic() - first
    assert work.jobs == 2
    assert 0 < work.busy_seconds <= busy
    assert 0.05 <= work.idle_seconds <= time.monotonic() - began
    last = pool.work()
    assert (last.jobs, last.busy_seconds) == (2, work.busy_seconds)
    assert last.idle_seconds > work.idle_seconds
    wait_for(lambda: time.monotonic() > began + 0.2)  # nothing is expected
    announced = time.monotonic()
    pool.expect(1)
    job.send(4, 1)
    wait_for(lambda: job.word(DONE).value == 4)
    gained = pool.work().since(last)
    assert gained.jobs == 1
    assert gained.idle_seconds <= time.monotonic() - announced, "the pause before is nobody's wait"


@pytest.mark.parametrize(
    ("layer", "kind", "words"),
    [
        pytest.param(5, COMPUTE, "a layer that the address table does not have", id="layer"),
        pytest.param(0, 0, "neither to compute nor to route", id="nothing"),
        pytest.param(0, ROUTE | COMPUTE, "to route without scores", id="no scores"),
    ],
)
def test_a_request_that_cannot_be_answered_does_not_keep_the_gpu_waiting(
    pool: ExpertPool, layer: int, kind: int, words: str
) -> None:
    layers, job = Layers(), Job()
    layers.give(pool)
    pool.attach(job.address, job.layout, job)
    pool.expect(2)
    job.send(1, layer, kind=kind)
    wait_for(lambda: job.word(DONE).value == 1)
    job.send(2, 1)
    wait_for(lambda: job.word(DONE).value == 2)
    assert_right(job, layers, 1)
    with pytest.raises(EngineError, match=words):
        pool.check()  # still, although a later request was answered
    pool.check()


def test_a_request_that_never_comes_is_an_error() -> None:
    job = Job()
    with ExpertPool(LAYOUT, pool_options(timeout_seconds=0.02, patience_seconds=0.05)) as pool:
        Layers().give(pool)
        pool.attach(job.address, job.layout, job)
        pool.expect(1)
        wait_for(lambda: library.load().strata_pool_state(pool._handle) != 0)
        with pytest.raises(EngineError, match=r"no request .* within 0\.05 s"):
            pool.check()
        with pytest.raises(EngineError):
            job.run(pool, 0)


def test_a_job_that_takes_too_long_is_an_error() -> None:
    layout = TileLayout("int4", 2048, 2048)
    expert = Expert.random(layout, seed=0)
    blob = expert.tiles()
    table = torch.tensor([[blob.data_ptr()]])
    tokens = 512  # seconds of work
    job = Job(tokens=2, hidden=2048)
    ids, weights = torch.zeros(tokens, 1, dtype=torch.int32), torch.ones(tokens, 1)
    x, y = torch.randn(2, tokens, 2048)
    options = pool_options(top_k=1, max_tokens=tokens, variant="scalar", cores=[0], timeout_seconds=0.02)
    with ExpertPool(layout, options) as pool:
        pool.set_table(table.data_ptr(), 1, 1, (table, blob, job))
        # Its unit may have ended by the time that the message is made.
        message = r"took more than 0\.02 s for one layer \(1 threads, busy still on cores (\[0\]|none)\)"
        with pytest.raises(EngineError, match=message):
            pool.run(0, tokens, x.data_ptr(), ids.data_ptr(), weights.data_ptr(), y.data_ptr())


HANGING = """
    import ctypes, os
    from pathlib import Path
    from strata.errors import EngineError
    from strata.native.layout import TileLayout
    from strata.native.mailbox import COMPUTE, DONE, KIND, LAYER, REQUEST, ROUTE, TOKENS, MailboxLayout
    from strata.native.pool import ExpertPool, PoolOptions

    # A thread that gets the signal sleeps in its handler for ever.
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal(10, ctypes.cast(libc.pause, ctypes.c_void_p))
    layout = TileLayout("int4", 64, 64)

    def aligned(num_bytes):
        memory = ctypes.create_string_buffer(num_bytes + 128)
        return memory, -(-ctypes.addressof(memory) // 128) * 128

    def attempt(call):
        try:
            call()
        except EngineError as error:
            print(error, flush=True)

    blob, blob_address = aligned(layout.num_bytes)
    box_layout = MailboxLayout(1, 1, 64)
"""

ALL_HANG = """
    table = ctypes.c_uint64(blob_address)
    for how in ("call", "mailbox"):
        before = set(os.listdir("/proc/self/task"))
        box, box_address = aligned(box_layout.num_bytes)
        word = lambda offset: ctypes.c_uint32.from_address(box_address + offset)
        pool = ExpertPool(layout, PoolOptions(top_k=1, max_tokens=1, cores=[0, 1], timeout_seconds=0.2))
        pool.set_table(ctypes.addressof(table), 1, 1, blob)
        pool.attach(box_address, box_layout, box)
        places = (box_layout.x_offset, box_layout.ids_offset, box_layout.weights_offset, box_layout.y_offset)
        run = lambda: pool.run(0, 1, *(box_address + place for place in places))
        run()
        for task in set(os.listdir("/proc/self/task")) - before:
            if Path(f"/proc/self/task/{task}/comm").read_text().startswith("strata-cpu"):
                libc.syscall(234, os.getpid(), int(task), 10)  # tgkill
        if how == "call":
            attempt(run)
        else:
            pool.expect(2)
            for value in (1, 2):  # the second one after the failure
                word(TOKENS).value, word(KIND).value, word(REQUEST).value = 1, COMPUTE, value
                while word(DONE).value != value:
                    libc.usleep(1000)
            attempt(pool.check)
        attempt(pool.close)
    os._exit(0)
"""


def run_script(script: str) -> str:
    """What it prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "engine")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout


def test_threads_that_hang_end_in_errors() -> None:
    errors = run_script(HANGING + ALL_HANG).splitlines()
    assert len(errors) == 4, errors
    for late, stuck in (errors[:2], errors[2:]):
        assert "took more than 0.2 s" in late
        assert "does not end" in stuck


ONE_NODE_HANGS = """
    table = (ctypes.c_uint64 * 2)(blob_address, blob_address)
    box, box_address = aligned(box_layout.num_bytes)
    before = set(os.listdir("/proc/self/task"))
    pool = ExpertPool(layout, PoolOptions(top_k=1, max_tokens=1, cores=[0, 1], nodes=[0, 1], timeout_seconds=0.2))
    pool.set_table(ctypes.addressof(table), 1, 2, blob)
    for task in set(os.listdir("/proc/self/task")) - before:
        if Path(f"/proc/self/task/{task}/comm").read_text().startswith("strata-cpu-1"):
            libc.syscall(234, os.getpid(), int(task), 10)  # tgkill
    id_ = ctypes.c_int32.from_address(box_address + box_layout.ids_offset)
    places = (box_layout.x_offset, box_layout.ids_offset, box_layout.weights_offset, box_layout.y_offset)
    for id_.value in (0, 0, 0, 1):
        attempt(lambda: pool.run(0, 1, *(box_address + place for place in places)))
        print("ran", id_.value, flush=True)
    os._exit(0)
"""


def test_what_the_threads_read_may_go_when_they_ended() -> None:
    """At once, not when the collector comes: an owner has its pool, too."""
    layers = Layers()
    with ExpertPool(LAYOUT, pool_options()) as pool:
        layers.give(pool)
        there = weakref.ref(layers)
        del layers
        assert there() is not None
    assert there() is None


def test_a_node_computes_its_own_experts_alone() -> None:
    ran, late = run_script(HANGING + ONE_NODE_HANGS).split("ran 0\nran 0\nran 0\n")
    assert not ran
    assert "took more than 0.2 s" in late


def test_the_prefetch_distance_is_what_was_fastest(monkeypatch: pytest.MonkeyPatch, pool: ExpertPool) -> None:
    layers = Layers()
    layers.give(pool)
    clock, distances = 0.0, [-1]
    layer_of: list[int] = []

    def run(layer: int, tokens: int, x: int, ids: int, weights: int, y: int) -> None:
        nonlocal clock
        clock += {0: 3.0, 2368: 2.0, 4736: 1.5, 9472: 2.5}[distances[-1]]
        layer_of.append(layer)
        assert sorted((ctypes.c_int32 * 2).from_address(ids)) == [0, 1], "only experts that are in host memory"
        ExpertPool.run(pool, layer, tokens, x, ids, weights, y)

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    monkeypatch.setattr(pool, "run", run)
    monkeypatch.setattr(pool, "set_prefetch", distances.append)
    assert tune_prefetch(pool, layers.table.tolist()) == 4736
    assert distances[-1] == 4736
    assert set(layer_of) == {0, 1}


def test_another_prefetch_distance_gives_the_same_numbers(pool: ExpertPool) -> None:
    layers, job = Layers(), Job()
    layers.give(pool)
    for distance in (*DISTANCES, 64, 1 << 20):
        pool.set_prefetch(distance)
        job.run(pool, 1)
        assert_right(job, layers, 1)


def test_an_idle_pool_takes_no_cpu() -> None:
    with ExpertPool(LAYOUT, pool_options(spin_seconds=0.0)) as pool:
        layers, job = Layers(), Job()
        layers.give(pool)
        job.run(pool, 0)

        def states() -> set[str]:
            found = set()
            for task in Path("/proc/self/task").iterdir():
                name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
                if name.startswith("strata-"):
                    found.add(rest.split()[0])
            return found

        wait_for(lambda: states() == {"S"})


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        pytest.param(
            {"cores": [100_000]}, HardwareError, r"cores \[100000\]: Invalid argument; this process may", id="core"
        ),
        pytest.param({"cores": []}, HardwareError, "no core is left", id="no core"),
        pytest.param({"variant": "sse9"}, HardwareError, "cannot run 'sse9'; it can run scalar", id="variant"),
        pytest.param(
            {"activations": "int3"}, OptionError, "activations 'int3' is unknown; one of int8, int16", id="activations"
        ),
    ],
)
def test_options_that_cannot_be(changes: dict[str, object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        ExpertPool(LAYOUT, pool_options(**changes))


def test_without_the_library_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="make native"):
        library.load(tmp_path / "libstrata.so")
    (tmp_path / "other.so").symlink_to("/lib/x86_64-linux-gnu/libc.so.6")
    with pytest.raises(HardwareError, match="another version of Strata"):
        library.load(tmp_path / "other.so")


def test_importing_the_package_needs_neither_torch_nor_the_library() -> None:
    code = (
        "import sys; import strata.native.pool, strata.native.tiles, strata.native.mailbox, strata.native.reference; "
        "import strata.native.library as l; assert 'torch' not in sys.modules; assert not l.load.cache_info().currsize"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=os.environ | {"PYTHONPATH": "engine"},
        cwd=Path(__file__).parents[2],
    )


def test_one_core_of_each_pair_as_far_as_the_quota_goes(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,4", "1,5", "2,6", "3,7"] * 2):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    for node, cpus in enumerate(["0-1,4-5", "2-3,6-7"]):
        directory = tmp_path / f"sys/devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{cpus}\n")
        (directory / "meminfo").write_text(f"Node {node} MemTotal:  1000 kB\n")
    everything = frozenset(range(8))
    assert cores.physical_cores(None, tmp_path, everything) == (0, 1, 2, 3)
    assert cores.physical_cores(1, tmp_path, everything) == (2, 3)
    assert cores.physical_cores(1, tmp_path, frozenset({0, 6, 7})) == (6, 7)
    assert cores.physical_cores(5, tmp_path, everything) == ()
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod\n")
    (tmp_path / "sys/fs/cgroup/pod").mkdir(parents=True)
    for quota, allowed in (("350000", (0, 1, 2)), ("50000", (0,)), ("max", (0, 1, 2, 3))):
        (tmp_path / "sys/fs/cgroup/pod/cpu.max").write_text(f"{quota} 100000\n")
        assert cores.physical_cores(None, tmp_path, everything) == allowed
    assert cores.cores_of_nodes(0, tmp_path, everything) == ((0, 1), (2, 3))
    assert cores.cores_of_nodes(1, tmp_path, everything) == ((0, 1), (2,))
    assert cores.cores_of_nodes(2, tmp_path, everything) == ((0, 1), (2, 3)), "not more than twice as many"
    assert cores.cores_of_nodes(0, tmp_path, frozenset({1, 6, 7})) == ((1,), (6, 7))
    assert cores.cores_of_nodes(0, tmp_path, frozenset({6, 7})) == ((6, 7),)
    for quota, apart in (("350000", ((0, 1), (2,))), ("200000", ((0,), (2,))), ("50000", ((0,),))):
        (tmp_path / "sys/fs/cgroup/pod/cpu.max").write_text(f"{quota} 100000\n")
        assert cores.cores_of_nodes(0, tmp_path, everything) == apart


def test_a_machine_that_tells_no_nodes_has_one(tmp_path: Path) -> None:
    assert cores.cores_of_nodes(1, tmp_path, frozenset(range(4))) == ((0, 1, 2),)
