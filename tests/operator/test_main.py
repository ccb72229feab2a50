from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import yaml

from strata_operator.api.errors import ApiError
from strata_operator.main import check_crd, main
from tests.operator.cluster.server import Answer, ScriptedServer, refusal


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--engine-image"),
        (["--engine-image=e", "--listen=8080"], "ADDRESS:PORT is needed"),
        (["--engine-image=e", "--listen=0.0.0.0:99999"], "ADDRESS:PORT is needed"),
        (["--engine-image=e", "--workers=0"], "at least 1 is needed"),
        (["--engine-image=e", "--log-level=LOUD"], "invalid choice"),
        (["--engine-image=e", "--listen=:8080", "--unknown"], "unrecognized arguments"),
    ],
)
def test_bad_options(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_a_missing_crd_says_what_to_install() -> None:
    refused = pytest.raises(ApiError, match="the CRD StrataModel is not installed")
    with ScriptedServer(lambda request: refusal(404, "the server could not find it")) as server, refused:
        check_crd(server.client())


def test_a_missing_right_is_told_in_the_server_s_words() -> None:
    refused = pytest.raises(ApiError, match="cannot list stratamodels")
    with ScriptedServer(lambda request: refusal(403, "cannot list stratamodels")) as server, refused:
        check_crd(server.client())


def test_a_cluster_without_the_crd_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedServer(lambda request: Answer(404, {"message": "not found"})) as server:
        address = server.client()._api.configuration.host
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        with caplog.at_level(logging.ERROR):
            assert main(["--engine-image=e", "--listen=127.0.0.1:1"]) == 2
    assert "kubectl apply -f manifests/crds/" in caplog.text


def test_the_operator_needs_no_torch() -> None:
    import subprocess

    code = "import sys, strata_operator.main; sys.exit(bool({'torch', 'kubernetes_asyncio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
