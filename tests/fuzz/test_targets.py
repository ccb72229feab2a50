"""A few inputs of each target, and others each time that `make fuzz` runs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz.targets import TARGETS

BRIEF = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_comes_ends_well_or_in_an_error_of_its_own(name: str) -> None:
    BRIEF(TARGETS[name]())()
