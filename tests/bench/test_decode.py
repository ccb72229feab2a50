"""The decode measurement's arithmetic and arguments; speed itself is not asserted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from strata.bench import bandwidth, decode
from strata.bench.loaded import parts_of
from strata.config import DeviceConfig
from strata.errors import CheckpointError, OptionError
from strata.plan.speed import step_bytes
from strata.store.locate import resolve
from strata.store.reader import Store
from tests.engine.tiny_llama import write_checkpoint
from tests.store import checkpoints


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("bench") / "tiny"))


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path))


def test_run_measures_and_tells_how_far_it_is(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", 1 << 22)
    monkeypatch.setattr(bandwidth, "CPU_MATRIX", 64)
    seen: list[tuple[str, int, int]] = []
    one, report = decode.run(
        checkpoint,
        "int8",
        device=DeviceConfig(device="cpu", num_threads=1),
        batch_sizes=(1, 3),
        prompt_tokens=20,
        output_tokens=9,
        progress=lambda *event: seen.append(event),
    )
    setting = report.setting
    assert (setting.dtype, setting.device, setting.num_threads) == ("int8", "cpu", 1)
    assert (one.batch_size, report.batch_size, report.prompt_tokens, report.output_tokens) == (1, 3, 20, 9)
    assert setting.rates.device > 1e8
    assert report.speed.expected is None, "a CPU"
    assert report.median_step_seconds > 0
    read = report.bytes_per_step
    assert report.moved.num_bytes["RAM"] == pytest.approx(sum(read.values()), abs=2)
    assert read["KV cache"] == 3 * (20 + 1 + decode.WARM_UP + 4) * 2 * 2 * 2 * 16 * 2
    bound = report.speed.bound.tokens_per_second
    assert bound == pytest.approx(3 * setting.rates.device / sum(read.values()), rel=1e-4)
    text, figures = "\n".join(report.lines()), report.as_dict()
    assert f"bound            {bound:.1f} tok/s, by reading RAM" in text
    assert figures["ratio"] == report.speed.measured / bound
    assert json.loads(json.dumps(figures)) == figures
    assert list(dict.fromkeys(phase for phase, _, _ in seen)) == ["convert", "verify", "load", "prepare", "decode"]
    assert all(seen[-1][0] == "decode" and done <= total for _, done, total in seen)


def weights_read(store: Store, batch_size: int) -> float:
    step = step_bytes(store.model_config, parts_of(store), context=0, num_seqs=batch_size)
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
        ({"batch_sizes": (1, 0)}, OptionError, "batch_size is 0; 1 or more"),
        ({"device": DeviceConfig("cpu", vram_bytes=1 << 30)}, OptionError, "the model runs on the CPU"),
    ],
)
def test_bad_arguments(checkpoint: str, arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(decode.run(**{"source": checkpoint, "dtype": "bf16", "progress": lambda *_: None, **arguments}))  # type: ignore[arg-type]
