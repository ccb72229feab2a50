"""Which experts are fetched and which the CPU computes, decided on the card, and the request that tells the CPU.

One program: it finds the experts that the step needs and VRAM does not have, and leaves some of them to the CPU: their
numbers, the tokens and the shares go into a mailbox in pinned host memory (``strata.native.mailbox``), its request
last. A layer that leaves nothing to the CPU asks nothing, and the next request says so; the last layer of a step always
asks, so that the CPU knows when all have spoken. The other missing experts, the hottest, get the coldest slots, and
what must be copied is listed.

    missing, free slots -> ranks by heat -> what is left -> mailbox
                                         -> the coldest slots, one by one -> lists -> addresses

A model may have hundreds of experts, so nothing compares each with each: what is asked of experts is asked of the pairs
of token and expert (P of them, or a few more), 16 of which at a time are compared with all. A slot is found per expert
that is fetched, in a small part of the time that its copy takes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.misses.chosen import coldest, is_chosen, is_first, mark_chosen
from strata.kernels.misses.reference import DECAY
from strata.kernels.misses.table import COMPUTE, DONE_OFFSET, Counter, Mailbox, MissTable
from strata.kernels.rows import QuantizedRows
from strata.kernels.triton_functions import INTERPRETED, nanoseconds, overlap_launches

NEEDED, IN_VRAM, FETCHED = (tl.constexpr(place.value) for place in (Counter.NEEDED, Counter.IN_VRAM, Counter.FETCHED))
TILE = tl.constexpr(16)  # pairs that are compared with all at a time


def share_out(
    ids: Tensor,
    shares: Tensor,
    inner: QuantizedRows | Tensor,
    table: MissTable,
    mailbox: Mailbox | None,
    layer: int,
    closes: bool,
) -> None:
    """As ``reference.share_out``, whose result goes into the mailbox as its next request, with the tokens ``inner``
    [tokens, hidden], if it leaves anything to the CPU or ``closes`` its step; nowhere where there is none. ids int32,
    shares float32 [tokens, top_k]."""
    tokens, top_k = ids.shape
    rows, scales = plain_or_quantized(inner)
    num_experts, num_slots = len(table.addresses), len(table.slots)
    share_out_kernel[(1,)](
        ids,
        shares,
        rows,
        scales,
        table.addresses,
        table.sources,
        table.heat,
        table.slots,
        table.owners,
        table.split,
        table.counters,
        table.copy_sources,
        table.copy_targets,
        table.count,
        table.scratch,
        mailbox and mailbox.sent,
        mailbox.ring if mailbox else 0,
        mailbox.stride if mailbox else 0,
        mailbox.ids if mailbox else 0,
        mailbox.shares if mailbox else 0,
        mailbox.x if mailbox else 0,
        tokens * top_k,
        tokens,
        layer,
        int(closes),
        rows.numel(),
        EXPERTS=num_experts,
        SLOTS=num_slots,
        QUANTIZED=isinstance(inner, QuantizedRows),
        DECAY=DECAY,
        P=max(triton.next_power_of_2(tokens * top_k), 2),
        E=triton.next_power_of_2(num_experts),
        S=max(triton.next_power_of_2(num_slots), 2),
        DEPTH=mailbox.depth if mailbox else 0,
        KIND=COMPUTE,
        num_warps=8,
        **launch.early(),
    )


# One build serves all layers and numbers of tokens.
@triton.jit(do_not_specialize=["pairs", "tokens", "layer", "closes", "numbers"])
def share_out_kernel(
    ids_ptr,
    shares_ptr,
    rows_ptr,
    scales_ptr,
    addresses_ptr,
    sources_ptr,
    heat_ptr,
    slots_ptr,
    owners_ptr,
    split_ptr,
    counters_ptr,
    copy_sources_ptr,
    copy_targets_ptr,
    count_ptr,
    scratch_ptr,
    sent_ptr,
    ring,
    stride,
    mail_ids,
    mail_shares,
    mail_x,
    pairs,
    tokens,
    layer,
    closes,
    numbers,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    DECAY: tl.constexpr,
    P: tl.constexpr,
    E: tl.constexpr,
    S: tl.constexpr,
    DEPTH: tl.constexpr,
    KIND: tl.constexpr,
    EARLY: tl.constexpr,
):
    overlap_launches(EARLY)
    pair = tl.arange(0, P)
    paired = pair < pairs
    ids = tl.load(ids_ptr + pair, mask=paired, other=-1)
    slot = tl.arange(0, S)
    there = slot < SLOTS
    owner = tl.load(owners_ptr + slot, mask=there, other=-1)
    owned = there & (owner >= 0)
    expert = tl.arange(0, E)
    known = expert < EXPERTS
    decayed = tl.load(heat_ptr + expert, mask=known, other=0.0) * DECAY
    shares = tl.load(shares_ptr + pair, mask=paired, other=0.0)
    split = tl.load(split_ptr + 1 + pair, mask=pair < EXPERTS, other=0)
    own = (ids >= 0) & (ids < EXPERTS)  # not another rank's
    mark_chosen(ids, own, pair, scratch_ptr)
    missing, fetchable, heat = _look_up(ids, own, addresses_ptr, sources_ptr, heat_ptr, DECAY)
    owner_heat = tl.load(heat_ptr + owner, mask=owned, other=0.0) * DECAY
    tl.debug_barrier()  # all are marked
    first = is_first(ids, own, pair, scratch_ptr)
    num_missing = tl.sum((first & missing).to(tl.int32), 0)
    count = num_missing * 0
    rank = pair * 0
    fetched, free = paired & (pair < 0), there & (slot < 0)
    if DEPTH > 0:
        number = tl.load(sent_ptr) + 1
        mail = slot_of(number, ring, stride, DEPTH)
    if num_missing > 0:
        free = there & ~is_chosen(owner, owned, ids_ptr, pairs, scratch_ptr)
        num_free = tl.sum(free.to(tl.int32), 0)
        num_fetchable = tl.sum((first & fetchable).to(tl.int32), 0)
        planned = tl.sum(tl.where(pair + 1 == num_missing, split, 0), 0)
        count = tl.minimum(tl.minimum(planned, num_free), num_fetchable)
        if DEPTH > 0:
            leaves_some = num_missing > count
            if leaves_some:
                post_tokens(rows_ptr, scales_ptr, mail + mail_x, numbers, QUANTIZED)
        if count > 0:
            # Each one's place in line: how many experts go before it, the hotter, and of as hot ones the lower.
            for begin in range(0, pairs, TILE):
                other = begin + tl.arange(0, TILE)
                other_ids = tl.load(ids_ptr + other, mask=other < pairs, other=-1)
                theirs = (other_ids >= 0) & (other_ids < EXPERTS)
                _, competes, their_heat = _look_up(other_ids, theirs, addresses_ptr, sources_ptr, heat_ptr, DECAY)
                competes &= is_first(other_ids, theirs, other, scratch_ptr)
                goes_before = (their_heat[None, :] == heat[:, None]) & (other_ids[None, :] < ids[:, None])
                goes_before |= their_heat[None, :] > heat[:, None]
                rank += tl.sum((goes_before & competes[None, :]).to(tl.int32), 1)
            fetched = fetchable & (rank < count)

    if DEPTH > 0:  # first of all: the CPU takes longest
        if (num_missing > count) | (closes != 0):
            left = tl.where(missing & ~fetched, ids, -1)
            tl.store((mail + mail_ids).to(tl.pointer_type(tl.int32)) + pair, left, mask=paired)
            tl.store((mail + mail_shares).to(tl.pointer_type(tl.float32)) + pair, shares, mask=paired)
            send(mail, sent_ptr, number, layer, tokens, KIND, pair)
        else:
            tl.store(sent_ptr + 1, tl.load(sent_ptr + 1) + 1)
            tl.store(sent_ptr + 2, 0)

    tl.debug_barrier()  # all is read
    tl.store(heat_ptr + expert, decayed, mask=known)
    tl.store(count_ptr, count)
    if count > 0:
        still_free = free
        for place in range(count):
            taken = coldest(tl.where(owned, owner_heat, -1.0), still_free, slot, S)
            tl.store(scratch_ptr + EXPERTS + place, taken)
            still_free &= slot != taken
        tl.store(addresses_ptr + owner, tl.zeros((S,), tl.int64), mask=free & ~still_free & owned)
    tl.debug_barrier()
    tl.store(heat_ptr + ids, heat, mask=own)
    if count > 0:
        target_slot = tl.load(scratch_ptr + EXPERTS + rank, mask=fetched, other=0)
        target = tl.load(slots_ptr + target_slot, mask=fetched, other=0)
        tl.store(copy_sources_ptr + rank, tl.load(sources_ptr + ids, mask=fetched, other=0), mask=fetched)
        tl.store(copy_targets_ptr + rank, target, mask=fetched)
        tl.store(addresses_ptr + ids, target, mask=fetched)
        tl.store(owners_ptr + target_slot, ids, mask=fetched)
    num_needed = tl.sum(first.to(tl.int32), 0)
    tl.store(counters_ptr + NEEDED, tl.load(counters_ptr + NEEDED) + num_needed)
    tl.store(counters_ptr + IN_VRAM, tl.load(counters_ptr + IN_VRAM) + num_needed - num_missing)
    tl.store(counters_ptr + FETCHED, tl.load(counters_ptr + FETCHED) + count)


@triton.jit
def _look_up(ids, mask, addresses_ptr, sources_ptr, heat_ptr, DECAY: tl.constexpr):
    """Of experts that are needed, where mask: which are missing, which of these can be fetched, and their new heat."""
    missing = mask & (tl.load(addresses_ptr + ids, mask=mask, other=1) == 0)
    fetchable = missing & (tl.load(sources_ptr + ids, mask=mask, other=0) != 0)
    # As one operation, so that the compiler rounds alike wherever an expert is looked up.
    return missing, fetchable, tl.fma(tl.load(heat_ptr + ids, mask=mask, other=0.0), DECAY, 1.0)


def plain_or_quantized(inner: QuantizedRows | Tensor) -> tuple[Tensor, Tensor]:
    """The rows, and their scales where they have some; what ``post_tokens`` takes."""
    return (inner.codes, inner.scales) if isinstance(inner, QuantizedRows) else (inner, inner)


@triton.jit
def slot_of(number, ring, stride, DEPTH: tl.constexpr):
    """Address of the slot for request ``number`` int32, whose bits are those of an unsigned one."""
    return ring + (number.to(tl.uint32, bitcast=True) % DEPTH).to(tl.int64) * stride


@triton.jit
def send(mail, sent_ptr, number, layer, tokens, kind, any_tensor):
    """What this program has written into slot ``mail`` is request ``number``. ``sent_ptr``: see ``Mailbox.sent``.
    ``any_tensor``: of all threads."""
    head = mail.to(tl.pointer_type(tl.int32))
    tl.store(head + 1, layer)
    tl.store(head + 2, tokens)
    tl.store(head + 3, kind)
    tl.store(head + 4, tl.load(sent_ptr + 1))
    make_visible_to_host(any_tensor)
    tl.debug_barrier()  # all of it is written, and ``sent`` read by all
    tl.store(head, number)
    tl.store(sent_ptr, number)
    tl.store(sent_ptr + 1, 0)
    tl.store(sent_ptr + 2, 1)


@triton.jit
def post_tokens(rows_ptr, scales_ptr, mail_x, numbers, QUANTIZED: tl.constexpr):
    """``numbers`` of rows, quantised or not, to the address ``mail_x`` in float32."""
    BLOCK: tl.constexpr = 2048
    x = mail_x.to(tl.pointer_type(tl.float32))
    for begin in range(0, numbers, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < numbers
        value = tl.load(rows_ptr + at, mask=inside, other=0).to(tl.float32)
        if QUANTIZED:
            value *= tl.load(scales_ptr + at // 32, mask=inside, other=0.0)
        tl.store(x + at, value, mask=inside)


@triton.jit
def make_visible_to_host(any_tensor):
    """Orders this thread's writes before its later ones, for the host as well."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "fence.acq_rel.sys; mov.b32 $0, $1;", "=r,r", [any_tensor], tl.int32, is_pure=False, pack=1
        )


ANSWER_BLOCK = 1024  # numbers of the answer that a program adds
MAX_LOOKS = tl.constexpr(20_000_000)  # for the answer; each reads host memory, which takes a microsecond and more


def add_answer(x: Tensor, mailbox: Mailbox, counters: Tensor) -> Tensor:
    """x float32 [tokens, hidden], hidden a multiple of 32, with the CPU's answer to the layer's request added, in
    place; nothing is added where it asked nothing, or the answer is late. counters: the layer's, see ``MissTable``; the
    time that this waits is added."""
    grid = (triton.cdiv(x.numel(), ANSWER_BLOCK),)
    add_answer_kernel[grid](
        x,
        mailbox.sent,
        mailbox.ring,
        mailbox.stride,
        mailbox.answer,
        mailbox.late,
        counters,
        x.numel() // 32,
        DEPTH=mailbox.depth,
        DONE=DONE_OFFSET,
        WAITED_NS=Counter.WAITED_NS.value,
        BLOCK=ANSWER_BLOCK,
        num_warps=4,
        **launch.early(),
    )
    return x


@triton.jit(do_not_specialize=["groups"])
def add_answer_kernel(
    x_ptr,
    sent_ptr,
    ring,
    stride,
    answer,
    late,
    counters_ptr,
    groups,
    DEPTH: tl.constexpr,
    DONE: tl.constexpr,
    WAITED_NS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    overlap_launches(EARLY)
    if tl.load(sent_ptr + 2) != 0:
        number = tl.load(sent_ptr)
        mail = slot_of(number, ring, stride, DEPTH)
        if answered(mail, number, DONE, late, counters_ptr + WAITED_NS):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            inside = at < groups * 32
            from_answer = tl.multiple_of((mail + answer).to(tl.pointer_type(tl.float32)), 16)
            y = tl.load(from_answer + at, mask=inside, other=0.0, volatile=True)
            tl.store(x_ptr + at, tl.load(x_ptr + at, mask=inside) + y, mask=inside)


@triton.jit
def answered(mail, number, DONE: tl.constexpr, late, waited_ns):
    """Waits for the answer to request ``number`` in slot ``mail``: whether it came."""
    flag = (mail + DONE).to(tl.pointer_type(tl.int32))
    looks = 0
    waited = tl.full([], 0, tl.int64)
    seen = tl.load(flag, volatile=True)
    if seen != number:  # where the answer is there, no clock is read
        waited -= nanoseconds()
        while (seen != number) & (looks < MAX_LOOKS):
            seen = tl.load(flag, volatile=True)
            looks += 1
        waited += nanoseconds()
    make_visible_to_host(seen)  # one fence a thread; of a tensor it would be one for each of its numbers
    if seen != number:
        tl.store(late.to(tl.pointer_type(tl.int32)), 1)
    if (tl.program_id(0) == 0) & (looks > 0):
        tl.atomic_add(waited_ns, waited, sem="relaxed")
    return seen == number
