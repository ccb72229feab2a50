"""Which experts are fetched before their layer asks for them, and what becomes of them, decided on the card.

One program each. The two guesses run beside the layer before, on a stream of their own; ``admit`` runs once the layer
has chosen, before ``misses.triton.share_out``, which then finds what is on its way in VRAM:

    scores of all experts -> the best that VRAM has not -> what is copied        guess_routed, guess_recent
    needed and there -> the coldest slots that are not needed -> swapped         admit

Lists of experts and slots are held in registers, and are written when all of them have been read.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.misses.chosen import coldest, is_chosen, mark_chosen
from strata.kernels.misses.table import Counter, MissTable
from strata.kernels.prefetch.ahead import Ahead
from strata.kernels.prefetch.reference import PRIOR
from strata.kernels.triton_functions import overlap_launches

TILE = tl.constexpr(16)  # pairs that are compared with all experts at a time
PRIORS = tl.constexpr(PRIOR)
PREFETCHED = tl.constexpr(int(Counter.PREFETCHED))
USED, WASTED = tl.constexpr(int(Counter.PREFETCH_USED)), tl.constexpr(int(Counter.PREFETCH_WASTED))


def guess_routed(ids: Tensor, shares: Tensor, table: MissTable, ahead: Ahead) -> None:
    """As ``reference``. ids int32, shares float32 [tokens, top_k]."""
    _guess(ids, shares, 0, table, ahead)


def guess_recent(least: int, table: MissTable, ahead: Ahead) -> None:
    """As ``reference``."""
    _guess(table.recent, None, max(least, 1), table, ahead)


def _guess(seen: Tensor, shares: Tensor | None, least: int, table: MissTable, ahead: Ahead) -> None:
    routed = shares is not None
    guess_kernel[(1,)](
        seen,
        shares,
        table.addresses,
        table.sources,
        ahead.slots,
        ahead.experts,
        ahead.sources,
        ahead.targets,
        ahead.count,
        table.counters,
        seen.numel(),
        ROUTED=routed,
        LEAST=least,
        **_sizes(table, ahead),
    )


def _sizes(table: MissTable, ahead: Ahead) -> dict[str, Any]:
    num_experts = len(table.addresses)
    sizes = {"EXPERTS": num_experts, "AHEAD": len(ahead.slots), "E": triton.next_power_of_2(num_experts)}
    return {**sizes, "num_warps": 8, **launch.early()}


@triton.jit(do_not_specialize=["pairs"])
def guess_kernel(
    seen_ptr,
    shares_ptr,
    addresses_ptr,
    sources_ptr,
    ahead_slots_ptr,
    ahead_experts_ptr,
    ahead_sources_ptr,
    ahead_targets_ptr,
    count_ptr,
    counters_ptr,
    pairs,
    ROUTED: tl.constexpr,
    LEAST: tl.constexpr,
    EXPERTS: tl.constexpr,
    AHEAD: tl.constexpr,
    E: tl.constexpr,
    EARLY: tl.constexpr,
):
    """``seen``: ``ROUTED``, ids of the next layer's router; else which of the last steps needed each expert.
    Of the likely experts that VRAM has not, those whose scores are the largest; of equal ones the first."""
    overlap_launches(EARLY)
    expert = tl.arange(0, E)
    known = expert < EXPERTS
    if ROUTED:
        score, likely = _of_router(seen_ptr, shares_ptr, pairs, E)
    else:
        score, likely = _of_history(seen_ptr, LEAST, EXPERTS, E)
    likely &= tl.load(addresses_ptr + expert, mask=known, other=1) == 0
    likely &= tl.load(sources_ptr + expert, mask=known, other=0) != 0
    count = 0
    for place in tl.static_range(AHEAD):
        key = tl.where(likely, score, -1.0)
        best = tl.min(tl.where(likely & (key == tl.max(key, 0)), expert, E), 0)
        found = best < E
        tl.store(ahead_experts_ptr + place, tl.where(found, best, -1))
        tl.store(ahead_sources_ptr + place, tl.load(sources_ptr + best, mask=found, other=0))
        tl.store(ahead_targets_ptr + place, tl.load(ahead_slots_ptr + place))
        likely &= expert != best
        count += found.to(tl.int32)
    tl.store(count_ptr, count)
    tl.store(counters_ptr + PREFETCHED, tl.load(counters_ptr + PREFETCHED) + count)


@triton.jit
def _of_router(ids_ptr, shares_ptr, pairs, E: tl.constexpr):
    """Of each expert [E] the sum of the tokens' shares, and whether a token takes it."""
    expert = tl.arange(0, E)
    score, likely = tl.zeros((E,), tl.float32), expert < 0
    for begin in range(0, pairs, TILE):
        pair = begin + tl.arange(0, TILE)
        ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
        shares = tl.load(shares_ptr + pair, mask=pair < pairs, other=0.0)
        chosen = ids[:, None] == expert[None, :]
        score += tl.sum(tl.where(chosen, shares[:, None], 0.0), 0)
        likely |= tl.max(chosen.to(tl.int32), 0) > 0
    return score, likely


@triton.jit
def _of_history(recent_ptr, LEAST: tl.constexpr, EXPERTS: tl.constexpr, E: tl.constexpr):
    """Of each expert [E] what the last steps say for it, of 100, and whether that is ``LEAST`` or more."""
    expert = tl.arange(0, E)
    recent = tl.load(recent_ptr + expert, mask=expert < EXPERTS, other=0)
    score = tl.zeros((E,), tl.int32)
    for age in tl.static_range(3):
        score += (recent >> age & 1) * PRIORS[age]
    return score.to(tl.float32), score >= LEAST


def admit(ids: Tensor, table: MissTable, ahead: Ahead) -> None:
    """As ``reference``. ids int32 [tokens, top_k]."""
    num_slots, num_ahead = len(table.slots), len(ahead.slots)
    admit_kernel[(1,)](
        ids,
        table.addresses,
        table.heat,
        table.recent,
        table.slots,
        table.owners,
        ahead.slots,
        ahead.experts,
        table.counters,
        table.scratch,
        ids.numel(),
        SLOTS=num_slots,
        P=max(triton.next_power_of_2(ids.numel()), 2),
        S=max(triton.next_power_of_2(num_slots), 2),
        A=max(triton.next_power_of_2(num_ahead), 2),
        **_sizes(table, ahead),
    )


@triton.jit(do_not_specialize=["pairs"])
def admit_kernel(
    ids_ptr,
    addresses_ptr,
    heat_ptr,
    recent_ptr,
    slots_ptr,
    owners_ptr,
    ahead_slots_ptr,
    ahead_experts_ptr,
    counters_ptr,
    scratch_ptr,
    pairs,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    AHEAD: tl.constexpr,
    P: tl.constexpr,
    E: tl.constexpr,
    S: tl.constexpr,
    A: tl.constexpr,
    EARLY: tl.constexpr,
):
    overlap_launches(EARLY)
    pair = tl.arange(0, P)
    ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1)
    own = (ids >= 0) & (ids < EXPERTS)  # not another rank's
    mark_chosen(ids, own, pair, scratch_ptr)
    recent = tl.load(recent_ptr + ids, mask=own, other=0)
    expert = tl.arange(0, E)
    known = expert < EXPERTS
    aged = tl.load(recent_ptr + expert, mask=known, other=0) * 2 % 8
    slot = tl.arange(0, S)
    there = slot < SLOTS
    owner = tl.load(owners_ptr + slot, mask=there, other=-1)
    owned = owner >= 0
    place = tl.load(slots_ptr + slot, mask=there, other=0)
    heat = tl.load(heat_ptr + owner, mask=owned, other=-1.0)
    number = tl.arange(0, A)
    coming = number < AHEAD
    arrived = tl.load(ahead_experts_ptr + number, mask=coming, other=-1)
    spare = tl.load(ahead_slots_ptr + number, mask=coming, other=0)
    tl.debug_barrier()
    tl.store(recent_ptr + expert, aged, mask=known)
    free = there & ~is_chosen(owner, owned, ids_ptr, pairs, scratch_ptr)
    welcome = is_chosen(arrived, arrived >= 0, ids_ptr, pairs, scratch_ptr)
    tl.debug_barrier()
    tl.store(recent_ptr + ids, recent * 2 % 8 + 1, mask=own)

    former = owner
    for index in tl.static_range(AHEAD):
        mine = number == index
        newcomer = tl.sum(tl.where(mine, arrived, 0), 0)
        newcomer_place = tl.sum(tl.where(mine, spare, 0), 0)
        wanted = tl.max((mine & welcome).to(tl.int32), 0) > 0
        taken = coldest(heat, free, slot, S)
        swapped = (slot == taken) & wanted
        spare = tl.where(mine & wanted & (taken < S), tl.sum(tl.where(swapped, place, 0), 0), spare)
        place = tl.where(swapped, newcomer_place, place)
        owner = tl.where(swapped, newcomer, owner)
        free = free & ~swapped
    changed = owner != former
    tl.store(addresses_ptr + former, tl.zeros((S,), tl.int64), mask=changed & owned)
    tl.store(addresses_ptr + owner, place, mask=changed)
    tl.store(slots_ptr + slot, place, mask=changed)
    tl.store(owners_ptr + slot, owner, mask=changed)
    tl.store(ahead_slots_ptr + number, spare, mask=coming)
    tl.store(ahead_experts_ptr + number, tl.full((A,), -1, tl.int32), mask=coming)
    num_used = tl.sum(changed.to(tl.int64), 0)
    num_wasted = tl.sum((arrived >= 0).to(tl.int64), 0) - num_used
    tl.store(counters_ptr + USED, tl.load(counters_ptr + USED) + num_used)
    tl.store(counters_ptr + WASTED, tl.load(counters_ptr + WASTED) + num_wasted)
