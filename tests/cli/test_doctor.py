"""`strata doctor` on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata.cli.main import main
from tests.cli.conftest import bare


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))


def test_this_machine_can_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "builtin://smollm2-135m"]) == 0
    out = capsys.readouterr().out
    for topic in (
        "cpu features",
        "NUMA",
        "memory",
        "memlock",
        "hugepages",
        "/dev/shm",
        "cache",
        "packages",
        "tokenizer",
    ):
        assert f"  {topic} " in out, topic
    assert "FAIL" not in out


def test_a_failure_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "/no/such/model"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  model" in out
    assert out.count("a store made by `strata convert`") == 1
    assert out.splitlines()[-1].startswith("FAIL  model"), "no advice below an error that has its own"


def test_an_unknown_home_directory_is_one_finding_of_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("STRATA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", dict[int, object]().__getitem__)
    assert main(["doctor", "builtin://smollm2-135m"]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert [line.split()[1] for line in failed] == ["cache", "model"]
    assert "the home directory is not known" in failed[0]


def test_json_holds_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "/no/such/model", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    assert {tuple(finding) for finding in findings} == {("topic", "level", "message", "advice")}
    assert findings[-1]["level"] == "FAIL"
    assert "A model is a store made by" in findings[-1]["message"]


def test_a_bare_install_is_told_what_it_lacks() -> None:
    """No package but the standard library: that is what the doctor is for."""
    result = bare("doctor", "builtin://smollm2-135m")
    assert result.returncode == 1, result.stderr
    assert "FAIL  packages       not installed: torch, " in result.stdout
    assert "pip install '.[serve]'" in result.stdout
    assert "FAIL  model          not looked at" in result.stdout
