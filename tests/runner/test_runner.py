"""Loading a store into a runner, and stepping it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from strata import quant
from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.config.engine import DTYPES
from strata.errors import HardwareError, OptionError
from strata.plan.memory import DeviceMemory
from strata.plan.parts import loaded_parts
from strata.runner import runner as runner_module
from strata.runner.runner import Runner
from strata.runner.threads import FIRST_INTERVAL
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.store.locate import resolve
from strata.store.reader import Store
from tests.engine.tiny_llama import write_checkpoint
from tests.models import tiny

TOKENS = tuple(range(5, 45))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("runner") / "tiny")


def open_store(checkpoint: Path, dtype: str) -> Store:
    return Store.open(resolve(str(checkpoint), dtype, checkpoint.parent / "cache"))


def config(max_num_seqs: int = 4, max_model_len: int | None = None, num_kv_tokens: int | None = None) -> EngineConfig:
    return EngineConfig(
        model="tiny",
        device=DeviceConfig(device="cpu", num_threads=1),
        cache=CacheConfig(num_kv_tokens=num_kv_tokens),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_model_len=max_model_len),
    )


def prompt(samples: bool = True, name: str = "a", blocks: tuple[int, ...] = (0, 1, 2)) -> ScheduledSequence:
    return ScheduledSequence(name, TOKENS, 0, blocks, samples)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_a_store_runs_as_its_unpacked_weights_do(checkpoint: Path, dtype: str) -> None:
    store = open_store(checkpoint, dtype)
    seen: list[tuple[str, int, int]] = []
    runner = Runner.load(store, config(), lambda *now: seen.append(now))
    exact = {
        name: quant.get(weight.format).unpack(weight) if isinstance(weight, quant.QuantizedTensor) else weight.float()
        for name, weight in store.load()
    }
    expected = tiny.runner_of(store.model_config, exact).run_all(Batch((prompt(),)))
    found = runner.run_all(Batch((prompt(),)))
    assert tiny.relative(found, expected) < 0.05
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.9
    assert [phase for phase, _, _ in seen] == sorted(phase for phase, _, _ in seen), "load, then prepare"
    for wanted in ("load", "prepare"):
        done = [done for phase, done, _ in seen if phase == wanted]
        assert done == sorted(done)
        assert done[-1] == next(total for phase, _, total in seen if phase == wanted) > 0
    assert len([phase for phase, _, _ in seen if phase == "prepare"]) == len(list(store.load())), "one for each weight"


def test_logits_come_for_sampling_sequences_in_the_batch_s_order(checkpoint: Path) -> None:
    runner = Runner.load(open_store(checkpoint, "bf16"), config(), compute_dtype=torch.float32)
    every = runner.run_all(Batch((prompt(),)))
    assert every.shape == (len(TOKENS), 96)
    short = ScheduledSequence("b", TOKENS[:7], 0, (3,), samples=True)
    hidden = prompt(samples=False, name="c", blocks=(4, 5, 6))
    found = runner.run(Batch((prompt(), hidden, short))).logits
    assert found.dtype == torch.float32
    assert tiny.relative(found, every[[len(TOKENS) - 1, 6]]) < 1e-5
    assert runner.run(Batch((hidden,))).logits.shape == (0, 96)


def test_facts(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="strata"):
        runner = Runner.load(open_store(checkpoint, "int8"), config(max_num_seqs=3, max_model_len=100))
    assert (runner.block_size, runner.num_blocks, runner.max_model_len) == (16, 3 * 7, 100)
    assert runner.device_name == "cpu"
    assert "336 tokens in blocks of 16; 3.4 sequences of 100" in caplog.text


def test_a_cpu_too_small_is_refused_before_the_weights_are_read(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = DeviceMemory("cpu", 1 << 20, 1 << 20)
    monkeypatch.setattr(runner_module, "device_memory", lambda *args, **kwargs: memory)
    with pytest.raises(HardwareError, match="cpu has not the memory for one sequence of max_model_len 128"):
        Runner.load(open_store(checkpoint, "bf16"), config(), lambda *now: pytest.fail("weights were read"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_cpu_s_weights_take_is_what_was_planned(dtype: str, checkpoint: Path) -> None:
    store = open_store(checkpoint, dtype)
    planned = loaded_parts(store.model_config, dtype, "cpu").total
    assert Runner.load(store, config(max_model_len=100)).plan.weight_bytes == pytest.approx(planned, abs=1)


def test_a_length_beyond_the_checkpoint_is_refused(checkpoint: Path) -> None:
    with pytest.raises(OptionError, match="max_model_len is 129; the checkpoint's positions reach 128"):
        Runner.load(open_store(checkpoint, "bf16"), config(max_model_len=129))


@pytest.mark.usefixtures("no_card")
def test_cuda_without_a_card(checkpoint: Path) -> None:
    with pytest.raises(HardwareError, match="device 'cuda' was asked for"):
        Runner.load(open_store(checkpoint, "bf16"), EngineConfig(model="tiny", device=DeviceConfig(device="cuda")))


def test_threads_are_found_by_trial_unless_they_are_set(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(checkpoint, "bf16")
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: asked[-1])
    free = replace(config(), device=DeviceConfig(device="cpu"))
    monkeypatch.setattr("strata.runner.device.num_cpus", lambda: 2)
    runner = Runner.load(store, free)
    logits = [runner.run(Batch((prompt(),))).logits for _ in range(2 * FIRST_INTERVAL)]
    assert set(asked) == {2, 1}
    assert all(torch.allclose(other, logits[0], atol=0.1) for other in logits)
    asked.clear()
    fixed = Runner.load(store, config())
    for _ in range(2 * FIRST_INTERVAL):
        fixed.run(Batch((prompt(),)))
    assert asked == [1]
