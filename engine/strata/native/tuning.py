"""How far ahead memory is best asked for on this machine: by trial, with a pool's own experts.

It makes half or twice the speed on some machines (see ``PoolOptions``) and costs a quarter on others, where the CPU's
own prefetchers do as well.
"""

from __future__ import annotations

import ctypes
import logging
import random
import time
from collections.abc import Sequence

from strata.native.pool import ExpertPool

logger = logging.getLogger(__name__)

DISTANCES = (0, 2368, 4736, 9472)  # bytes: none, one tile of int4, two, four
_ROUNDS = 5  # of each, in turn; the fastest counts, since what else runs only ever costs time
_JOBS = 16  # of a round: their experts are far more than the caches hold, unless all of them are less


def tune_prefetch(pool: ExpertPool, table: Sequence[Sequence[int]], number_bytes: int = 4) -> int:
    """Measure each of ``DISTANCES`` with tokens that take random experts, and leave the pool with the fastest.

    ``table``: the addresses that the pool has, a row for each layer, 0 for an expert that is not in host memory; one
    expert at least is. ``number_bytes``: bytes of a number of x, at most. Takes 320 jobs of one token: 0.1 s for 8
    experts of 3 MB each, a second for 2 of 90 MB. Not while requests are expected.
    """
    top_k, hidden = pool.options.top_k, pool.layout.hidden
    rows = [[expert for expert, address in enumerate(layer) if address] for layer in table]
    full = [layer for layer, experts in enumerate(rows) if experts]
    draw = random.Random(0)
    x = (ctypes.c_char * (hidden * number_bytes))()  # zeros: what is computed does not matter
    ids, weights, y = (ctypes.c_int32 * top_k)(), (ctypes.c_float * top_k)(), (ctypes.c_float * hidden)()
    places = (ctypes.addressof(x), ctypes.addressof(ids), ctypes.addressof(weights), ctypes.addressof(y))

    def seconds() -> float:
        began = time.perf_counter()
        for _ in range(_JOBS):
            layer = draw.choice(full)
            taken = draw.sample(rows[layer], min(top_k, len(rows[layer])))
            for place in range(top_k):
                ids[place] = taken[place] if place < len(taken) else -1
            pool.run(layer, 1, *places)
        return (time.perf_counter() - began) / _JOBS

    best = dict.fromkeys(DISTANCES, float("inf"))
    for _ in range(_ROUNDS):
        for distance in DISTANCES:
            pool.set_prefetch(distance)
            best[distance] = min(best[distance], seconds())
    fastest = min(DISTANCES, key=lambda distance: best[distance])
    pool.set_prefetch(fastest)
    logger.info(
        "the CPU computes %d experts in %s us, asking for memory so many bytes ahead; best: %d",
        top_k,
        ", ".join(f"{distance}: {1e6 * took:.0f}" for distance, took in best.items()),
        fastest,
    )
    return fastest
