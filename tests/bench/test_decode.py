"""The decode measurement's arithmetic and arguments; speed itself is not asserted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from strata.bench import bandwidth, decode
from strata.bench.decode import DecodeReport
from strata.bench.loaded import read_of_step
from strata.config import DeviceConfig
from strata.errors import CheckpointError, OptionError
from strata.experts.counts import ExpertCounts
from strata.store.locate import resolve
from strata.store.reader import Store
from tests.engine.tiny_llama import write_checkpoint
from tests.store import checkpoints

REPORT = DecodeReport(
    model="m",
    dtype="int4",
    device="cpu",
    num_threads=2,
    batch_size=1,
    prompt_tokens=64,
    output_tokens=100,
    bytes_per_step={"weights": 600_000_000, "experts": 300_000_000, "KV cache": 100_000_000},
    bandwidth=25e9,
    bound_tokens_per_second=25.0,
    prefill_seconds=0.5,
    decode_seconds=5.0,
    median_step_seconds=0.05,
    experts=None,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("bench") / "tiny"))


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path))


def test_rates() -> None:
    table = REPORT.as_dict()
    assert (table["tokens_per_second"], table["bound_tokens_per_second"], table["ratio"]) == (20.0, 25.0, 0.8)
    assert replace(REPORT, batch_size=4).tokens_per_second == 80.0
    lines = "\n".join(REPORT.lines())
    assert "read a step      weights 572.2 MiB, experts 286.1 MiB, KV cache 95.4 MiB" in lines
    assert "bound            25.0 tok/s" in lines
    assert "decode           20.0 tok/s, median step 50.00 ms" in lines
    assert "decode / bound   0.80" in lines
    assert json.loads(json.dumps(table)) == table


def test_experts_beyond_vram_are_told_of() -> None:
    shares = ExpertCounts(needed=200, in_vram=100, fetched=25).shares()
    lines = "\n".join(replace(REPORT, experts=shares).lines())
    assert "bound            25.0 tok/s, were all experts in VRAM" in lines
    assert "experts          50.0% in VRAM, 12.5% fetched, 37.5% on the CPU" in lines


def test_run_measures_and_tells_how_far_it_is(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", 1 << 22)
    seen: list[tuple[str, int, int]] = []
    report = decode.run(
        checkpoint,
        "int8",
        device=DeviceConfig(device="cpu", num_threads=1),
        batch_size=3,
        prompt_tokens=20,
        output_tokens=9,
        progress=lambda *event: seen.append(event),
    )
    assert (report.dtype, report.device, report.num_threads) == ("int8", "cpu", 1)
    assert (report.batch_size, report.prompt_tokens, report.output_tokens) == (3, 20, 9)
    assert report.bandwidth > 1e8
    assert 0 < report.median_step_seconds <= report.decode_seconds
    read = report.bytes_per_step
    assert read["KV cache"] == 3 * (20 + 1 + decode.WARM_UP + 4) * 2 * 2 * 2 * 16 * 2
    assert report.bound_tokens_per_second == pytest.approx(3 * report.bandwidth / sum(read.values()))
    assert list(dict.fromkeys(phase for phase, _, _ in seen)) == ["convert", "verify", "load", "prepare", "decode"]
    assert all(seen[-1][0] == "decode" and done <= total for _, done, total in seen)


def weights_read(store: Store, batch_size: int) -> float:
    step = read_of_step(store, context=0, num_seqs=batch_size)
    return step.weights + step.experts


def test_an_embedding_that_is_not_the_head_costs_one_row(checkpoint: str) -> None:
    store = Store.open(resolve(checkpoint, "bf16"))
    assert store.num_bytes - weights_read(store, 1) == 95 * 64 * 2
    tied = replace(store, model_config=replace(store.model_config, tie_word_embeddings=True))
    head = store.manifest.contents.weights["lm_head.weight"].num_bytes
    assert weights_read(tied, 1) == store.num_bytes - head


def test_a_step_reads_the_experts_that_its_tokens_take(tmp_path: Path) -> None:
    table = checkpoints.config(architectures=["MixtralForCausalLM"], num_local_experts=8, num_experts_per_tok=2)
    store = Store.open(resolve(str(checkpoints.write_hf(tmp_path / "mixtral", table)), "bf16"))
    experts = 2 * 8 * 3 * 64 * 96 * 2  # of two layers, in bf16
    rest = sum(weight.num_bytes for weight in store.manifest.contents.weights.values())
    assert weights_read(store, 1) == rest + experts * 2 / 8
    assert weights_read(store, 3) == pytest.approx(rest + experts * (1 - 0.75**3), abs=1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt_tokens": 0}, OptionError, "prompt_tokens is 0; 1 or more"),
        ({"output_tokens": -1}, OptionError, "output_tokens is -1; 1 or more"),
        ({"dtype": "fp8"}, OptionError, "dtype is 'fp8'; one of bf16, int8, int4"),
        ({"prompt_tokens": 500}, OptionError, "max_model_len is 637; the checkpoint's positions reach 128"),
        ({"source": "/nowhere"}, CheckpointError, "/nowhere"),
    ],
)
def test_bad_arguments(checkpoint: str, arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        decode.run(**{"source": checkpoint, "dtype": "bf16", "progress": lambda *_: None, **arguments})  # type: ignore[arg-type]
