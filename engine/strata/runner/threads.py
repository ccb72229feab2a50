"""How torch's CPU threads wait for each other. Imports no torch: it has to be decided before torch is loaded."""

from __future__ import annotations

import os

from strata.plan.hardware import num_cpus

# Turns that a thread spins at the end of a parallel region before it sleeps. GNU OpenMP's own choice is some
# milliseconds. With a CPU to spare that is best: 2 threads of 16 quiet Xeon CPUs, SmolLM2-135M int4, take 11 ms a token
# as it comes and 17 ms with 1,000 turns. Without one, a spinning thread keeps the CPU from whoever holds up the thread
# that it waits for: on 2 Zen 4 CPUs that 5 other threads want too, 187 ms as it comes and 27 ms with 1,000 turns.
SPIN_TURNS = 1000


def yield_early(num_threads: int | None = None) -> None:
    """Let threads sleep soon where they wait, if ``num_threads`` (None: one a CPU) leave no CPU to others.

    Call it before torch is imported. What the user has set stays.
    """
    cpus = num_cpus()
    if (num_threads or cpus) >= cpus and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_TURNS))
