"""The one real node: containerd, the kubelet, kube-proxy, and the network that pods get."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.pki import kubeconfig
from tests.cluster.service import CONFIG, PKI, Service, Site, flags, inside

CNI_PLUGINS = Path("/usr/lib/cni")  # where Debian and Ubuntu put them
PAUSE_IMAGE = "localhost/pause:1"
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")


def containerd(site: Site) -> Service:
    registry = site.network.registry
    plain_http = f"""\
server = "http://{registry}"
[host."http://{registry}"]
capabilities = ["pull", "resolve"]
"""
    config = f"""\
version = 3
[grpc]
address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.images".registry]
config_path = "{CONFIG}/registries"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true  # we may ourselves run with a score that must not be lowered
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{CONFIG}/network"
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
    return Service(
        "containerd",
        flags(config=CONFIG / "containerd.toml"),
        # containerd looks for its shim on the PATH.
        environment={
            "PATH": f"{inside('containerd').parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        },
        files={
            "containerd.toml": config,
            f"registries/{registry}/hosts.toml": plain_http,
            "network/10-pods.conflist": _pod_network(site),
        },
    )


def kubelet(site: Site) -> Service:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{site.instance.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(PKI / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(PKI / "kubelet.crt"),
        "tlsPrivateKeyFile": str(PKI / "kubelet.key"),
        "clusterDNS": [str(site.network.node)],
        "clusterDomain": "cluster.local",
        "resolvConf": "",  # pods have no use for this machine's resolver: they cannot reach it
        "maxPods": 250,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "serializeImagePulls": False,
        # An image imported under a name of its own is refused otherwise, if its content was once pulled under another.
        "imagePullCredentialsVerificationPolicy": "NeverVerify",
        # A half-full disk of a workstation is no reason to evict pods or delete images.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "localStorageCapacityIsolation": False,
        "enforceNodeAllocatable": [],
    }
    return Service(
        "kubelet",
        flags(
            config=CONFIG / "kubelet.json",
            kubeconfig=CONFIG / "kubelet.kubeconfig",
            hostname_override=site.instance.node,
            node_ip=site.network.node,
        ),
        files={
            "kubelet.json": _json(config),
            "kubelet.kubeconfig": kubeconfig(site.instance.name, site.network.api_url, PKI, "kubelet"),
        },
    )


def proxy(site: Site) -> Service:
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(CONFIG / "proxy.kubeconfig")},
        "clusterCIDR": str(site.network.pods),
        "hostnameOverride": site.instance.node,
        # These settings belong to the whole machine, not to our namespace: hands off.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nftables": {"minSyncPeriod": "100ms"},
    }
    return Service(
        "kube-proxy",
        flags(config=CONFIG / "proxy.json"),
        files={
            "proxy.json": _json(config),
            "proxy.kubeconfig": kubeconfig(site.instance.name, site.network.api_url, PKI, "proxy"),
        },
    )


def _pod_network(site: Site) -> str:
    # Every pod on a link of its own, all traffic routed: a bridge would carry an answer between two of its pods past
    # the address translation of Services, unless the kernel has br_netfilter.
    link = {
        "type": "ptp",
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(site.network.pods)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return _json({"cniVersion": "1.0.0", "name": "pods", "plugins": [link, ports]})


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
