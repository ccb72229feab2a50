"""The prefill measurement's arithmetic and arguments; speed itself is not asserted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from strata.bench import bandwidth, prefill
from strata.bench.prefill import PrefillReport, multiplications_per_token
from strata.config import DeviceConfig, read_hf_config
from strata.errors import OptionError
from tests.engine.tiny_llama import EXPERTS, write_checkpoint

REPORT = PrefillReport(
    model="m",
    dtype="int4",
    device="cuda",
    num_threads=2,
    prompt_tokens=2048,
    chunk_tokens=2048,
    weight_bytes=4_000_000_000,
    multiplications_per_token=3_000_000_000,
    bandwidth=4e12,
    multiply_rate=600e12,
    seconds=0.1024,
)


def test_products_bound_a_long_prompt_and_memory_a_short_one() -> None:
    assert REPORT.bound_tokens_per_second == pytest.approx(100_000)
    short = replace(REPORT, prompt_tokens=20, chunk_tokens=2048)
    assert short.bound_tokens_per_second == pytest.approx(20 / 1e-3)
    chunked = replace(REPORT, chunk_tokens=20)
    assert chunked.bound_tokens_per_second == pytest.approx(2048 / (103 * 1e-3)), "every chunk reads the weights"
    lines = "\n".join(REPORT.lines())
    assert "prefill          20000 tok/s, 102.4 ms to the first token" in lines
    assert "prefill / bound  0.20" in lines
    assert json.loads(json.dumps(REPORT.as_dict()))["ratio"] == pytest.approx(0.2)


def test_a_token_is_multiplied_with_the_experts_that_it_takes(tmp_path: Path) -> None:
    config = json.loads((write_checkpoint(tmp_path / "tiny", **EXPERTS) / "config.json").read_text())
    attention = 64 * 16 * (4 + 2 + 2) + 64 * 16 * 4
    experts = 2 * 3 * 64 * 32 + 4 * 64
    assert multiplications_per_token(read_hf_config(config, origin="tiny")) == 2 * (attention + experts)


@pytest.mark.parametrize(("chunk_tokens", "chunks_of"), [(None, 40), (16, 16), (500, 40)])
def test_run_measures_and_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_tokens: int | None, chunks_of: int
) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", 1 << 22)
    monkeypatch.setattr(bandwidth, "CPU_MATRIX", 64)
    seen: list[tuple[str, int, int]] = []
    report = prefill.run(
        str(write_checkpoint(tmp_path / "tiny")),
        "bf16",
        device=DeviceConfig(device="cpu", num_threads=1),
        prompt_tokens=40,
        chunk_tokens=chunk_tokens,
        progress=lambda *event: seen.append(event),
    )
    assert (report.prompt_tokens, report.chunk_tokens) == (40, chunks_of)
    assert min(report.seconds, report.bandwidth, report.multiply_rate) > 0
    assert seen[-1] == ("prefill", 160, 160)


def test_bad_arguments() -> None:
    with pytest.raises(OptionError, match="chunk_tokens is 0; 1 or more"):
        prefill.run("m", chunk_tokens=0, progress=lambda *_: None)
