"""The threads that compute routed experts on the CPU.

Experts lie in host memory as tiles (``native.layout``); an address table says where. A job is a layer's experts for a
few tokens; it comes by a call (``run``) or, for a GPU in the middle of its step, through a mailbox (``expect``). Idle
threads spin for a moment and then sleep. A job that takes too long, or a request that was expected and never comes,
ends in an EngineError; the pool is of no use afterwards.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from strata.errors import EngineError, HardwareError, OptionError
from strata.native.cores import MAX_NODES, physical_cores
from strata.native.layout import TileLayout
from strata.native.library import (
    GATINGS,
    NUMBERS,
    VARIANTS,
    LayoutArguments,
    PoolArguments,
    RingArguments,
    load,
    variants,
)
from strata.native.mailbox import MailboxLayout

ACTIVATIONS = ("int8", "int16")  # one int8 digit, or two

_FAULTS = {
    1: "a layer that the address table does not have",
    2: "more tokens than the pool was opened for, or none",
    3: "an expert that the address table does not have",
    4: "an expert that is not in host memory",
    5: "neither to compute nor to route, or to route without scores",
}
_FAILED = 6


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How the experts are computed, and by which threads."""

    top_k: int  # experts of a token, at most
    max_tokens: int = 16  # of a job
    gating: str = "silu"  # or "clamped_swiglu"
    limit: float = 0.0  # of clamped_swiglu
    # Rounded in groups of 32. int8 is the faster one; int16 (15 bits) rounds finer than bf16 does. Weights in bf16 are
    # multiplied by float32.
    activations: str = "int8"
    number: str = "bfloat16"  # type of x
    cores: Sequence[int] = field(default_factory=physical_cores)  # one thread on each
    # Of each core: its node, counted from 0. Expert e is computed by the cores of node e % nodes, in whose memory it is
    # to lie. Empty: all cores are near to all experts.
    nodes: Sequence[int] = ()
    variant: str | None = None  # None: the fastest that this CPU has
    # Memory is asked for this far ahead of the reads; what is best depends on the machine (``native.tuning``). One
    # 16-core Xeon (AMX), int4, 14 threads, 2026-11-30: 68 GB/s with 0, 111 with 2368, 119 with 4736, 102 with 9472.
    prefetch_bytes: int = 4736
    timeout_seconds: float = 10.0  # of a job
    # Until a request that was announced comes. The card works off first what it was given before: a prompt's chunk, of
    # which all experts come over a slow link, for one. 120 GB of them take 34 s at 3.5 GB/s (PCIe 3.0 x4).
    patience_seconds: float = 600.0
    spin_seconds: float = 50e-6  # that an idle thread waits before it sleeps


@dataclass(frozen=True, slots=True)
class CpuWork:
    """What the threads did for a GPU."""

    jobs: int  # a layer's experts each, or those of them that were left to the CPU; there may be none
    busy_seconds: float  # from a request's arrival to its answer
    idle_seconds: float  # in which a request had been announced and none was in work
    routed: int = 0  # tokens for which the threads chose experts
    stale: int = 0  # requests that were dropped, or whose answer came when their sender had gone on

    def since(self, before: CpuWork) -> CpuWork:
        """What came after ``before``."""
        return CpuWork(
            self.jobs - before.jobs,
            self.busy_seconds - before.busy_seconds,
            self.idle_seconds - before.idle_seconds,
            self.routed - before.routed,
            self.stale - before.stale,
        )


@dataclass(frozen=True, slots=True)
class Routing:
    """How requests that ask for it find their experts: the largest scores and their softmax, see ``kernels.router``."""

    normalize: bool
    threads: int = 1  # that share a request's tokens, at most
    resident: int = 0  # experts with a lower number are computed elsewhere


class ExpertPool:
    """A context manager; ``close`` it, or its threads stay.

    Raises OptionError for options that are not known, HardwareError for a core or a variant that is not there.
    """

    def __init__(self, layout: TileLayout, options: PoolOptions) -> None:
        self.layout, self.options = layout, options
        self._handle: int | None = None
        self._attached = False
        self._kept: list[object] = []  # what the threads read
        self._library = load()
        arguments = self._arguments()
        cores = (ctypes.c_int32 * len(options.cores))(*options.cores)
        nodes = (ctypes.c_int32 * len(options.cores))(*options.nodes)
        error = ctypes.c_int32()
        self._handle = self._library.strata_pool_open(ctypes.byref(arguments), cores, nodes, ctypes.byref(error))
        if not self._handle:
            raise HardwareError(
                f"the threads for experts on the CPU cannot start on the cores {list(options.cores)}: "
                f"{os.strerror(error.value)}; this process may use {sorted(os.sched_getaffinity(0))}"
            )

    def _arguments(self) -> PoolArguments:
        options = self.options
        if options.variant is not None and options.variant not in variants():
            raise HardwareError(f"this CPU cannot run {options.variant!r}; it can run {', '.join(variants())}")
        if not options.cores:
            raise HardwareError("no core is left for the experts on the CPU; allow at least one")
        if options.nodes:
            assert len(options.nodes) == len(options.cores), "each core has a node"
            assert set(options.nodes) == set(range(num_nodes := max(options.nodes) + 1)), "no node is without a core"
            assert num_nodes <= MAX_NODES, f"{num_nodes} nodes are more than {MAX_NODES}"
        return PoolArguments(
            layout=LayoutArguments.of(self.layout),
            gating=_number_of("gating", options.gating, GATINGS),
            limit=options.limit,
            digits=1 + _number_of("activations", options.activations, ACTIVATIONS),
            number=_number_of("number", options.number, NUMBERS),
            variant=-1 if options.variant is None else VARIANTS.index(options.variant),
            num_cores=len(options.cores),
            num_nodes=1 + max(options.nodes, default=0),
            max_tokens=options.max_tokens,
            top_k=options.top_k,
            prefetch_bytes=options.prefetch_bytes,
            timeout_ns=round(options.timeout_seconds * 1e9),
            patience_ns=round(options.patience_seconds * 1e9),
            spin_ns=round(options.spin_seconds * 1e9),
        )

    @property
    def variant(self) -> str:
        """The variant that computes."""
        name: bytes = self._library.strata_pool_variant(self._handle)
        return name.decode()

    def set_table(self, address: int, layers: int, experts: int, owner: object) -> None:
        """Say where the experts are: int64 [layers, experts] of host addresses at ``address``, 0 for one that is not in
        host memory. ``owner`` keeps table and experts alive, and may change the table between two jobs."""
        self._kept.append(owner)
        self._library.strata_pool_set_table(self._handle, address, layers, experts)

    def set_mapped(self, address: int, num_bytes: int) -> None:
        """Say which memory is a file's: experts that a job needs of it are read ahead together, as the job begins."""
        self._library.strata_pool_set_mapped(self._handle, address, num_bytes)

    def set_prefetch(self, num_bytes: int) -> None:
        """Change ``prefetch_bytes`` between two jobs."""
        self._library.strata_pool_set_prefetch(self._handle, num_bytes)

    def run(self, layer: int, tokens: int, x: int, ids: int, weights: int, y: int) -> None:
        """y[t] = sum over k of weights[t, k] * expert[ids[t, k]](x[t]), all by address; returns when it is there.

        x: ``number`` [tokens, hidden]; ids: int32 [tokens, top_k], negative ones are left out; weights: float32 like
        ids; y: float32 like x. One caller at a time, and not while requests are expected. Raises EngineError.
        """
        self._raise_for(self._library.strata_pool_run(self._handle, layer, tokens, x, ids, weights, y))

    def attach(
        self, mailbox: int, layout: MailboxLayout, owner: object, routing: Routing | None = None, first: int = 1
    ) -> None:
        """Take requests from the mailbox at ``mailbox``, kept alive by ``owner``; the first one has number ``first``.
        ``routing``: None where no request asks for it."""
        options = self.options
        wanted = MailboxLayout(
            options.max_tokens, options.top_k, self.layout.hidden, options.number, layout.experts, layout.depth
        )
        assert layout == wanted, f"the mailbox is {layout}, the pool needs {wanted}"
        assert (routing is None) == (layout.experts == 0), "scores need a place where they are routed by"
        routing = routing or Routing(normalize=True)
        self._kept.append(owner)
        self._attached = True
        arguments = RingArguments(
            depth=layout.depth,
            stride=layout.stride,
            x=layout.x_offset,
            ids=layout.ids_offset,
            weights=layout.weights_offset,
            scores=layout.scores_offset,
            y=layout.y_offset,
            normalize=routing.normalize,
            routing_threads=routing.threads,
            experts=layout.experts,
            resident=routing.resident,
            first=first,
        )
        self._library.strata_pool_attach(self._handle, mailbox, ctypes.byref(arguments))

    def expect(self, requests: int) -> None:
        """Announce that this many requests will come through the mailbox, or be skipped, as a later one says: until
        then the threads do not sleep."""
        self._library.strata_pool_expect(self._handle, requests)

    def work(self) -> CpuWork:
        """All that was asked for through the mailbox so far. It costs nobody a wait."""
        assert self._attached, "a mailbox is attached before it is used"
        figures = (ctypes.c_int64 * 5)()
        self._library.strata_pool_work(self._handle, figures)
        jobs, busy, idle, routed, stale = figures
        return CpuWork(jobs, busy / 1e9, idle / 1e9, routed, stale)

    def check(self) -> None:
        """Raise EngineError if a request through the mailbox could not be answered."""
        assert self._attached, "a mailbox is attached before it is used"
        fault = self._library.strata_pool_take_fault(self._handle)
        self._raise_for(fault or (_FAILED if self._library.strata_pool_state(self._handle) else 0))

    def read(self, address: int, num_bytes: int) -> None:
        """Read memory with all threads and nothing else: what the kernels' speed is compared with."""
        self._raise_for(
            self._library.strata_pool_read(self._handle, address, num_bytes, ctypes.byref(ctypes.c_uint64()))
        )

    def close(self) -> None:
        """End the threads. Raises EngineError where one hangs; its memory then is not freed."""
        handle, self._handle = self._handle, None
        if not handle:
            return
        if self._library.strata_pool_close(handle):
            _LEAKED.append(self)
            raise EngineError("a thread for experts on the CPU does not end; restart the engine")
        self._kept.clear()

    def _raise_for(self, fault: int) -> None:
        if fault == 0:
            return
        if fault != _FAILED:
            raise EngineError(f"experts on the CPU were asked for {_FAULTS[fault]}")
        if self._library.strata_pool_state(self._handle) == 2:
            seconds = self.options.patience_seconds
            raise EngineError(
                f"the GPU sent no request for experts on the CPU within {seconds:g} s; restart the engine"
            )
        seconds = self.options.timeout_seconds
        cores = self.options.cores
        busy = [core for i, core in enumerate(cores) if self._library.strata_pool_busy(self._handle, i)]
        raise EngineError(
            f"experts on the CPU took more than {seconds:g} s for one layer ({len(cores)} threads, busy still on cores "
            f"{busy or 'none'}); restart the engine"
        )

    def __enter__(self) -> ExpertPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


_LEAKED: list[ExpertPool] = []  # whose memory a thread may still use


def _number_of(what: str, given: str, known: Sequence[str]) -> int:
    if given not in known:
        raise OptionError(f"{what} {given!r} is unknown; one of {', '.join(known)} is needed")
    return known.index(given)
