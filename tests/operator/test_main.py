from __future__ import annotations

import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from strata_operator.api.route import Parent
from strata_operator.main import gateway_of, labels_of, leases_of, main
from tests.operator.cluster.server import Answer, ScriptedServer


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--engine-image"),
        (["--engine-image=e", "--listen=8080"], "ADDRESS:PORT is needed"),
        (["--engine-image=e", "--listen=0.0.0.0:99999"], "ADDRESS:PORT is needed"),
        (["--engine-image=e", "--workers=0"], "at least 1 is needed"),
        (["--engine-image=e", "--lease=strata"], "NAMESPACE/NAME is needed"),
        (["--engine-image=e", "--lease=a/b/c"], "NAMESPACE/NAME is needed"),
        (["--engine-image=e", "--lease="], "NAMESPACE/NAME is needed"),
        (["--engine-image=e", "--log-level=LOUD"], "invalid choice"),
        (["--engine-image=e", "--monitor-kind=Probe"], "invalid choice"),
        (["--engine-image=e", "--monitor-labels=release"], "KEY=VALUE,... is needed"),
        (["--engine-image=e", "--routes", "--route-gateway=inference"], "NAMESPACE/NAME or NAMESPACE/NAME/LISTENER is"),
        (["--engine-image=e", "--route-domain=example.com"], "need --routes"),
        (["--engine-image=e", "--listen=:8080", "--unknown"], "unrecognized arguments"),
    ],
)
def test_bad_options(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "namespaces", "leases"),
    [
        pytest.param(None, (), [("default", "strata-operator")], id="two installations have one in common"),
        pytest.param(
            None, ("b", "a"), [("a", "strata-operator"), ("b", "strata-operator")], id="all take them in one order"
        ),
        pytest.param("ns/l", ("a", "b"), [("ns", "l")], id="one of the user's"),
        pytest.param("none", (), [], id="none"),
    ],
)
def test_the_leases_follow_from_whose_models_are_served(
    option: str | None, namespaces: tuple[str, ...], leases: list[tuple[str, str]]
) -> None:
    assert leases_of(option, namespaces) == tuple(leases)


@pytest.mark.parametrize(
    ("option", "labels"), [("", {}), ("a=b,c.d/e=", {"a": "b", "c.d/e": ""}), ("a", None), ("=b", None)]
)
def test_labels_of_monitors(option: str, labels: dict[str, str] | None) -> None:
    assert labels_of(option) == labels


@pytest.mark.parametrize(
    ("option", "parent"),
    [("a/b", Parent("b", "a")), ("a/b/c", Parent("b", "a", "c")), ("a", None), ("a/b/c/d", None), ("/b", None)],
)
def test_the_gateway_of_routes(option: str, parent: Parent | None) -> None:
    assert gateway_of(option) == parent


def run_without(absent: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that cannot import that package."""
    code = f"import sys; sys.modules[{absent!r}] = None; from strata_operator.main import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("absent", ["aiohttp", "kopf", "kubernetes", "prometheus_client"])
def test_without_its_extra_it_says_what_to_install(absent: str) -> None:
    done = run_without(absent, "--engine-image=e")
    assert done.returncode == 2
    assert f"{absent} is not installed; the operator needs: pip install '.[operator]'" in done.stderr


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_need_no_extra(option: str) -> None:
    done = run_without("kopf", option)
    assert (done.returncode, done.stderr) == (0, "")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def test_a_cluster_without_the_crd_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedServer(lambda request: Answer(404, {"message": "not found"})) as server:
        address = server.client().config.host
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
            with socket.create_server(("127.0.0.1", 0)) as taken:
                assert main(["--engine-image=e", f"--listen=127.0.0.1:{taken.getsockname()[1]}"]) == 2
            assert "address already in use; name a free one" in caplog.text
            assert main(["--engine-image=e", f"--listen=127.0.0.1:{free_port()}"]) == 2
    assert "kubectl apply --server-side -f charts/strata/crds/" in caplog.text


def test_the_operator_needs_no_torch() -> None:
    code = "import sys, strata_operator.process; sys.exit(bool({'torch', 'kubernetes_asyncio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
