"""Which experts are fetched, which the CPU computes, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from strata.kernels.misses.table import Counter, MissTable

DECAY = 0.95  # of an expert's heat in a step: after 14 steps a use counts half


def share_out(ids: Tensor, table: MissTable) -> Tensor:
    """ids int32 [tokens, top_k] -> int32 [tokens, top_k], the experts that the CPU computes, -1 elsewhere. An id that
    no expert has is nobody's: that expert is another rank's.

    Of the experts that are needed and not in VRAM, the hottest ``table.split[how many]`` get slots, as far as there
    are any whose expert this step does not need; the coldest of these lose theirs. Of two alike the first goes before.
    """
    chosen = sorted({expert for expert in ids.flatten().tolist() if 0 <= expert < len(table.addresses)})
    table.heat.mul_(DECAY)
    table.heat[chosen] += 1
    heat, owners = table.heat.tolist(), table.owners.tolist()
    missing = [expert for expert in chosen if int(table.addresses[expert]) == 0]
    free = [slot for slot, owner in enumerate(owners) if owner not in chosen]
    fetchable = [expert for expert in missing if int(table.sources[expert])]
    count = min(int(table.split[len(missing)]), len(free), len(fetchable))
    fetched = sorted(fetchable, key=lambda expert: (-heat[expert], expert))[:count]
    cold = sorted(free, key=lambda slot: (heat[owners[slot]] if owners[slot] >= 0 else -1.0, slot))[:count]
    for place, (expert, slot) in enumerate(zip(fetched, cold, strict=True)):
        if owners[slot] >= 0:
            table.addresses[owners[slot]] = 0
        table.copy_sources[place] = table.sources[expert]
        table.copy_targets[place] = table.slots[slot]
        table.addresses[expert] = table.slots[slot]
        table.owners[slot] = expert
    table.count.fill_(count)
    table.counters[: Counter.FETCHED + 1] += torch.tensor([len(chosen), len(chosen) - len(missing), count])
    left = [expert for expert in missing if expert not in fetched]
    return torch.where(torch.isin(ids, torch.tensor(left, dtype=ids.dtype)), ids, -1)
