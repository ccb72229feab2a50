"""A short run of ``make chaos``."""

from __future__ import annotations

import pytest

from tests.cluster import Cluster
from tests.operator.live.harness import Models, OperatorProcess
from tests.stress.chaos import VICTIMS, chaos

pytestmark = pytest.mark.cluster


def test_all_converges_after_random_kills_and_nothing_is_left(
    quiet: None, models: Models, cluster: Cluster, operator: OperatorProcess, operator_image: str
) -> None:
    done = chaos(cluster, models, operator, operator_image, seconds=15, seed=1)
    assert {f"kill {victim}" for victim in VICTIMS} <= set(done)
