"""The operator as a process beside the cluster, with the rights of its own ServiceAccount and no more."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import Cluster
from tests.cluster.build import build
from tests.cluster.errors import ClusterError
from tests.cluster.parts import part

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "strata"
NAMESPACE, RELEASE = "strata-operator-tests", "strata-tests"
HERE = Path(__file__).parent
# This checkout's, whichever is installed.
_PATH = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "engine")])


def build_engine(cluster: Cluster, directory: Path) -> str:
    """Compile the stand-in and push it; returns the image's reference."""
    program = directory / "strata"
    subprocess.run(["cc", "-static", "-Os", "-o", program, HERE / "engine.c"], check=True)
    return cluster.push_binary_image("strata-stand-in", program)


def install_crds(cluster: Cluster) -> None:
    """Returns once the API server knows them."""
    by = ("--server-side", "--force-conflicts", "--field-manager=helm")  # whose they are afterwards
    cluster.kubectl("apply", *by, "-f", str(CHART / "crds"))
    for plural in ("stratamodels", "stratanodes"):
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{plural}.strata.ai", "--timeout=60s")


@contextmanager
def stopped_operators(cluster: Cluster) -> Iterator[None]:
    """No installed operator serves models meanwhile, or takes back wishes for nodes of models that are not there."""
    selector = ("-A", "-l", "app.kubernetes.io/name=strata-operator")
    installed = json.loads(cluster.kubectl("get", "deployments", *selector, "-o", "json"))["items"]

    def scale(one: Mapping[str, Any], replicas: int) -> None:
        place, name = one["metadata"]["namespace"], one["metadata"]["name"]
        cluster.kubectl("-n", place, "scale", f"deployment/{name}", f"--replicas={replicas}")

    for one in installed:
        scale(one, 0)
    cluster.wait_for(
        lambda: not cluster.kubectl("get", "pods", *selector, "-o", "name").strip(), 90, "the installed operator to end"
    )
    try:
        yield
    finally:
        for one in installed:
            scale(one, one["spec"]["replicas"])


def install_definitions(cluster: Cluster, *names: str) -> None:
    """Those of another project, by the names of the cluster's parts; returns once the API server serves them."""
    for name in names:
        build([part(name)], lambda _: None)
        cluster.kubectl("apply", "--server-side", "-f", str(part(name).folder))
        cluster.kubectl("wait", "--for=condition=Established", "-f", str(part(name).folder), "--timeout=60s")


def remove_definitions(cluster: Cluster, *names: str) -> None:
    """And all objects of theirs."""
    for name in names:
        cluster.kubectl("delete", "-f", str(part(name).folder), "--ignore-not-found", "--wait")


def install_rights(cluster: Cluster, directory: Path, *sets: str, release: str = RELEASE) -> Path:
    """The chart's CRDs, ServiceAccount and roles; returns a kubeconfig that acts as that account. ``sets``: values."""
    install_crds(cluster)
    if not _exists(cluster, "namespace", NAMESPACE):
        cluster.kubectl("create", "namespace", NAMESPACE)
    needed = ("serviceaccount", "clusterrole", "clusterrolebinding", "role", "rolebinding")
    shown = [f"--show-only=templates/{name}.yaml" for name in needed]
    values = [f"--set={one}" for one in sets]
    helm = [str(cluster.bin("helm")), "template", release, str(CHART), "--namespace", NAMESPACE, *values, *shown]
    cluster.kubectl("apply", "-f", "-", input=subprocess.run(helm, check=True, capture_output=True, text=True).stdout)
    token = cluster.kubectl("create", "token", release, "-n", NAMESPACE, "--duration=3h").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    config["contexts"] = [
        {"name": "operator", "context": {"cluster": config["clusters"][0]["name"], "user": "operator"}}
    ]
    config["current-context"] = "operator"
    path = directory / f"{release}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def remove_rights(cluster: Cluster, release: str = RELEASE) -> None:
    """Those in the cluster as a whole, and to the Lease."""
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", release, "--ignore-not-found")
    cluster.kubectl("-n", "default", "delete", "role,rolebinding", release, "--ignore-not-found")


def _exists(cluster: Cluster, kind: str, name: str) -> bool:
    return bool(cluster.kubectl("get", kind, name, "--ignore-not-found", "-o", "name").strip())


class OperatorProcess:
    """``strata-operator`` of this checkout. ``lease``: value of its option, None for the default; with none at all it
    need not wait for that of one that was killed."""

    def __init__(
        self, kubeconfig: Path, engine_image: str, log: Path, *options: str, lease: str | None = "none"
    ) -> None:
        self.options = options if lease is None else (*options, f"--lease={lease}")
        self.kubeconfig = kubeconfig
        self.engine_image = engine_image
        self.log = log
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once its caches are full."""
        self.spawn()
        eventually(self.is_ready, 60, lambda: f"the operator is not ready:\n{self.tail()}")

    def is_ready(self) -> bool:
        return self._get("/readyz") is not None

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Returns at once."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "strata_operator.main"),
                    f"--engine-image={self.engine_image}",
                    f"--listen=127.0.0.1:{self.port}",
                    *self.options,
                ],
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "PYTHONPATH": _PATH},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def kill(self) -> None:
        """SIGKILL: no time to end anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    def metric(self, pattern: str) -> float:
        """Sum of the samples whose line matches the pattern."""
        text = self._get("/metrics") or ""
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(pattern, line))

    def writes(self) -> float:
        """Requests to the API server that could change something."""
        return self.metric(r'strata_operator_api_requests_total\{.*verb="(apply|create|delete|patch)"')

    def requests(self) -> Counter[str]:
        """To the API server so far, by verb."""
        text = self._get("/metrics") or ""
        found: Counter[str] = Counter()
        for verb, number in re.findall(r'^strata_operator_api_requests_total\{.*verb="(\w+)"\} (\S+)', text, re.M):
            found[verb] += int(float(number))
        return found

    def cpu_seconds(self) -> float:
        """Of all its threads since it started."""
        return cpu_seconds(self._pid)

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def reconciles(self) -> float:
        return self.metric(r"strata_operator_reconciles_total\{")

    def leads(self) -> bool:
        """Whether it holds its Lease."""
        return self.metric(r"strata_operator_leader ") == 1

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return None


class Models:
    """StrataModels of one namespace, through kubectl as a person would use it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as in subprocess
        return self.cluster.kubectl("-n", self.namespace, *args, input=input)

    def answers(self) -> bool:
        """Whether the API server is up."""
        try:
            return self.cluster.kubectl("get", "--raw", "/readyz") == "ok"
        except ClusterError:
            return False

    def apply(self, name: str, source: str = "builtin://smollm2-135m", **spec: Any) -> None:
        """A small CPU model; ``spec`` replaces whole fields of the spec."""
        self.kubectl("apply", "-f", "-", input=json.dumps(manifest(name, source, **spec)))

    def get(self, kind: str, name: str) -> Any:
        """The object, None where there is none."""
        text = self.kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text.strip() else None

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """That condition, empty while it is not there or tells of an older generation."""
        obj = self.get("sm", name) or {}
        for condition in (obj.get("status") or {}).get("conditions") or []:
            if condition["type"] == kind and condition["observedGeneration"] == obj["metadata"]["generation"]:
                return dict(condition)
        return {}

    def wait_for(
        self, name: str, kind: str, status: str, reason: str | None = None, seconds: float = 120
    ) -> dict[str, Any]:
        """Wait until the condition has that status (and reason); returns it."""

        def met() -> bool:
            now = self.condition(name, kind)
            return now.get("status") == status and reason in (None, now.get("reason"))

        eventually(met, seconds, lambda: f"{name}: no {kind}={status} {reason or ''}: {self.describe(name)}")
        return self.condition(name, kind)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events posted on that model."""
        selector = f"involvedObject.kind=StrataModel,involvedObject.name={name}"
        return list(json.loads(self.kubectl("get", "events", "--field-selector", selector, "-o", "json"))["items"])

    def times(self, name: str, reason: str) -> int:
        """How often that event was posted; repeats are counted in one object."""
        return sum(event["count"] for event in self.events(name) if event["reason"] == reason)

    def wait_for_event(self, name: str, reason: str, seconds: float = 60) -> dict[str, Any]:
        """The event is posted after the status: it may come a moment later."""

        def found() -> list[dict[str, Any]]:
            return [event for event in self.events(name) if event["reason"] == reason]

        eventually(lambda: bool(found()), seconds, lambda: f"{name}: no event {reason}: {self.events(name)}")
        return found()[0]

    def describe(self, name: str) -> str:
        shown = self.kubectl("get", "sm", name, "-o", "jsonpath={.status}")
        return shown + "\n" + self.kubectl("get", "pods,deployments", "-o", "wide")


def manifest(name: str, source: str = "builtin://smollm2-135m", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "strata.ai/v1alpha1",
        "kind": "StrataModel",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": source},
            "engine": {"maxModelLen": 2048},  # with which the built-in model fits into so little memory
            "hardware": {"accelerator": "cpu", "cpu": 1, "memory": "1Gi"},
            "cache": {"hostPath": f"/tmp/strata-operator-tests/{name}"},
            **spec,
        },
    }


def cpu_seconds(pid: int) -> float:
    """Of all its threads since it started."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def eventually(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Poll until it holds; AssertionError with the words of ``what`` otherwise."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
