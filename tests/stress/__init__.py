"""Long runs that are no part of the test suite: ``python -m tests.stress.soak --help``."""
