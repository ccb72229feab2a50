"""Cluster DNS and the image registry, as processes on the node's address.

DNS is no pod here: it answers from the first second, needs no image, and cannot be evicted by a test.
"""

from __future__ import annotations

import json

from tests.cluster.instance import Network
from tests.cluster.machine import CACHE
from tests.cluster.parts import KWOK_STAGES
from tests.cluster.pki import kubeconfig
from tests.cluster.service import CONFIG, PKI, RELAXED, Service, Site, flags, inside

_DNS_READY_PORT = 8181


def dns_ready_url(network: Network) -> str:
    """Answers 200 once DNS knows the cluster's Services."""
    return f"http://{network.node}:{_DNS_READY_PORT}/ready"


def dns(site: Site) -> Service:
    # Pods cannot reach the world outside, so its names do not exist for them, and they learn it at once.
    corefile = f"""\
cluster.local:53 in-addr.arpa:53 {{
    errors
    ready {site.network.node}:{_DNS_READY_PORT}
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {CONFIG}/dns.kubeconfig
        ttl 5
    }}
    cache 5
    loadbalance
}}
.:53 {{
    errors
    template IN ANY . {{
        rcode NXDOMAIN
    }}
}}
"""
    return Service(
        "coredns",
        ("-conf", str(CONFIG / "Corefile")),
        files={
            "Corefile": corefile,
            "dns.kubeconfig": kubeconfig(site.instance.name, site.network.api_url, PKI, "dns"),
        },
    )


def registry(site: Site) -> Service:
    config = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {
            # In the cache: layers of several GB need not be pushed again after `down` and `up`.
            "filesystem": {"rootdirectory": str(CACHE / "registry" / site.instance.name)},
            "delete": {"enabled": True},
        },
        "http": {"addr": site.network.registry, "secret": site.instance.name},
    }
    return Service(
        "registry",
        ("serve", str(CONFIG / "registry.json")),
        environment={"OTEL_TRACES_EXPORTER": "none"},
        files={"registry.json": json.dumps(config, indent=2) + "\n"},
    )


def kwok(site: Site) -> Service:
    """Plays the kubelet for nodes that do not exist."""
    return Service(
        "kwok",
        flags(
            kubeconfig=CONFIG / "kwok.kubeconfig",
            manage_nodes_with_annotation_selector="kwok.x-k8s.io/node=fake",
            cidr=site.network.pretend_pods,
            node_lease_duration_seconds=40,
        )
        + tuple(f"--config={inside('kwok').parent / stage}" for stage in KWOK_STAGES),
        environment=RELAXED,
        files={"kwok.kubeconfig": kubeconfig(site.instance.name, site.network.api_url, PKI, "admin")},
    )


def kube_router(site: Site) -> Service:
    """Makes NetworkPolicies hold, with iptables and ipset."""
    return Service(
        "kube-router",
        flags(
            kubeconfig=CONFIG / "kube-router.kubeconfig",
            hostname_override=site.instance.node,
            service_cluster_ip_range=site.network.services,
        ),
        files={"kube-router.kubeconfig": kubeconfig(site.instance.name, site.network.api_url, PKI, "admin")},
    )
