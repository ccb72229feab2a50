"""etcd, the API server, the controller manager, the scheduler."""

from __future__ import annotations

from tests.cluster.machine import STATE
from tests.cluster.pki import kubeconfig
from tests.cluster.service import CONFIG, PKI, RELAXED, Service, Site, flags

_ETCD = "http://127.0.0.1:2379"


def etcd() -> Service:
    peer = "http://127.0.0.1:2380"
    return Service(
        "etcd",
        flags(
            data_dir=STATE / "etcd",
            unsafe_no_fsync=True,  # nothing here is worth a disk's patience
            listen_client_urls=_ETCD,
            advertise_client_urls=_ETCD,
            listen_peer_urls=peer,
            initial_advertise_peer_urls=peer,
            initial_cluster=f"default={peer}",
        ),
        environment=RELAXED,
    )


def apiserver(site: Site) -> Service:
    return Service(
        "kube-apiserver",
        flags(
            etcd_servers=_ETCD,
            advertise_address=site.network.node,
            secure_port=6443,
            service_cluster_ip_range=site.network.services,
            tls_cert_file=PKI / "apiserver.crt",
            tls_private_key_file=PKI / "apiserver.key",
            client_ca_file=PKI / "ca.crt",
            service_account_issuer="https://kubernetes.default.svc.cluster.local",
            service_account_key_file=PKI / "sa.crt",
            service_account_signing_key_file=PKI / "sa.key",
            authorization_mode="Node,RBAC",
            enable_admission_plugins="NodeRestriction",
            allow_privileged=True,
            kubelet_client_certificate=PKI / "apiserver-to-kubelet.crt",
            kubelet_client_key=PKI / "apiserver-to-kubelet.key",
            kubelet_certificate_authority=PKI / "ca.crt",
            kubelet_preferred_address_types="InternalIP",  # the node's name is in no DNS
            shutdown_delay_duration="0s",
            # Behind it may be other API servers, such as of metrics: they believe it who asks.
            requestheader_client_ca_file=PKI / "ca.crt",
            requestheader_allowed_names="front-proxy",
            requestheader_username_headers="X-Remote-User",
            requestheader_group_headers="X-Remote-Group",
            requestheader_extra_headers_prefix="X-Remote-Extra-",
            proxy_client_cert_file=PKI / "front-proxy.crt",
            proxy_client_key_file=PKI / "front-proxy.key",
        ),
        environment=RELAXED,
    )


def controller_manager(site: Site) -> Service:
    return Service(
        "kube-controller-manager",
        flags(
            kubeconfig=CONFIG / "controller-manager.kubeconfig",
            service_account_private_key_file=PKI / "sa.key",
            root_ca_file=PKI / "ca.crt",
            cluster_signing_cert_file=PKI / "ca.crt",
            cluster_signing_key_file=PKI / "ca.key",
            use_service_account_credentials=True,
            leader_elect=False,
            # The defaults of 20 and 30 make hundreds of Deployments wait for minutes.
            kube_api_qps=300,
            kube_api_burst=600,
            horizontal_pod_autoscaler_sync_period="2s",  # 15 s by default, of which every step of a test waits for one
        ),
        environment=RELAXED,
        files=_kubeconfig(site, "controller-manager"),
    )


def scheduler(site: Site) -> Service:
    return Service(
        "kube-scheduler",
        flags(kubeconfig=CONFIG / "scheduler.kubeconfig", leader_elect=False, kube_api_qps=300, kube_api_burst=600),
        environment=RELAXED,
        files=_kubeconfig(site, "scheduler"),
    )


def _kubeconfig(site: Site, identity: str) -> dict[str, str]:
    return {f"{identity}.kubeconfig": kubeconfig(site.instance.name, site.network.api_url, PKI, identity)}
