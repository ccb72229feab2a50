"""`strata bench` on a tiny model, and on a server over the fake engine."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import WhitespaceSplit

from strata.cli.main import main
from strata.engine.fake import FakeEngine
from strata.errors import OverloadedError
from strata.request import GenerationRequest
from tests.cli.conftest import COMMAND
from tests.engine.tiny_llama import CONFIG, write_checkpoint
from tests.server.conftest import Live


def test_all_measurements_print_their_figures(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    model = str(write_checkpoint(tmp_path / "model"))
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(f"{model}/tokenizer.json")
    options = [model, "--dtype", "bf16", "--device", "cpu", "--threads", "1"]
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    short = ["--prompt-tokens", "8", "--output-tokens", "4"]
    assert main(["bench", "decode", *options, *short, "--batch-size", "1,2", "--json"]) == 0
    figures, two = map(json.loads, capsys.readouterr().out.splitlines())
    assert (figures["batch_size"], two["batch_size"]) == (1, 2)
    assert (figures["model"], figures["prompt_tokens"], figures["output_tokens"]) == (model, 8, 4)
    assert figures["tokens_per_second"] > 0

    assert main(["bench", "prefill", *options, "--prompt-tokens", "9", "--max-num-batched-tokens", "4"]) == 0
    assert "prompt           9 tokens in chunks of 4" in capsys.readouterr().out
    assert main(["bench", "prefill", *options, "--vram-gib", "24"]) == 2
    assert "the model runs on the CPU" in capsys.readouterr().err

    assert main(["bench", "offload", *options]) == 2
    assert "nothing to place" in capsys.readouterr().err
    assert main(["bench", "offload", *options, "--expert-vram-gib", "1"]) == 2
    assert "give --vram-shares and --ways" in capsys.readouterr().err

    (tmp_path / "text").write_text("w5 " * 60)
    assert main(["bench", "perplexity", *options, "--text", str(tmp_path / "text"), "--window", "16"]) == 0
    assert "perplexity  " in capsys.readouterr().out
    assert "predict: 100 % of 59 tokens" in caplog.text


def test_a_shape_is_written_and_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    shape = str(tmp_path / "config.json")
    assert main(["bench", "shape", shape, "--dtype", "int8", "--layers", "1", "--out", str(tmp_path / "store")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/store is ready: strata bench decode {tmp_path}/store\n"
    assert "write: 100 % of" in caplog.text
    assert main(["bench", "shape", shape, "--out", str(tmp_path / "other"), "--router-skew", "9"]) == 2
    options = ["--device", "cpu", "--threads", "1", "--prompt-tokens", "8", "--output-tokens", "4"]
    assert main(["bench", "decode", str(tmp_path / "store"), *options]) == 0


def test_a_text_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "perplexity", "builtin://smollm2-135m", "--text", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err.splitlines()[-1]


# --- strata bench kernels

EXPERTS = ["--hidden-size", "64", "--intermediate-size", "32", "--experts-per-token", "2", "--memory-mib", "4"]


def test_kernels_are_measured_each_with_each(capsys: pytest.CaptureFixture[str]) -> None:
    how = ["--variants", "scalar", "--threads", "1", "--prefetch-bytes", "0,64", "--activations", "int8,int16"]
    assert main(["bench", "kernels", *EXPERTS, *how, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["prefetch_bytes"], one["activations"]) for one in found] == [
        (0, "int8"), (0, "int16"), (64, "int8"), (64, "int16")
    ]  # fmt: skip
    for one in found:
        assert one["share"] == one["rate"] / one["read"] > 0
        # Two experts of 4 + 4 row blocks of gate and up with 2 groups, 4 of down with one; see native/layout.
        assert one["rate"] * one["job_seconds"] == pytest.approx(2 * (4 * (320 + 2 * 256) + 4 * (320 + 256)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threads", "9999"], "9999 threads need as many cores"),
        (["--variants", "sse9"], "this CPU cannot run 'sse9'"),
        (["--hidden-size", "40"], "int4 has groups of 32"),
        (["--tokens", "100000"], "give it more memory"),
        (["--experts", "int4:64x32:2/4"], "--experts is measured on a GPU: add --device cuda"),
        (["--misses"], "--misses is measured on a GPU: add --device cuda"),
        (["--device", "cuda", "--experts", "int4:64x32"], "experts are written DTYPE"),
        (["--device", "cuda", "--misses", "int4:64x32:9/4"], "at most all of them"),
    ],
)
def test_kernels_that_cannot_be_measured(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert main(["bench", "kernels", *EXPERTS, *options]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


# --- strata bench serve

LOAD = ["--mix", "1:20:30", "--requests", "4", "--warmup", "1"]


def test_a_server_is_measured_and_the_report_written(
    live: Callable[..., Live], tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    url = live(max_model_len=1024).url
    report = str(tmp_path / "report")
    assert main(["bench", "serve", "--url", url, *LOAD, "--concurrency", "1,2", "--output", report]) == 0
    shown = capsys.readouterr().out
    assert "| 2 streams | 4 of 4 | 0 |" in shown
    assert "2 streams: 100 % of 120 tokens" in caplog.text
    assert (tmp_path / "report" / "report.md").read_text() == shown
    assert (tmp_path / "report" / "report.png").is_file()


def test_figures_as_json(live: Callable[..., Live], capsys: pytest.CaptureFixture[str]) -> None:
    url = live(max_model_len=1024).url
    assert main(["bench", "serve", "--url", f"{url}/v1", *LOAD, "--request-rate", "100", "--json"]) == 0
    (level,) = json.loads(capsys.readouterr().out)["levels"]
    assert (level["load"], level["num_answered"], level["output_tokens"]) == ("100 requests/s", 4, 120)


def test_without_matplotlib_the_picture_is_left_out_and_said(
    live: Callable[..., Live], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    url = live(max_model_len=1024).url
    assert main(["bench", "serve", "--url", url, *LOAD, "--concurrency", "1", "--output", str(tmp_path)]) == 0
    assert "pip install '.[plot]'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]


class Refusing(FakeEngine):
    """Lets one probe and the warm-up in, and nothing else."""

    def _admit(self, request: GenerationRequest) -> None:
        if len(self.requests) == 2:
            raise OverloadedError("no room")
        super()._admit(request)


class Stopping(FakeEngine):
    """Gives the third request after one probe and the warm-up no tokens."""

    def _admit(self, request: GenerationRequest) -> None:
        super()._admit(request)
        if len(self.requests) == 5:
            self.pause()


def test_no_answer_at_all_is_a_failure(live: Callable[..., Live], capsys: pytest.CaptureFixture[str]) -> None:
    url = live(kind=Refusing, max_model_len=1024).url
    assert main(["bench", "serve", "--url", url, *LOAD, "--concurrency", "2"]) == 1
    assert "| 2 streams | 4 | HTTP 429: no room |" in capsys.readouterr().out


def test_ctrl_c_writes_what_there_is(live: Callable[..., Live], tmp_path: Path) -> None:
    server = live(kind=Stopping, max_model_len=1024)
    options = ["--url", server.url, *LOAD, "--concurrency", "1,2", "--output", str(tmp_path)]
    with subprocess.Popen(
        [*COMMAND, "bench", "serve", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        server.wait_until(lambda engine: len(engine.requests) == 5)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "| 1 stream | 2 of 4 | 0 |" in out
    assert "2 streams" not in out
    assert "interrupted" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "localhost"], "give one like http://127.0.0.1:8000"),
        (["--url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9 (Connection refused); start"),
        (["--mix", "1:2"], "weight:prompt:output"),
        (["--concurrency", "4,x"], "a whole number from 1 to 4096"),
        (["--request-rate", "0"], "a number above 0"),
        (["--concurrency", "1", "--request-rate", "1"], "not allowed with"),
    ],
)
def test_what_cannot_be_measured_says_why(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_missing_packages_name_their_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "aiohttp" else object())
    assert main(["bench", "serve"]) == 2
    assert "pip install '.[bench]'" in capsys.readouterr().err
