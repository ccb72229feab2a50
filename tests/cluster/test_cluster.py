"""What a pod, a Service and a user of the cluster may rely on."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster, ClusterError, processes
from tests.cluster.shell import answers, direct

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def probe(cluster: Cluster) -> str:
    """An image, in the registry, whose one program serves and asks."""
    return cluster.push_binary_image("probe", cluster.bin("probe"))


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("_", "-")[:50].strip("-")
    cluster.kubectl("create", "namespace", name)
    cluster.wait_for(lambda: _exists(cluster, "-n", name, "serviceaccount", "default"), 30, "the service account")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    cluster.kubectl("-n", name, "delete", "pods", "--all", "--grace-period=0", "--force")


def _exists(cluster: Cluster, *what: str) -> bool:
    return bool(cluster.kubectl("get", *what, "--ignore-not-found", "-o", "name").strip())


def _pod(name: str, image: str, *args: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "args": list(args), "imagePullPolicy": "Always"}
    container |= {"resources": spec.pop("resources", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0} | spec,
    }


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }


def _apply(cluster: Cluster, namespace: str, *objects: dict[str, Any]) -> None:
    for item in objects:
        cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(item))


def _phase(cluster: Cluster, namespace: str, pod: str) -> str:
    return str(cluster.get_json("-n", namespace, "pod", pod)["status"].get("phase", ""))


def _output(cluster: Cluster, namespace: str, pod: dict[str, Any]) -> str:
    """Runs a pod to its end; what it printed."""
    _apply(cluster, namespace, pod)
    name = pod["metadata"]["name"]
    cluster.wait_for(lambda: _phase(cluster, namespace, name) in ("Succeeded", "Failed"), 120, f"pod {name} to end")
    output = cluster.kubectl("-n", namespace, "logs", name)
    assert _phase(cluster, namespace, name) == "Succeeded", output
    return output


def _serve(cluster: Cluster, namespace: str, probe: str, name: str = "server") -> str:
    """A server behind a Service of the same name; its ClusterIP, once it answers."""
    _apply(cluster, namespace, _pod(name, probe, "serve", ":8080"), _service(name))
    address = str(cluster.get_json("-n", namespace, "service", name)["spec"]["clusterIP"])
    cluster.wait_for(lambda: answers(f"http://{address}/"), 120, f"Service {name} at {address}")
    return address


def oldest(cluster: Cluster) -> dict[str, int]:
    """Process ids by role. What a process starts looks like itself for an instant, before it runs another program."""
    youngest_first = sorted(processes.find(cluster.instance), key=lambda process: process.start, reverse=True)
    return {process.role: process.pid for process in youngest_first if process.is_main}


def test_up_again_changes_nothing(cluster: Cluster) -> None:
    # Between two programs of its start a process has the role of neither.
    cluster.wait_for(lambda: "kwok" in oldest(cluster), 30, "what was started last to run its own program")
    before = oldest(cluster)
    said: list[str] = []
    again = Cluster.up(cluster.name, report=said.append)
    assert again == cluster
    assert said[-1] == f"cluster {cluster.name}: already up, registry {cluster.registry}"
    assert oldest(cluster) == before


def test_the_built_versions_run(cluster: Cluster) -> None:
    versions = json.loads(cluster.kubectl("version", "-o", "json"))
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"]
    node = cluster.get_json("node", cluster.node)["status"]["nodeInfo"]
    assert node["kubeletVersion"] == versions["serverVersion"]["gitVersion"]
    assert subprocess.run([cluster.bin("helm"), "list"], env=cluster.env(), capture_output=True).returncode == 0


def test_its_environment_taken_over_twice_is_the_same(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    once = cluster.env()
    for name, value in once.items():
        monkeypatch.setenv(name, value)
    assert cluster.env() == once


def test_a_pod_pulled_from_the_registry_resolves_service_names(cluster: Cluster, namespace: str, probe: str) -> None:
    name = "kubernetes.default.svc.cluster.local"
    addresses = _output(cluster, namespace, _pod("lookup", probe, "resolve", name)).split()
    assert addresses == [str(cluster.network.services[1])]


def test_a_short_service_name_resolves_in_its_namespace(cluster: Cluster, namespace: str, probe: str) -> None:
    address = _serve(cluster, namespace, probe)
    assert _output(cluster, namespace, _pod("lookup", probe, "resolve", "server")).split() == [address]


def test_a_name_outside_the_cluster_fails_at_once(cluster: Cluster, namespace: str, probe: str) -> None:
    _apply(cluster, namespace, _pod("lookup", probe, "resolve", "example.invalid"))
    cluster.wait_for(lambda: _phase(cluster, namespace, "lookup") == "Failed", 120, "the lookup to fail")
    assert "no such host" in cluster.kubectl("-n", namespace, "logs", "lookup")


def test_a_cluster_ip_answers_from_the_host(cluster: Cluster, namespace: str, probe: str) -> None:
    address = _serve(cluster, namespace, probe)
    with direct.open(f"http://{address}/", timeout=10) as response:
        assert response.read() == b"server\n"


def test_pods_reach_each_other_and_themselves_through_a_service(cluster: Cluster, namespace: str, probe: str) -> None:
    _serve(cluster, namespace, probe)
    url = f"http://server.{namespace}/"  # within the server, "server" alone is its own host name
    assert _output(cluster, namespace, _pod("client", probe, "get", url)) == "server\n"
    assert cluster.kubectl("-n", namespace, "exec", "server", "--", "/probe", "get", url) == "server\n"


def test_network_policies_hold_while_they_are_enforced(cluster: Cluster, namespace: str, probe: str) -> None:
    _serve(cluster, namespace, probe)
    _apply(cluster, namespace, _pod("client", probe, "serve", ":8080"))
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/client", "--timeout=120s")
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "nobody"},
        "spec": {"podSelector": {"matchLabels": {"app": "server"}}, "policyTypes": ["Ingress"]},
    }
    _apply(cluster, namespace, policy)

    def is_answered() -> bool:
        try:
            cluster.kubectl("-n", namespace, "exec", "client", "--", "/probe", "get", f"http://server.{namespace}/")
        except ClusterError:
            return False
        return True

    assert is_answered()
    with cluster.enforced_policies():
        cluster.wait_for(lambda: not is_answered(), 60, "the policy to hold")
        cluster.kubectl("-n", namespace, "delete", "networkpolicy", "nobody")
        cluster.wait_for(is_answered, 60, "the policy to be gone")
    assert "KUBE-ROUTER" not in cluster.on_node("iptables-save", "--table", "filter")
    assert cluster.on_node("ipset", "list", "-name") == ""


def test_the_api_servers_service_answers_with_its_certificate(cluster: Cluster) -> None:
    context = ssl.create_default_context(cafile=str(cluster.instance.state / "pki" / "ca.crt"))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(f"https://{cluster.network.services[1]}/readyz", timeout=10) as response:
        assert response.read() == b"ok"


def test_port_forward_reaches_a_pod(cluster: Cluster, namespace: str, probe: str) -> None:
    _serve(cluster, namespace, probe)
    command = [str(cluster.bin("kubectl")), "-n", namespace, "port-forward", "pod/server", ":8080"]
    with subprocess.Popen(command, env=cluster.env(), stdout=subprocess.PIPE, text=True) as forward:
        assert forward.stdout is not None
        port = int(forward.stdout.readline().split(" -> ")[0].rpartition(":")[2])
        with direct.open(f"http://127.0.0.1:{port}/", timeout=10) as response:
            assert response.read() == b"server\n"
        forward.terminate()


def test_an_imported_image_runs_without_the_registry(cluster: Cluster, namespace: str, tmp_path: Any) -> None:
    from tests.cluster.images import of_binary

    archive = tmp_path / "image.tar"
    archive.write_bytes(of_binary(cluster.bin("probe")).archive("localhost/imported:1"))
    cluster.load_image(archive)
    pod = _pod("imported", "localhost/imported:1", "resolve", "kubernetes.default.svc.cluster.local")
    pod["spec"]["containers"][0]["imagePullPolicy"] = "Never"
    assert _output(cluster, namespace, pod).split() == [str(cluster.network.services[1])]


def test_a_pretend_gpu_is_scheduled_and_taken_back(cluster: Cluster, namespace: str, probe: str) -> None:
    wanting = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "nodeName": None}
    selector = {"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090"}
    cluster.add_pretend_gpu(count=1, product="NVIDIA-GeForce-RTX-4090", vram_mib=24564)
    try:
        _apply(cluster, namespace, _pod("first", probe, "serve", ":8080", nodeSelector=selector, **wanting))
        cluster.wait_for(lambda: _phase(cluster, namespace, "first") == "Running", 120, "the pod to get its GPU")
        _apply(cluster, namespace, _pod("second", probe, "serve", ":8080", nodeSelector=selector, **wanting))
        cluster.wait_for(lambda: "Insufficient nvidia.com/gpu" in _why_pending(cluster, namespace, "second"), 120, "no")
    finally:
        cluster.remove_pretend_gpu()
    node = cluster.get_json("node", cluster.node)
    assert "nvidia.com/gpu" not in node["status"]["capacity"]
    assert not [label for label in node["metadata"]["labels"] if label.startswith("nvidia.com")]


def _why_pending(cluster: Cluster, namespace: str, pod: str) -> str:
    conditions = cluster.get_json("-n", namespace, "pod", pod)["status"].get("conditions", [])
    return " ".join(condition.get("message", "") for condition in conditions)


def test_pretend_gpu_nodes_are_ready_labelled_and_run_pods(cluster: Cluster, namespace: str, probe: str) -> None:
    names = cluster.add_gpu_nodes(3, product="NVIDIA-GeForce-RTX-3090", vram_mib=24576, count=2)
    try:
        assert len(set(names)) == 3
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=120s", *(f"node/{name}" for name in names))
        nodes = cluster.get_json("nodes", "-l", "nvidia.com/gpu.product=NVIDIA-GeForce-RTX-3090")["items"]
        assert sorted(node["metadata"]["name"] for node in nodes) == sorted(names)
        assert {node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes} == {"2"}
        assert {node["metadata"]["labels"]["nvidia.com/gpu.memory"] for node in nodes} == {"24576"}
        wanting = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
        _apply(cluster, namespace, _pod("pretend", probe, "serve", ":8080", **wanting))
        cluster.wait_for(lambda: _phase(cluster, namespace, "pretend") == "Running", 120, "the pretend pod to run")
        assert cluster.get_json("-n", namespace, "pod", "pretend")["spec"]["nodeName"] in names
        more = cluster.add_gpu_nodes(1)
        assert not set(more) & set(names)
    finally:
        cluster.remove_gpu_nodes()
    assert len(cluster.get_json("nodes")["items"]) == 1


def test_a_stopped_process_is_seen_and_started_again(cluster: Cluster) -> None:
    cluster.stop("kube-scheduler")
    assert processes.main_process(cluster.instance, "kube-scheduler") is None
    said: list[str] = []
    Cluster.up(cluster.name, report=said.append)
    assert processes.main_process(cluster.instance, "kube-scheduler") is not None
    assert "already up" not in said[-1]


def test_a_port_taken_by_someone_on_this_machine_is_no_hindrance(cluster: Cluster) -> None:
    """The cluster has addresses of its own, so the usual ports stay free for others."""
    for port in (2379, 6443, 5000, 10250):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))


def test_logs_of_an_unknown_process_list_the_known_ones(cluster: Cluster) -> None:
    assert "etcd-version" in cluster.logs("etcd", lines=1000)
    with pytest.raises(ClusterError, match=r"no log of 'nonsense'; it has .*kubelet"):
        cluster.logs("nonsense")
