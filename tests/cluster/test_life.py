"""How clusters come and go: beside each other, interrupted, killed, and without a trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from tests.cluster import Cluster, ClusterError, cgroups, machine, processes
from tests.cluster.instance import Instance
from tests.cluster.lifecycle import tear_down

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture
def instance(cluster: Cluster) -> Iterator[Instance]:
    """A second cluster's name, beside the first, which is up; nothing of the second remains."""
    second = Instance.named(f"{cluster.name}-life")
    yield second
    tear_down(second, purge=True)


def command_line(instance: Instance, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cluster", "--name", instance.name, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def traces(instance: Instance) -> dict[str, set[str]]:
    """Whatever a cluster can leave on this machine."""
    slot_free = {name for name in os.listdir("/sys/class/net") if name.startswith("strata")}  # noqa: PTH208
    return {
        "processes": {f"{process.pid} {process.program}" for process in processes.find(instance)},
        "interfaces": slot_free,
        "routes": {str(route) for route in machine.routes()},
        "mounts": {line for line in Path("/proc/self/mounts").read_text().splitlines() if "strata" in line},
        "control groups": {str(h / instance.cgroup) for h in cgroups.hierarchies() if (h / instance.cgroup).exists()},
        "namespaces": set(os.listdir("/run/netns")) if Path("/run/netns").exists() else set(),  # noqa: PTH208
        "files": {str(path) for path in (instance.state, instance.lock) if path.exists()},
        "usual places": {
            str(p) for p in map(Path, ("/var/lib/kubelet", "/var/lib/cni", "/run/containerd")) if p.exists()
        },
    }


def run_a_pod(cluster: Cluster) -> None:
    image = cluster.push_binary_image("probe", cluster.bin("probe"))
    container = {"name": "main", "image": image, "args": ["serve", ":8080"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "here"}, "spec": {"containers": [container]}}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod))
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "pod/here")


def test_two_clusters_stand_beside_each_other_and_one_leaves_no_trace(cluster: Cluster, instance: Instance) -> None:
    before = traces(instance)
    second = Cluster.up(instance.name)
    assert second.network.block != cluster.network.block
    for each in (cluster, second):
        assert [node["metadata"]["name"] for node in each.get_json("nodes")["items"]] == [each.node]
    run_a_pod(second)
    network = second.network
    second.down(purge=True)
    after = traces(instance)
    # A third cluster may come or go meanwhile: of links and routes only those of this one tell.
    assert not [name for name in after.pop("interfaces") if name == f"strata{network.slot}"]
    assert not [route for route in after.pop("routes") if IPv4Network(route).subnet_of(network.block)]
    assert after == {what: before[what] for what in after}
    with pytest.raises(ClusterError, match="is not up"):
        Cluster.attach(instance.name)
    assert cluster.get_json("nodes")["items"]


def after(role: str) -> Callable[[Instance], bool]:
    return lambda instance: processes.main_process(instance, role) is not None


@pytest.mark.parametrize(
    ("reached", "number"),
    [
        pytest.param(lambda instance: instance.state.exists(), signal.SIGKILL, id="killed when it had only a folder"),
        pytest.param(after("machine"), signal.SIGKILL, id="killed when it had namespaces"),
        pytest.param(after("etcd"), signal.SIGKILL, id="killed when it had a database"),
        pytest.param(after("coredns"), signal.SIGKILL, id="killed when all ran but nothing was ready"),
        pytest.param(after("kubelet"), signal.SIGINT, id="Ctrl-C when it had a kubelet"),
        pytest.param(after("containerd"), signal.SIGTERM, id="asked to end when it had containerd"),
    ],
)
def test_an_interrupted_up_goes_on_when_run_again(
    instance: Instance, reached: Callable[[Instance], bool], number: signal.Signals
) -> None:
    tear_down(instance)
    first = command_line(instance, "up")
    while not reached(instance):
        assert first.poll() is None, first.communicate()[0]
    os.killpg(first.pid, number)
    assert first.wait(20) == (-number if number == signal.SIGKILL else 130)
    if first.stdout is not None:
        first.stdout.close()
    run_a_pod(Cluster.up(instance.name))


def test_up_after_everything_died_starts_anew(instance: Instance) -> None:
    """As after a reboot: files are there, processes are not."""
    first = Cluster.up(instance.name)
    first.kubectl("create", "configmap", "old")
    processes.stop(processes.find(instance), grace_seconds=0)
    assert instance.record.exists()
    second = Cluster.up(instance.name)
    assert "old" not in second.kubectl("get", "configmaps", "-o", "name")


def test_a_cluster_of_another_version_is_replaced(instance: Instance) -> None:
    Cluster.up(instance.name).kubectl("create", "configmap", "old")
    record = json.loads(instance.record.read_text())
    instance.record.write_text(json.dumps(record | {"fingerprint": "another"}))
    assert "old" not in Cluster.up(instance.name).kubectl("get", "configmaps", "-o", "name")


def test_two_who_start_the_same_cluster_get_one(instance: Instance) -> None:
    both = [command_line(instance, "up"), command_line(instance, "up")]
    said = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted("already up" in text for text in said) == [False, True]
    main = [process.role for process in processes.find(instance) if process.is_main]
    assert len(main) == len(set(main))


def test_a_process_that_cannot_start_is_named_with_its_log(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cluster import controlplane
    from tests.cluster.service import Service

    broken = Service("etcd", ("--data-dir=/dev/null/nowhere",))
    monkeypatch.setattr(controlplane, "etcd", lambda: broken)
    with pytest.raises(ClusterError, match=r"waiting for the API server: etcd ended(.|\n)*/dev/null/nowhere"):
        Cluster.up(instance.name)


def test_down_of_what_is_not_up_is_no_error(instance: Instance) -> None:
    with command_line(instance, "down") as process:
        assert process.communicate()[0].endswith("down\n")
        assert process.returncode == 0


def test_kubectl_through_the_command_line(cluster: Cluster) -> None:
    with command_line(cluster.instance, "kubectl", "-o", "name", "get", "nodes") as process:
        assert process.communicate()[0] == f"node/{cluster.node}\n"


def test_status_names_processes_and_addresses(cluster: Cluster) -> None:
    with command_line(cluster.instance, "status") as process:
        shown = process.communicate()[0]
    for expected in (
        f"cluster {cluster.name}",
        str(cluster.kubeconfig),
        cluster.registry,
        "kube-apiserver",
        cluster.node,
    ):
        assert expected in shown
