"""What the card knows of the experts of one layer, and what it does about those that VRAM has not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch import Tensor

from strata.kernels.experts.blob import BlobLayout
from strata.kernels.prefetch.ahead import Ahead

COMPUTE, ROUTE, DONE_OFFSET = 1, 2, 64  # of a request through the mailbox, as ``strata.native.mailbox`` has them


class Counter(IntEnum):
    """Places in a layer's counters; ``strata.experts.counts.ExpertCounts`` says what each one counts."""

    NEEDED = 0
    IN_VRAM = 1
    FETCHED = 2
    PREFETCHED = 3
    PREFETCH_USED = 4
    PREFETCH_WASTED = 5
    STREAMED = 6
    WAITED_NS = 7


@dataclass(frozen=True, slots=True)
class MissTable:
    """One layer's experts; all tensors are on the device, and change in its steps.

    addresses: int64 [experts], the slot of VRAM that has each one's blob, 0 where none has. sources: int64 [experts],
    each one's tiles in host memory, 0 for one that is never fetched. heat: float32 [experts], how often each was
    needed, the last steps counting most. slots: int64 [slots], addresses in VRAM. owners: int32 [slots], the expert in
    each, -1 in none. split: int32 [experts + 1], how many of so many missing experts are fetched; the CPU computes
    the others. counters: int64 [len(Counter)]; ``share_out`` counts the first three, ``prefetch`` those of its name,
    ``add_answer`` the last. recent: int32 [experts], which of the last three steps needed each one, the last in the
    lowest bit; kept where experts are fetched ahead.

    Of the step: copy_sources, copy_targets int64 [slots] and count int32 [1], what has to be fetched from where to
    where. scratch: int32 [2 * experts], the first half of it ``chosen``'s marks.
    """

    addresses: Tensor
    sources: Tensor
    heat: Tensor
    slots: Tensor
    owners: Tensor
    split: Tensor
    counters: Tensor
    recent: Tensor
    copy_sources: Tensor
    copy_targets: Tensor
    count: Tensor
    scratch: Tensor


@dataclass(frozen=True, slots=True)
class Mailbox:
    """The ring of ``strata.native.mailbox`` as the device sees it. sent: int32 [3] on the device, the last request's
    number (its bits), how many layers since then had nothing to ask, and whether the last layer waits for an answer.
    ring: address of the first of ``depth`` slots, ``stride`` bytes apart. late: address of an int32 that becomes 1
    where an answer did not come in half a minute. Places in bytes within a slot: ids int32, shares float32 [tokens,
    top_k]; scores float32 [tokens, experts]; x float32 [tokens, hidden], and the answer like x, or ids and behind them
    shares."""

    sent: Tensor
    ring: int
    depth: int
    stride: int
    late: int
    ids: int
    shares: int
    scores: int
    x: int
    answer: int


@dataclass(frozen=True, slots=True)
class MissSteps:
    """What a device does about misses. Each of it may be captured in a CUDA graph.

    inner(x [tokens, hidden]): x as ``Routed.inner`` has it. ask_route(scores, inner, mailbox, layer) and
    take_choice(mailbox, tokens, top_k, counters): see ``routing``. share_out(ids, shares, inner, table, mailbox, layer,
    closes) and add_answer(x, mailbox, counters): see ``triton``. untile(sources, targets, count, layout): see
    ``untile``. guess_routed(ids, shares, table, ahead), guess_recent(least, table, ahead) and admit(ids, table, ahead):
    see ``prefetch``.
    """

    inner: Callable[[Tensor], Any]
    ask_route: Callable[[Tensor, Any | None, Mailbox, int], None]
    take_choice: Callable[[Mailbox, int, int, Tensor], tuple[Tensor, Tensor]]
    share_out: Callable[[Tensor, Tensor, Any, MissTable, Mailbox | None, int, bool], None]
    add_answer: Callable[[Tensor, Mailbox, Tensor], Tensor]
    untile: Callable[[Tensor, Tensor, Tensor, BlobLayout], None]
    guess_routed: Callable[[Tensor, Tensor, MissTable, Ahead], None]
    guess_recent: Callable[[int, MissTable, Ahead], None]
    admit: Callable[[Tensor, MissTable, Ahead], None]
