"""Settings of the tests of stores and their sources."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("long", max_examples=10_000)  # pytest tests/store --hypothesis-profile=long
