"""Perplexity against the definition: the mean surprise of every token but the first, given what its window shows."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import WhitespaceSplit

from strata.bench import perplexity
from strata.bench.perplexity import negative_log_likelihoods
from strata.config import DeviceConfig
from strata.errors import OptionError
from tests.engine.tiny_llama import write_checkpoint as write_tiny
from tests.models import tiny

ON_CPU = DeviceConfig(device="cpu", num_threads=1)


def write_checkpoint(directory: Path) -> str:
    """A tiny checkpoint whose tokenizer splits words."""
    path = write_tiny(directory) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(path))
    return str(directory)


TOKEN_IDS = [(11 * i + i * i) % 160 for i in range(75)]


@pytest.mark.parametrize("window", [2, 16, 33, 75, 200])
def test_every_token_is_predicted_once_from_the_first_window_that_reaches_it(window: int) -> None:
    model = tiny.hf_llama()
    runner = tiny.runner_of(tiny.model_config(model), tiny.checkpoint(model))
    seen: list[tuple[int, int]] = []
    found = negative_log_likelihoods(runner, TOKEN_IDS, window, lambda _, done, total: seen.append((done, total)))
    stride = max(1, window // 2)
    from_begin = cache(lambda begin: tiny.reference_logits(model, TOKEN_IDS[begin:]).log_softmax(-1))
    expected = []
    for i in range(1, len(TOKEN_IDS)):
        begin = max(0, math.ceil((i + 1 - window) / stride)) * stride
        expected.append(-float(from_begin(begin)[i - 1 - begin, TOKEN_IDS[i]]))
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert seen[-1] == (74, 74)


def test_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    source = write_checkpoint(tmp_path / "tiny")
    tokenizer = Tokenizer.from_file(f"{source}/tokenizer.json")
    tokenizer.enable_truncation(8)  # some checkpoints come so; the whole text counts
    tokenizer.save(f"{source}/tokenizer.json")
    text = tmp_path / "text"
    text.write_text(" ".join(["w5 w6 w7"] * 30))
    report = perplexity.run(source, "bf16", text=text, window=32, device=ON_CPU, progress=lambda *_: None)
    assert report.perplexity == pytest.approx(math.exp(report.nll))
    assert report.tokens == 89
    assert "89 tokens predicted, window 32" in "\n".join(report.lines())
    assert report.as_dict()["perplexity"] == report.perplexity


@pytest.mark.parametrize(
    ("content", "window", "message"),
    [
        (None, 32, "cannot be read as UTF-8"),
        (b"\xff\xfe", 32, "cannot be read as UTF-8"),
        (b"", 32, "has 0 tokens; 2 or more are needed"),
        (b"w5 w6", 1, "window is 1; 2 or more"),
        (b"w5 w6", 0, "window is 0; 1 or more"),
        (b"w5 w6", 999, "max_model_len is 999"),
    ],
)
def test_bad_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, window: int, message: str
) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    source = write_checkpoint(tmp_path / "tiny")
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(OptionError, match=message):
        perplexity.run(source, "bf16", text=text, window=window, device=ON_CPU, progress=lambda *_: None)
