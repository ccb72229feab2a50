"""Which experts are fetched before their layer asks for them, and what becomes of them, in plain torch.

What is fetched ahead goes to spare slots, which belong to no layer. Only once the layer has said what it needs do slots
change hands: so a wrong guess costs the time of its copy, and never an expert that was there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from strata.kernels.misses.table import Counter, MissTable
from strata.kernels.prefetch.ahead import Ahead

PRIOR = (85, 30, 15)  # of 100: how much it says for an expert that the last step needed it, the one before, before that


def guess_routed(ids: Tensor, shares: Tensor, table: MissTable, ahead: Ahead) -> None:
    """Fetch, of the experts that a router would choose, ids and shares [tokens, top_k], and that VRAM has not, those of
    which it would take most."""
    scores: dict[int, float] = {}
    for expert, share in zip(ids.flatten().tolist(), shares.flatten().tolist(), strict=True):
        scores[expert] = scores.get(expert, 0.0) + share
    _fetch_best(scores, table, ahead)


def guess_recent(least: int, table: MissTable, ahead: Ahead) -> None:
    """Fetch, of the experts for which the last steps say ``least`` of 100 at least, those for which they say most."""
    scores = {}
    for expert, recent in enumerate(table.recent.tolist()):
        score = sum(prior for age, prior in enumerate(PRIOR) if recent >> age & 1)
        if score >= max(least, 1):
            scores[expert] = float(score)
    _fetch_best(scores, table, ahead)


def _fetch_best(scores: Mapping[int, float], table: MissTable, ahead: Ahead) -> None:
    known = [expert for expert in scores if 0 <= expert < len(table.addresses)]  # not another rank's
    missing = [expert for expert in known if int(table.addresses[expert]) == 0 and int(table.sources[expert])]
    best = sorted(missing, key=lambda expert: (-scores[expert], expert))[: len(ahead.slots)]
    ahead.experts.fill_(-1)
    ahead.targets.copy_(ahead.slots)
    for place, expert in enumerate(best):
        ahead.experts[place] = expert
        ahead.sources[place] = table.sources[expert]
    ahead.count.fill_(len(best))
    table.counters[Counter.PREFETCHED] += len(best)


def admit(ids: Tensor, table: MissTable, ahead: Ahead) -> None:
    """Let what was fetched ahead, and the layer needs, ids int32 [tokens, top_k], change places with the coldest of its
    slots. What it does not need is forgotten, and so is what comes while all slots are needed."""
    chosen = {expert for expert in ids.flatten().tolist() if 0 <= expert < len(table.addresses)}
    table.recent.copy_(table.recent * 2 % 8)
    table.recent[sorted(chosen)] += 1
    heat = table.heat.tolist()
    for place, expert in enumerate(ahead.experts.tolist()):
        owners = table.owners.tolist()
        free = [slot for slot, owner in enumerate(owners) if owner not in chosen]
        ahead.experts[place] = -1
        if expert not in chosen or not free:
            table.counters[Counter.PREFETCH_WASTED] += expert >= 0
            continue
        slot = min(free, key=lambda slot: (heat[owners[slot]] if owners[slot] >= 0 else -1.0, slot))
        if owners[slot] >= 0:
            table.addresses[owners[slot]] = 0
        table.owners[slot] = expert
        table.addresses[expert] = ahead.slots[place]
        swapped = torch.stack([ahead.slots[place], table.slots[slot]])
        table.slots[slot], ahead.slots[place] = swapped
        table.counters[Counter.PREFETCH_USED] += 1
