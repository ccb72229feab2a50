"""Client, process, loop and a real (tiny) model together."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from strata.config import DeviceConfig, EngineConfig, SchedulerConfig
from strata.engine.client import EngineClient
from strata.errors import UsageError
from strata.request import GenerationRequest, SamplingParams
from tests.engine import float32
from tests.engine.tiny_llama import write_checkpoint


def config(model: Path) -> EngineConfig:
    return EngineConfig(
        model=str(model),
        dtype="int8",
        device=DeviceConfig(device="cpu", num_threads=1),
        scheduler=SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=16),
    )


async def test_streams_are_those_of_the_loop_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    checkpoint = write_checkpoint(tmp_path / "tiny")
    sampling = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    requests = [GenerationRequest(f"r{n}", tuple(range(2 + n, 8 + 7 * n)), sampling) for n in range(6)]

    loop = float32.load(config(checkpoint))
    alone: dict[str, list[int]] = {}
    for wanted in requests:
        loop.add(wanted)
        while loop.has_work:
            for output in loop.step().outputs:
                alone.setdefault(output.request_id, []).extend(output.token_ids)

    client = EngineClient(config(checkpoint), load=float32.LOAD)
    await client.start()
    try:
        ready = await client.wait_ready()
        assert ready == loop.ready

        async def collect(wanted: GenerationRequest) -> list[int]:
            async with aclosing(client.generate(wanted)) as outputs:
                return [token_id async for output in outputs for token_id in output.token_ids]

        together = await asyncio.gather(*(collect(wanted) for wanted in requests))
        assert dict(zip(alone, together, strict=True)) == alone
        assert client.stats is not None
        assert client.stats.num_free_blocks == ready.num_kv_blocks
    finally:
        await client.close()


async def test_a_model_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    client = EngineClient(config(tmp_path / "nowhere"))
    await client.start()
    try:
        with pytest.raises(UsageError, match="nowhere"):
            await client.wait_ready()
    finally:
        await client.close()
