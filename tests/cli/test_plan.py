"""`strata plan` from the config.json of public models."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strata.cli.main import main
from strata.config.public import SHAPES
from strata.store.convert import convert
from strata.store.peek import Peek, peek
from strata.store.reader import Store
from tests.cli.conftest import bare
from tests.engine.tiny_llama import write_checkpoint
from tests.plan.configs import public
from tests.store.test_experts_sources import gpt_oss_mxfp4

QWEN = "qwen3-30b-a3b"
CARD = ["--gpu", "rtx3090", "--pcie", "3.0x16", "--dram-gbps", "60", "--max-model-len", "8192"]


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_part_and_place_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QWEN, *CARD]) == 0
    out = capsys.readouterr().out
    for words in (
        "8 of 128 experts a token",
        "attention",
        "routed experts",
        "one of 6144",
        "KV cache (bf16): 96.0 KiB a token, 768.0 MiB for 8192 tokens",
        "workspace",
        "host RAM: experts",
        "disk: the store",
        "misses over PCIe alone",
        "limit",
        "GeForce RTX 3090: 24.0 GiB of VRAM, read at 936 GB/s",
        "PCIe 3.0x16 carries 12.0 GB/s",
    ):
        assert words in out, words
    assert "dense MLPs" not in out, "the model has none"


def test_json_holds_what_the_tables_say(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, QWEN, *CARD)
    assert set(found["dtypes"]) >= {"bf16", "int8", "int4"}
    int4 = found["dtypes"]["int4"]
    assert int4["fit"]["fits"] is True
    assert [line["context"] for line in int4["decode"]] == [1024, 8192]
    assert int4["decode"][0]["limit"] == "device memory"
    assert found["dtypes"]["bf16"]["decode"][0]["limit"] == "experts from host memory"
    assert found["kv_bytes_per_token"] == 2 * 48 * 4 * 128 * 2


def test_flags_reach_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    def speed(*more: str) -> float:
        found = as_json(capsys, QWEN, *CARD, "--dtype", "bf16", *more)
        return float(found["dtypes"]["bf16"]["decode"][0]["tokens_per_second"])

    plain = speed()
    assert speed("--vram-gib", "48") > plain
    assert speed("--vram-gbps", "2000") > plain
    assert speed("--hit-share", "0.9") > plain
    assert speed("--dram-gbps", "30") < plain
    assert speed("--cpu-gbps", "10") < plain
    assert speed("--ram-gib", "32") < plain, "some experts are on disk"
    assert speed("--ram-gib", "32", "--disk-gbps", "6") > speed("--ram-gib", "32")
    assert speed("--gpu-memory-utilization", "0.5") < plain
    assert speed("--concurrency", "4") > plain


def test_without_a_card_this_machine_s_memory_counts(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "builtin://smollm2-135m", "--dtype", "int4")
    assert found["dtypes"]["int4"]["fit"]["fits"] is True
    assert "the CPU computes" in found["assumptions"][0]
    little = as_json(capsys, "builtin://smollm2-135m", "--dtype", "int4", "--ram-gib", "0.1")
    assert "cpu has not the memory for one sequence of" in little["dtypes"]["int4"]["fit"]["problem"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "rtx1"], "known: "),
        (["--gpu", "rtx3090", "--pcie", "9"], "e.g. 3.0x16"),
        (["--pcie", "3.0x16"], "--pcie is given without --gpu"),
        (["--hit-share", "0.5"], "--hit-share is given without --gpu"),
        (["--gpu", "rtx3090", "--dram-gbps", "0"], "a number above 0"),
        (["--max-model-len", "50000"], "40960"),
    ],
)
def test_what_cannot_be_planned_says_why(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QWEN, *arguments]) == 2
    assert words in capsys.readouterr().err


def test_on_a_cpu_tables_speak_of_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "builtin://smollm2-135m", "--dtype", "int4", "--ram-gib", "3"]) == 0
    found = capsys.readouterr().out
    assert "share of a step that goes to reading RAM" in found
    assert re.search(r"weights without experts +125\.8 MiB", found), "what serve logs as well"
    assert re.search(r"disk: the store +87\.2 MiB", found)


def test_no_expert_is_placed_where_the_model_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "qwen3-30b-a3b", "--dtype", "int4", "--ram-gib", "12"]) == 0
    assert re.search(r"experts of 6144 +-\n", capsys.readouterr().out)


def test_experts_on_disk_are_warned_of_with_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    card = ("--gpu", "rtx3090", "--pcie", "3.0x16", "--ram-gib")
    assert main(["plan", "gpt-oss-120b", *card, "32", "--dtype", "int4"]) == 0
    (warning,) = re.findall("^warning: .*", capsys.readouterr().out, re.MULTILINE)
    assert warning.startswith(
        "warning: int4: neither host memory nor VRAM has room for 1948 of 4608 experts, 24.1 GiB: "
    )
    found = re.search(r"bound decoding to ([0-9.]+) tok/s; RAM for all allows ([0-9.]+)\.$", warning)
    assert found is not None
    decode = as_json(capsys, "gpt-oss-120b", *card, "32")["dtypes"]["int4"]["decode"][0]
    assert float(found[1]) == pytest.approx(decode["tokens_per_second"], abs=0.05)
    assert float(found[2]) == pytest.approx(decode["in_ram_tokens_per_second"], abs=0.05)
    whole = as_json(capsys, "gpt-oss-120b", *card, "128")["dtypes"]["int4"]["decode"][0]
    assert decode["in_ram_tokens_per_second"] == pytest.approx(whole["tokens_per_second"])
    assert whole["in_ram_tokens_per_second"] is None


def test_torch_is_not_needed() -> None:
    code = (
        "import sys\n"
        "from strata.cli.main import main\n"
        "assert main(['plan', 'builtin://smollm2-135m']) == 0\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == "False"


@pytest.mark.parametrize("model", [QWEN, "Qwen/Qwen3-30B-A3B"])
def test_a_shape_that_comes_along_needs_no_package_and_no_network(model: str) -> None:
    assert "of context, expected" in bare("plan", model, "--gpu", "rtx4090", "--max-model-len", "4096").stdout


def test_a_mistyped_shape_is_answered_with_the_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "qwen3-30b"]) == 2
    error = capsys.readouterr().err
    assert "'qwen3-30b' is no model" in error
    assert "Shapes that come along: gpt-oss-120b, " in error


@pytest.mark.parametrize(("model", "package"), [("Qwen/Qwen3-1.7B", "huggingface-hub"), ("m.gguf", "gguf")])
def test_what_needs_a_package_names_it(model: str, package: str) -> None:
    result = bare("plan", model)
    assert result.returncode == 2
    assert f"strata: error: {package}" in result.stderr
    assert "pip install '.[serve]'" in result.stderr


# --- where a shape is read from


def test_a_directory_needs_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(SHAPES["qwen3-8b"].read_text())
    assert peek(str(tmp_path)) == peek(str(tmp_path / "config.json")) == Peek(public("qwen3-8b"))


def test_a_gguf_tells_its_shape_in_its_header() -> None:
    found = peek("builtin://smollm2-135m")
    assert (found.model.num_layers, found.model.hidden_size, found.model.vocab_size) == (30, 576, 49152)
    assert (found.dtype, found.expert_format) == (None, None)


def test_a_store_has_one_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = convert(str(write_checkpoint(tmp_path / "model")), tmp_path / "store", "int8")
    assert peek(str(store)).dtype == "int8"
    found = as_json(capsys, str(store))
    assert list(found["dtypes"]) == ["int8"]
    assert found["dtypes"]["int8"]["fit"]["store_bytes"] == pytest.approx(Store.open(store).num_bytes, rel=0.05)
    assert main(["plan", str(store), "--dtype", "int4"]) == 2
    assert "the store is int8" in capsys.readouterr().err


def test_experts_that_come_packed_stay_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gpt-oss as it is published: its experts are MXFP4, 4.25 bits a weight."""
    (tmp_path / "config.json").write_text(SHAPES["gpt-oss-120b"].read_text())
    found = as_json(capsys, str(tmp_path), "--ram-gib", "128")
    assert "the experts stay in mxfp4" in found["assumptions"][0]
    biases = 128 * 36 * 3 * 2880 * 2
    for dtype in found["dtypes"].values():
        assert dtype["weights"]["experts"] == 128 * 36 * 3 * 2880 * 2880 * 4.25 / 8 + biases
    assert found["dtypes"]["int4"]["weights"]["attention"] < found["dtypes"]["bf16"]["weights"]["attention"]


def test_a_path_of_a_shapes_name_is_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / QWEN).mkdir()
    (tmp_path / QWEN / "config.json").write_text(SHAPES["qwen3-8b"].read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["plan", QWEN]) == 0
    assert "36 layers" in capsys.readouterr().out


def test_packed_experts_are_known_by_their_files(tmp_path: Path) -> None:
    checkpoint = gpt_oss_mxfp4(tmp_path / "model")
    store = convert(str(checkpoint), tmp_path / "store", "int4")
    assert peek(str(checkpoint)).expert_format == peek(str(store)).expert_format == "mxfp4"


def test_a_table_of_n_grams_is_beside_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "qwen3.8-flash-next", "--gpu", "h100", "--dtype", "int4", "--max-model-len", "4096"]) == 0
    shown = capsys.readouterr().out
    assert "tables of n-grams, on disk                   101.7 GiB" in shown
    assert "int4: tables of n-grams: 101.7 GiB on disk, of which a token reads 16 rows; with as much RAM" in shown
    assert "several residual streams run on a CPU alone yet" in shown
