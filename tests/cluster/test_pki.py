from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path

import pytest

from tests.cluster import pki
from tests.cluster.errors import CommandError
from tests.cluster.instance import Instance, Network
from tests.cluster.shell import run

SERVER = pki.Identity("server", "api", names=("DNS:localhost", "IP:10.96.255.2"))
ADMIN = pki.Identity("admin", "admin", "system:masters")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pki.create(tmp_path / "pki", (SERVER, ADMIN))
    return tmp_path / "pki"


def test_every_certificate_is_signed_by_the_authority(folder: Path) -> None:
    for identity in (SERVER, ADMIN):
        assert "OK" in run(["openssl", "verify", "-CAfile", folder / "ca.crt", folder / f"{identity.name}.crt"])


def test_a_certificate_names_its_user_group_and_addresses(folder: Path) -> None:
    admin = run(["openssl", "x509", "-in", folder / "admin.crt", "-noout", "-subject"])
    assert admin.split("subject=")[1].replace(" ", "").strip() == "O=system:masters,CN=admin"
    server = run(["openssl", "x509", "-in", folder / "server.crt", "-noout", "-ext", "subjectAltName"])
    assert "DNS:localhost, IP Address:10.96.255.2" in server


def test_what_exists_is_kept(folder: Path) -> None:
    before = (folder / "ca.crt").read_bytes()
    pki.create(folder, (SERVER, ADMIN))
    assert (folder / "ca.crt").read_bytes() == before


def test_a_failure_leaves_no_half_made_folder(tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        pki.create(tmp_path / "pki", (pki.Identity("bad", "bad", names=("NONSENSE:x",)),))
    assert list(tmp_path.iterdir()) == []


def test_an_embedded_kubeconfig_needs_no_other_file(folder: Path, tmp_path: Path) -> None:
    text = pki.kubeconfig("demo", "https://10.96.255.2:6443", folder, "admin", embed=True)
    assert str(tmp_path) not in text
    cluster = json.loads(text)["clusters"][0]["cluster"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    assert context.cert_store_stats()["x509_ca"] == 1


def test_the_api_server_answers_under_every_name_that_pods_and_the_host_use() -> None:
    identities = pki.identities(Instance("demo", Path("/state")), Network(0))
    (apiserver,) = (identity for identity in identities if identity.name == "apiserver")
    assert {"DNS:kubernetes.default.svc.cluster.local", "IP:10.96.255.2", "IP:10.96.0.1"} <= set(apiserver.names)
