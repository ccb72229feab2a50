"""``make fuzz SECONDS=600``: the targets in turn, with new inputs each time, until the time is over."""

from __future__ import annotations

import argparse
import logging
import random
import time

from hypothesis import HealthCheck, seed, settings

from tests.fuzz.targets import TARGETS

ROUND = 200  # inputs of a target before the next one's turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default: 600)")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="this one alone (default: all)")
    arguments = parser.parse_args()
    rounds = settings(max_examples=ROUND, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    logging.disable()  # of the warnings that are meant to come
    until, count = time.monotonic() + arguments.seconds, 0
    while time.monotonic() < until:
        for name in arguments.target or TARGETS:
            number = random.getrandbits(32)
            print(f"{name}, seed {number}", flush=True)
            seed(number)(rounds(TARGETS[name]()))()
            count += ROUND
    print(f"{count} inputs, and each ended well or in an error of its own")


if __name__ == "__main__":
    main()
