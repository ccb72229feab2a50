"""The command: its options, and whole lives of it as a process on fake cards and a cluster in memory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strata_operator.agent.main import main
from strata_operator.api.node import NODE_KIND
from tests.operator.agent.cluster import HttpCluster
from tests.operator.live.harness import eventually

NODE = "gpu-1"
CARDS = "cards:\n- {kind: rtx3090, power_limit: 300000}\n"
NODE_OBJECT = {
    "kind": "Node",
    "metadata": {"name": NODE, "uid": "uid-node", "resourceVersion": "1"},
    "spec": {},
    "status": {"allocatable": {}},
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: COMMAND"),
        (["tune"], "invalid choice: 'tune'"),
        (["run"], "--node is needed"),
        (["run", "--node=n", "--listen=8080"], "ADDRESS:PORT is needed"),
        (["run", "--node=n", "--listen=0.0.0.0:0"], "ADDRESS:PORT is needed"),
        (["uninstall"], "--daemonset"),
        (["uninstall", "--daemonset=agent"], "NAMESPACE/NAME is needed"),
        (["show", "--node=n"], "unrecognized arguments"),
    ],
)
def test_bad_options(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cards: 3\n", "a table with cards is needed"),
        ("cards: []\nfans: 2\n", "known are"),
        ("cards: [{kind: rtx9090}]\n", "of kind 'rtx9090'; known are rtx3090, rtx4090, rtx4090-48g, h200"),
        ("cards: [{kind: rtx3090, colour: red}]\n", "a card has no 'colour'"),
        ("cards: [\n", "while parsing"),
    ],
)
def test_a_fake_that_cannot_be_read_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "cards.yaml").write_text(text)
    done = agent("show", f"--fake={tmp_path}/cards.yaml")
    assert done.returncode == 2
    assert words in done.stdout


def test_help_needs_none_of_the_agent_s_requirements() -> None:
    absent = "'kubernetes', 'prometheus_client', 'yaml', 'pynvml', 'kopf'"
    code = f"import sys; sys.modules |= dict.fromkeys([{absent}]); from strata_operator.agent.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "kubectl patch stratanode" in done.stdout


def test_without_its_requirements_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['yaml'] = None; from strata_operator.agent.main import main; main()"
    command = [sys.executable, "-c", code, "show", f"--fake={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "yaml is not installed; the agent needs: pip install '.[operator]'" in done.stderr


def test_the_agent_needs_no_kopf_and_no_torch() -> None:
    code = "import sys, strata_operator.agent.process; sys.exit(bool({'torch', 'kopf', 'aiohttp'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_show(tmp_path: Path) -> None:
    (tmp_path / "cards.yaml").write_text("cards:\n- {kind: rtx3090}\n- {kind: rtx4090-48g, lost: true}\n")
    done = agent("show", f"--fake={tmp_path}/cards.yaml")
    assert done.returncode == 0
    assert "=== FAKE ===" in done.stdout
    for words in ("limit 350 W (factory 350, 100 to 400 may be set)", "PCIe 1.0 x16", "GPU is lost", "Pretend CPU"):
        assert words in done.stdout


def agent(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strata_operator.agent.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})


class Life:
    """The process that runs now, its cluster, and the fake's file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = HttpCluster(NODE_OBJECT)
        self.cards = directory / "cards.yaml"
        self.cards.write_text(CARDS)
        self.env = {**os.environ, "KUBECONFIG": str(directory / "kubeconfig")}

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        arguments = ["run", f"--node={NODE}", f"--fake={self.cards}", f"--listen=127.0.0.1:{self.port}"]
        command = [sys.executable, "-m", "strata_operator.agent.main", *arguments]
        with (self.directory / "log").open("a") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.env, text=True)
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, self.log
        finally:
            process.kill()
            process.wait()

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.cluster.object(NODE_KIND, NODE).get("status") or {})

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def metric(self, name: str, label: str) -> float | None:
        lines = [
            line for line in self.get("/metrics")[1].splitlines() if line.startswith(f"{name}{{") and label in line
        ]
        return float(lines[0].rsplit(" ", 1)[1]) if lines else None

    def until(self, what: Any) -> None:
        eventually(lambda: bool(what()), 30, lambda: f"{self.status}\n{self.log}")

    def want(self, *wishes: dict[str, Any]) -> None:
        obj = self.cluster.object(NODE_KIND, NODE)
        obj["spec"] = {**obj["spec"], "tuning": {"models": list(wishes)}}
        obj["metadata"]["generation"] += 1
        self.cluster.write(obj)

    def enforced(self) -> list[int | None]:
        tuned = (self.status.get("enforced") or {}).get("gpus") or []
        return [one.get("enforced") for gpu in tuned for one in gpu["settings"]]


def test_a_whole_life(tmp_path: Path) -> None:
    """Found, tuned as soon as the watch tells, shown to Prometheus, ended without a change, restored by hand."""
    life = Life(tmp_path)
    with life.cluster.served(tmp_path / "kubeconfig"):
        with life.running():
            life.until(lambda: life.status.get("gpus"))
            life.until(lambda: life.get("/readyz") == (200, "ok\n"))
            assert life.get("/healthz") == (200, "ok\n")
            assert life.get("/elsewhere")[0] == 404
            life.want({"model": "llm/a", "powerLimitWatts": 280})
            life.until(lambda: life.enforced() == [280])
            life.until(lambda: life.metric("strata_gpu_power_limit_watts", 'kind="enforced"') == 280.0)
            life.cards.write_text("cards:\n- {kind: rtx3090, lost: true}\n")
            life.until(lambda: UNHEALTHY in str(life.cluster.object("Node", NODE)["spec"]))
        original = {"uuid": life.status["gpus"][0]["uuid"], "powerLimitMilliwatts": 300_000, "persistenceMode": False}
        assert life.status["originals"]["gpus"] == [original]  # SIGTERM gives nothing back: models go on
        life.cards.write_text(CARDS)
        done = agent("restore", f"--node={NODE}", f"--fake={life.cards}", KUBECONFIG=life.env["KUBECONFIG"])
        assert done.returncode == 0, done.stdout
        assert "every setting has its original value" in done.stdout
        assert life.cluster.object(NODE_KIND, NODE)["spec"]["suspend"] is True
        assert "originals" not in life.status
    assert "Traceback" not in life.log


UNHEALTHY = "strata.ai/gpu-unhealthy"
