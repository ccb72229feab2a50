"""All of a card's figures in one call: ``make bench-gpu``, or ``python -m tests.benchmarks --help``."""
