"""Tokens of a step: what is asked for, else what suits the device."""

from __future__ import annotations

import pytest

from strata.config import EngineConfig, SchedulerConfig
from strata.plan.step import with_step_tokens


@pytest.mark.parametrize(
    ("device", "gib", "scheduler", "tokens"),
    [
        pytest.param("cpu", 200, SchedulerConfig(), 512, id="a CPU, however large"),
        pytest.param("cuda", 8, SchedulerConfig(), 512, id="a small card"),
        pytest.param("cuda", 24, SchedulerConfig(), 2048, id="a card"),
        pytest.param("cuda", 80, SchedulerConfig(), 8192, id="a large card"),
        pytest.param("cuda", 80, SchedulerConfig(max_num_batched_tokens=100), 100, id="as asked for"),
        pytest.param("cpu", 8, SchedulerConfig(max_num_seqs=600), 600, id="a token of every sequence, CPU"),
        pytest.param("cuda", 24, SchedulerConfig(max_num_seqs=3000), 3000, id="a token of every sequence, card"),
    ],
)
def test_step_tokens(device: str, gib: int, scheduler: SchedulerConfig, tokens: int) -> None:
    config = with_step_tokens(EngineConfig("m", scheduler=scheduler), device, gib << 30)
    assert config.scheduler.step_tokens == tokens
