"""`strata fetch`, and other commands with a model of the Hub, as a user runs them; the hub is on this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from strata.cli.main import main
from strata.store.convert import convert
from strata.store.reader import Store
from tests.cli.conftest import COMMAND
from tests.engine.tiny_llama import write_checkpoint
from tests.store.hub import Hub, serving, speak_with

NAME = "acme/Tiny-1B"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with one model."""
    with serving() as running:
        path = write_checkpoint(tmp_path / "source")
        running.repo(NAME).commit({file.name: file.read_bytes() for file in path.iterdir()})
        yield running


@pytest.fixture
def environment(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Of a user who has fetched nothing yet; this process has the same."""
    speak_with(hub, tmp_path / "hf" / "hub", monkeypatch)
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    mine = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "STRATA_CACHE_DIR": str(tmp_path / "cache")}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return inherited | mine


def test_what_was_fetched_is_served_without_the_network(
    hub: Hub,
    environment: Mapping[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    assert main(["fetch", NAME, "--dtype", "bf16"]) == 0
    shown = capsys.readouterr().out
    path = Path(shown.removeprefix(f"{NAME} is at ").split(":")[0])
    assert shown == f"{NAME} is at {path}: strata serve {NAME} --dtype bf16\n"
    assert Store.open(path).dtype == "bf16"
    assert [f"{phase}: 100 %" in caplog.text for phase in ("download", "convert", "verify")] == [True] * 3
    hub.requests.clear()

    options = ["--dtype", "bf16", "--device", "cpu", "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, "serve", NAME, *options], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
        assert line.startswith(f"Strata serves {NAME} (bf16, cpu"), (tmp_path / "log").read_text()
        models = httpx.get(f"{line.split()[-1]}/v1/models").json()
        process.terminate()
        process.stdout.read()
    assert process.wait() == 0
    assert [model["id"] for model in models["data"]] == [NAME]
    assert not hub.requests


def test_a_killed_download_goes_on_where_it_was(hub: Hub, environment: Mapping[str, str], tmp_path: Path) -> None:
    data = b"GGUF" + os.urandom(24 << 20)  # the client hands on 10 MiB at a time
    hub.repo("acme/big").commit({"m.gguf": data})
    hub.holds["m.gguf"] = 21 << 20
    process = subprocess.Popen([*COMMAND, "fetch", "acme/big"], stdout=subprocess.DEVNULL, env=environment)
    assert hub.held.wait(60)
    blobs = tmp_path / "hf" / "hub" / "models--acme--big" / "blobs"
    while sum(file.stat().st_size for file in blobs.glob("*.incomplete")) < 20 << 20:
        assert process.poll() is None
    process.kill()
    process.wait()
    hub.holds.clear()
    hub.release.set()
    hub.requests.clear()
    again = [*COMMAND, "fetch", "acme/big"]
    result = subprocess.run(again, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.removeprefix("acme/big is at ").split(": ")[0]).read_bytes() == data
    assert [r.range for r in hub.requests if r.method == "GET" and "/cdn/" in r.path] == [f"bytes={20 << 20}-"]


@pytest.mark.usefixtures("environment")
def test_a_model_of_the_hub_is_converted_to_a_directory(hub: Hub, tmp_path: Path) -> None:
    commit = hub.repo(NAME).revisions["main"]
    hub.repo(NAME).commit({"README.md": b"nothing left"})
    options = ["--revision", commit, "--output_dir", str(tmp_path / "store"), "--dtype", "int8"]
    assert main(["convert", "--model_name_or_path", NAME, *options]) == 0
    assert Store.open(tmp_path / "store").dtype == "int8"


def test_what_is_here_must_be_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    assert main(["fetch", str(tmp_path)]) == 2
    assert "is not a model: it holds notes.txt" in capsys.readouterr().err
    assert main(["fetch", str(tmp_path / "notes.txt")]) == 2
    assert "is not a GGUF file" in capsys.readouterr().err
    checkpoint = write_checkpoint(tmp_path / "tiny")
    assert main(["fetch", str(checkpoint)]) == 0
    assert main(["fetch", str(convert(str(checkpoint), tmp_path / "store", "int4"))]) == 0


@pytest.mark.usefixtures("environment")
def test_what_cannot_be_fetched_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "acme/nothing"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("strata: error: 'acme/nothing' is no model: it is no path here, and")
