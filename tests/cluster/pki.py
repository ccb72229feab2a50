"""Certificates: one authority, and an identity for each who talks to the API server or answers for it."""

from __future__ import annotations

import base64
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.instance import Instance, Network
from tests.cluster.shell import run

_DAYS = "3650"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")  # 30 times faster to make than RSA


@dataclass(frozen=True)
class Identity:
    name: str  # of its files
    user: str
    group: str = ""
    names: tuple[str, ...] = ()  # under which it answers as a server

    @property
    def subject(self) -> str:
        return (f"/O={self.group}" if self.group else "") + f"/CN={self.user}"


def identities(instance: Instance, network: Network) -> tuple[Identity, ...]:
    kubernetes = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    served = (*(f"DNS:{name}" for name in ("localhost", *kubernetes)), "IP:127.0.0.1")
    return (
        Identity("apiserver", "kube-apiserver", names=(*served, f"IP:{network.node}", f"IP:{network.services[1]}")),
        Identity("admin", "admin", "system:masters"),
        Identity("apiserver-to-kubelet", "kube-apiserver-kubelet-client", "system:masters"),
        Identity("front-proxy", "front-proxy"),  # the API server, to other API servers behind it
        Identity("controller-manager", "system:kube-controller-manager"),
        Identity("scheduler", "system:kube-scheduler"),
        Identity("proxy", "system:kube-proxy"),
        Identity("dns", "coredns", "system:masters"),
        Identity(
            "kubelet",
            f"system:node:{instance.node}",
            "system:nodes",
            names=(f"DNS:{instance.node}", f"IP:{network.node}"),
        ),
    )


def create(folder: Path, who: tuple[Identity, ...]) -> None:
    """Fills `folder`, which appears only complete, with NAME.crt and NAME.key of all, ca.* and sa.* (token signing)."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pki-", dir=folder.parent) as scratch:
        made = Path(scratch) / "pki"
        made.mkdir(mode=0o700)
        _self_signed(made / "ca", "/CN=strata-ca")
        _self_signed(made / "sa", "/CN=service-accounts")
        for identity in who:
            _signed(made, identity)
        for leftover in made.glob("*.csr"):
            leftover.unlink()
        made.rename(folder)


def kubeconfig(name: str, server: str, pki: Path, identity: str, *, embed: bool = False) -> str:
    """As JSON, which is YAML too. `embed` puts the certificates themselves in, for use anywhere on this machine."""

    def reference(field: str, file: str) -> dict[str, str]:
        if embed:
            return {f"{field}-data": base64.b64encode((pki / file).read_bytes()).decode()}
        return {field: str(pki / file)}

    cluster = {"server": server} | reference("certificate-authority", "ca.crt")
    user = reference("client-certificate", f"{identity}.crt") | reference("client-key", f"{identity}.key")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": identity, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": identity}}],
        "current-context": name,
    }
    return json.dumps(config, indent=2) + "\n"


def _self_signed(stem: Path, subject: str) -> None:
    files = ("-keyout", stem.with_suffix(".key"), "-out", stem.with_suffix(".crt"))
    run(["openssl", "req", "-x509", *_KEY, "-days", _DAYS, "-subj", subject, *files])


def _signed(folder: Path, identity: Identity) -> None:
    request, key, certificate = (folder / f"{identity.name}.{suffix}" for suffix in ("csr", "key", "crt"))
    run(["openssl", "req", *_KEY, "-subj", identity.subject, "-keyout", key, "-out", request])
    extensions = "extendedKeyUsage=serverAuth,clientAuth\n"
    if identity.names:
        extensions += f"subjectAltName={','.join(identity.names)}\n"
    authority = ("-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial")
    asked = ("-req", "-in", request, "-days", _DAYS, "-extfile", "/dev/stdin")
    run(["openssl", "x509", *asked, *authority, "-out", certificate], input=extensions)
