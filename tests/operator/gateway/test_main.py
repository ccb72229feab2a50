from __future__ import annotations

from pathlib import Path

import pytest

from strata_operator.gateway.main import main


def test_options_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "strata.ai/gateway-key" in said
    assert "whose models are served (default: all)" in said


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([f"--file={tmp_path}/none/gateway.json", "--keys=ns"])
    assert "none/gateway.json; its folder is not there" in capsys.readouterr().err


def test_without_credentials_it_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    assert main([f"--file={tmp_path}/gateway.json", "--keys=ns"]) == 2
    assert "no service account and no usable kubeconfig" in caplog.text
