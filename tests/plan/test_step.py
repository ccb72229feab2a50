"""Tokens of a step: what is asked for, else what suits the device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.config import EngineConfig, SchedulerConfig
from strata.plan.memory import DeviceMemory, size_memory
from strata.plan.step import step_choices
from tests.plan.configs import public


@pytest.mark.parametrize(
    ("device", "gib", "balanced", "scheduler", "tokens"),
    [
        pytest.param("cpu", 200, 0, SchedulerConfig(), [512], id="a CPU, however large"),
        pytest.param("cuda", 8, 0, SchedulerConfig(), [512], id="a small card"),
        pytest.param("cuda", 24, 0, SchedulerConfig(), [2048, 512], id="a card"),
        pytest.param("cuda", 80, 0, SchedulerConfig(), [8192, 2048, 512], id="a large card"),
        pytest.param("cuda", 8, 5000, SchedulerConfig(), [8192, 2048, 512], id="experts come over PCIe for each"),
        pytest.param("cuda", 8, 4000, SchedulerConfig(), [2048, 512], id="some come"),
        pytest.param("cpu", 200, 5000, SchedulerConfig(), [512], id="there is no PCIe"),
        pytest.param("cuda", 80, 9999, SchedulerConfig(max_num_batched_tokens=100), [100], id="as asked for"),
        pytest.param("cpu", 8, 0, SchedulerConfig(max_num_seqs=600), [600], id="a token of every sequence, CPU"),
        pytest.param("cuda", 24, 0, SchedulerConfig(max_num_seqs=3000), [3000, 3000], id="a token of each, card"),
    ],
)
def test_what_suits_the_device(
    device: str, gib: int, balanced: int, scheduler: SchedulerConfig, tokens: list[int]
) -> None:
    choices = step_choices(EngineConfig("m", scheduler=scheduler), device, gib << 30, balanced=balanced)
    assert [choice.scheduler.step_tokens for choice in choices] == tokens


def test_the_largest_that_fits_is_taken() -> None:
    """No card that is large enough for small steps is refused for large ones."""
    model, total = public("qwen3-8b"), 24 << 30
    memory = DeviceMemory("cuda", total, total)
    config = EngineConfig("m", scheduler=SchedulerConfig(max_num_seqs=1, max_model_len=256))

    def left_for_weights(step_tokens: int) -> int:
        asked = replace(config, scheduler=replace(config.scheduler, max_num_batched_tokens=step_tokens))
        plan = size_memory(model, asked, memory, 0, 2)
        return plan.capacity_bytes - plan.workspace_bytes - plan.kv_bytes

    for step_tokens in (2048, 512):
        plan = size_memory(model, config, memory, left_for_weights(step_tokens), 2)
        assert (plan.step_tokens, plan.fits) == (step_tokens, True)
    assert not size_memory(model, config, memory, left_for_weights(512) + 1, 2).fits
