"""The same store on a card and on the CPU: logits of every dtype and the tokens of whole requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.engine.load import load_engine
from strata.engine.loop import EngineLoop
from strata.request import GenerationRequest, SamplingParams
from strata.runner.runner import Runner
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.store.locate import resolve
from strata.store.reader import Store
from tests.engine import float32
from tests.engine.tiny_llama import EXPERTS, write_checkpoint
from tests.models.tiny import relative

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")

TOKENS = tuple((13 * position) % 90 + 2 for position in range(70))
TABLES = {"a": (3, 0, 5, 1, 7), "b": (2, 6, 8)}  # KV blocks, out of order


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("cuda") / "tiny")


def config(store: Path, dtype: str, device: str) -> EngineConfig:
    return EngineConfig(
        model=str(store),
        dtype=dtype,  # type: ignore[arg-type]
        device=DeviceConfig(device=device, num_threads=1),  # type: ignore[arg-type]
        cache=CacheConfig(num_kv_tokens=1024),
        scheduler=SchedulerConfig(max_num_batched_tokens=32),
    )


def run(checkpoint: Path, dtype: str, device: str, compute_dtype: torch.dtype) -> torch.Tensor:
    """All logits of two sequences: chunks, then both decoding in one batch. float32 [tokens, vocab] on the CPU."""
    store = Store.open(resolve(str(checkpoint), dtype, checkpoint.parent / "cache"))
    runner = Runner.load(store, config(store.path, dtype, device), compute_dtype=compute_dtype)
    assert runner.device.type == device
    runner.caches.kv.tensor.fill_(1000.0)  # what is seen before it was written shows

    def part(name: str, start: int, end: int) -> ScheduledSequence:
        blocks = TABLES[name][: -(-end // runner.block_size)]
        return ScheduledSequence(name, TOKENS[start:end], start, blocks, samples=True)

    steps = [
        (part("a", 0, 30), part("b", 0, 5)),  # two prefills
        (part("b", 5, 6), part("a", 30, 62)),  # decode beside a chunk that continues
        *((part("a", 62 + i, 63 + i), part("b", 6 + i, 7 + i)) for i in range(8)),
    ]
    return torch.cat([runner.run_all(Batch(step)).cpu() for step in steps])


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_float32_logits_equal_the_cpus(checkpoint: Path, dtype: str) -> None:
    expected = run(checkpoint, dtype, "cpu", torch.float32)
    found = run(checkpoint, dtype, "cuda", torch.float32)
    error = relative(found, expected)
    print(f"{dtype}: relative error {error:.1e}")
    assert error < 1e-4


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_bfloat16_logits_are_near_the_exact_ones(checkpoint: Path, dtype: str) -> None:
    error = relative(run(checkpoint, dtype, "cuda", torch.bfloat16), run(checkpoint, dtype, "cpu", torch.float32))
    print(f"{dtype}: relative error {error:.1e}")
    assert error < 0.05


def tokens(loop: EngineLoop) -> dict[str, list[int]]:
    """Step until every request has ended."""
    drawn: dict[str, list[int]] = {}
    while loop.has_work:
        for output in loop.step().outputs:
            drawn.setdefault(output.request_id, []).extend(output.token_ids)
        loop.check_integrity()
    return drawn


def test_requests_draw_the_same_tokens_as_on_the_cpu(checkpoint: Path) -> None:
    store = resolve(str(checkpoint), "int4", checkpoint.parent / "cache")
    drawn = []
    for device in ("cpu", "cuda"):
        loop = float32.load(config(store, "int4", device))
        for number in range(6):
            params = SamplingParams(max_tokens=24, temperature=0.7 * (number % 2), top_k=20, seed=number)
            loop.add(GenerationRequest(f"r{number}", TOKENS[number : 11 * (number + 1)], params))
        drawn.append(tokens(loop))
    assert drawn[0] == drawn[1]
    assert all(drawn[1].values())


@pytest.mark.parametrize("experts", [{}, EXPERTS], ids=["dense", "experts"])
def test_steps_ahead_change_no_token(tmp_path: Path, experts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests that begin and end together, with graphs; half of them draw."""
    store = resolve(str(write_checkpoint(tmp_path / "tiny", **experts)), "int4", tmp_path / "cache")
    drawn = []
    for runs_ahead in (False, True):
        monkeypatch.setattr(Runner, "runs_ahead", runs_ahead)
        scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=256)
        loop = load_engine(replace(config(store, "int4", "cuda"), scheduler=scheduler))
        for number in range(4):
            params = SamplingParams(max_tokens=40, temperature=0.7 * (number % 2), seed=number, ignore_eos=True)
            loop.add(GenerationRequest(f"r{number}", TOKENS[number : number + 20], params))
        drawn.append(tokens(loop))
    assert drawn[0] == drawn[1]
    assert all(len(ids) == 40 for ids in drawn[0].values())
