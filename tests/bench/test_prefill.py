"""The prefill measurement's arithmetic and arguments; speed itself is not asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.bench import bandwidth, prefill
from strata.config import DeviceConfig
from strata.errors import OptionError
from tests.engine.tiny_llama import write_checkpoint


@pytest.mark.parametrize(("chunk_tokens", "chunks_of"), [(None, 40), (16, 16), (500, 40)])
def test_run_measures_and_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_tokens: int | None, chunks_of: int
) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", 1 << 22)
    monkeypatch.setattr(bandwidth, "CPU_MATRIX", 64)
    seen: list[tuple[str, int, int]] = []
    short, report = prefill.run(
        str(write_checkpoint(tmp_path / "tiny")),
        "bf16",
        device=DeviceConfig(device="cpu", num_threads=1),
        prompt_tokens=(10, 40),
        chunk_tokens=chunk_tokens,
        progress=lambda *event: seen.append(event),
    )
    assert (report.prompt_tokens, report.chunk_tokens) == (40, chunks_of)
    assert (short.prompt_tokens, short.chunk_tokens) == (10, 10)
    assert report.speed.measured == 40 / report.seconds > 0
    assert f"prompt           40 tokens in chunks of {chunks_of}" in report.lines()
    assert report.as_dict()["bound_tokens_per_second"] == report.speed.bound.tokens_per_second
    assert seen[-1] == ("prefill", 160, 160)


def test_bad_arguments() -> None:
    with pytest.raises(OptionError, match="chunk_tokens is 0; 1 or more"):
        next(prefill.run("m", chunk_tokens=0, progress=lambda *_: None))
