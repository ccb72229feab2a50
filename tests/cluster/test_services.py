"""What the processes are told, as text: no process runs here."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cluster import addons, controlplane, node
from tests.cluster.instance import Instance, Network
from tests.cluster.lifecycle import fingerprint, services
from tests.cluster.node import CNI_PLUGINS
from tests.cluster.service import Site, flags

SITE = Site(Instance("demo", Path("/state/demo")), Network(3))
SERVICES = services(SITE)


def test_flags_are_written_as_go_programs_read_them() -> None:
    assert flags(leader_elect=False, kube_api_qps=300) == ("--leader-elect=false", "--kube-api-qps=300")


def test_every_process_has_a_name_of_its_own() -> None:
    roles = [service.role for service in SERVICES]
    assert len(roles) == len(set(roles))


def test_no_file_belongs_to_two_processes() -> None:
    files = [name for service in SERVICES for name in service.files]
    assert len(files) == len(set(files))


def test_containerd_pulls_from_the_registry_by_plain_http() -> None:
    service = node.containerd(SITE)
    config = tomllib.loads(service.files["containerd.toml"])
    images = config["plugins"]["io.containerd.cri.v1.images"]
    assert images["registry"]["config_path"].endswith("/config/registries")
    assert images["pinned_images"]["sandbox"] == node.PAUSE_IMAGE
    hosts = tomllib.loads(service.files["registries/10.99.255.2:5000/hosts.toml"])
    assert hosts["host"] == {"http://10.99.255.2:5000": {"capabilities": ["pull", "resolve"]}}


def test_pods_get_addresses_of_the_node_s_range() -> None:
    network = json.loads(node.containerd(SITE).files["network/10-pods.conflist"])
    link = network["plugins"][0]
    assert link["ipam"]["ranges"] == [[{"subnet": "10.99.64.0/20"}]]
    assert all(name == Path(name).name for name in (plugin["type"] for plugin in network["plugins"]))
    assert CNI_PLUGINS.is_absolute()


def test_the_kubelet_keeps_its_pods_in_the_cluster_s_control_group() -> None:
    config = json.loads(node.kubelet(SITE).files["kubelet.json"])
    assert config["cgroupRoot"] == f"/{SITE.instance.cgroup}"
    assert config["clusterDNS"] == ["10.99.255.2"]


def test_kubeconfigs_point_to_the_api_server() -> None:
    for service in SERVICES:
        for name, text in service.files.items():
            if name.endswith(".kubeconfig"):
                assert json.loads(text)["clusters"][0]["cluster"]["server"] == "https://10.99.255.2:6443"


def test_the_api_server_gives_services_addresses_of_their_range() -> None:
    assert "--service-cluster-ip-range=10.99.0.0/18" in controlplane.apiserver(SITE).arguments


def test_each_cluster_has_its_own_images() -> None:
    folders = set()
    for name in ("one", "two"):
        config = json.loads(addons.registry(Site(Instance(name, Path("/state")), Network(0))).files["registry.json"])
        folders.add(config["storage"]["filesystem"]["rootdirectory"])
    assert len(folders) == 2


@pytest.mark.parametrize("other", [Network(4), Network(31)], ids=str)
def test_another_network_is_another_fingerprint(other: Network) -> None:
    assert fingerprint(Site(SITE.instance, other)) != fingerprint(SITE)
    assert fingerprint(Site(SITE.instance, Network(3))) == fingerprint(SITE)
