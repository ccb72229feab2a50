"""The command ``strata-chart``: exit codes, and what it says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from strata_operator.chart.main import main
from tests.operator.live.harness import CHART


@pytest.mark.parametrize(
    "arguments", [["crds", str(CHART / "crds")], ["test", "--namespaces=a,b"]], ids=["crds", "test"]
)
def test_without_a_cluster_it_says_what_it_needs(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main(arguments) == 2
    assert "no usable kubeconfig" in caplog.text


@pytest.mark.parametrize("arguments", [[], ["crds"], ["crds", "folder", "--force"]], ids=str)
def test_wrong_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: strata-chart" in capsys.readouterr().err
