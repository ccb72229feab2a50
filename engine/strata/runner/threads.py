"""How torch's CPU threads wait for each other. Imports no torch: it has to be decided before torch is loaded."""

from __future__ import annotations

import os

# Turns that a thread spins at the end of a parallel region before it sleeps. GNU OpenMP's own choice is some
# milliseconds, in which a thread that shares its core with another process keeps that process from finishing and
# itself from being joined. SmolLM2-135M bf16, 2 threads on 2 cores under a load of 10 other threads: 1,222 ms a token
# as it comes, 210 ms with 1,000 turns, 164 ms with none.
SPIN_TURNS = 1000


def yield_early() -> None:
    """Let threads sleep soon where they wait; call it before torch is imported. What the user has set stays."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_TURNS))
