"""`strata bench` on a tiny model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import WhitespaceSplit

from tests.engine.tiny_llama import write_checkpoint

Strata = Callable[..., subprocess.CompletedProcess[str]]


def test_both_measurements_print_their_figures(strata: Strata, tmp_path: Path) -> None:
    model = str(write_checkpoint(tmp_path / "model"))
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(f"{model}/tokenizer.json")
    options = [model, "--dtype", "bf16", "--device", "cpu", "--threads", "1"]
    result = strata("bench", "decode", *options, "--prompt-tokens", "8", "--output-tokens", "4", "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["model"], figures["prompt_tokens"], figures["output_tokens"]) == (model, 8, 4)
    assert figures["tokens_per_second"] > 0

    (tmp_path / "text").write_text("w5 " * 60)
    result = strata("bench", "perplexity", *options, "--text", str(tmp_path / "text"), "--window", "16")
    assert result.returncode == 0, result.stderr
    assert "perplexity  " in result.stdout
    assert "predict: 100 % of 59 tokens" in result.stderr


def test_a_text_that_cannot_be_read_is_named(strata: Strata, tmp_path: Path) -> None:
    result = strata("bench", "perplexity", "builtin://smollm2-135m", "--text", str(tmp_path / "nowhere"))
    assert result.returncode == 2
    assert "nowhere" in result.stderr.splitlines()[-1]
