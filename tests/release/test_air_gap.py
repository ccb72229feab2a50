"""A cluster that reaches nothing: the bundle's images, its chart, and a model of the bundle that answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import strata
from images.buildah import ROOT
from images.catalogue import ENGINE, OPERATOR
from release import archive, bundle
from release.bundle import Model
from release.release import Release, make
from tests.cluster import Cluster
from tests.cluster.node import CONTAINERD_SOCKET
from tests.cluster.shell import run
from tests.e2e import chat
from tests.e2e.manifest import model
from tests.e2e.models import OPERATOR_NAMESPACE, wait_ready
from tests.e2e.target import Target

pytestmark = pytest.mark.cluster

NAMESPACE, NAME = "air-gap", "smollm2"
MODELS = "/var/lib/strata-models"
READY_SECONDS = 600


@pytest.fixture(scope="module")
def unpacked() -> Iterator[Path]:
    """The bundle of this checkout with SmolLM2, laid out as in its tar file, which would take the room twice."""
    place = ROOT / "build" / "air-gap"
    release = Release(strata.__version__, snapshot=True, place=place)
    make(release)
    bundle.stage(release, {NAME: bundle.store(Model(NAME, "builtin://smollm2-135m", "int4"))}, place / "bundle")
    yield place / "bundle"
    shutil.rmtree(place)


@contextmanager
def alone(cluster: Cluster) -> Iterator[None]:
    """The node without a way out, and the cluster without a registry."""
    cluster.stop("registry")
    cluster.on_node("ip", "route", "del", "default")
    try:
        yield
    finally:
        cluster.on_node("ip", "route", "add", "default", "via", str(cluster.network.host))
        cluster.start("registry")


@pytest.fixture(scope="module")
def target(cluster: Cluster, unpacked: Path) -> Iterator[Target]:
    """Strata installed by the bundle's script, as its help says."""
    script = ("sh", str(unpacked / "install.sh"))
    ctr = f"{cluster.bin('ctr')} --address {CONTAINERD_SOCKET}"
    target = Target.local(cluster)
    images = (*ctr.split(), "--namespace", "k8s.io", "images")
    before = cluster.on_node(*images, "list", "--quiet").split()
    with alone(cluster):
        print(cluster.on_node(*script, "load", "--ctr", ctr))
        print(cluster.on_node(*script, "models"))
        print(run([*script, "install"], env=cluster.env()))
        target.run("kubectl", "create", "namespace", NAMESPACE)
        yield target
        target.run("kubectl", "delete", "namespace", NAMESPACE, "--wait")
        target.run("helm", "uninstall", "strata", "--namespace", OPERATOR_NAMESPACE, "--wait")
        added = set(cluster.on_node(*images, "list", "--quiet").split()) - set(before)
        cluster.on_node(*images, "rm", *added)
        cluster.on_node("rm", "-r", MODELS)


def test_a_model_of_the_bundle_answers_where_nothing_can_be_pulled(target: Target, unpacked: Path) -> None:
    source = {"model.source": f"hostpath://{MODELS}/{NAME}", "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}]}
    target.run("kubectl", "apply", "-n", NAMESPACE, "-f", "-", stdin=model(NAME, source))
    wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)
    with target.service(NAMESPACE, NAME) as url, chat.openai(url) as client:
        question = "What is the capital of France, and what is it known for?"
        assert "Paris" in "".join(chat.stream(client, NAME, question, max_tokens=32))

    digests = {row.split()[1]: row.split()[3] for row in (unpacked / "images.txt").read_text().splitlines()}
    for namespace, image in ((OPERATOR_NAMESPACE, OPERATOR), (NAMESPACE, ENGINE)):
        pods = json.loads(target.run("kubectl", "get", "pods", "-n", namespace, "-o", "json"))["items"]
        used = {container["image"] for pod in pods for container in pod["spec"]["containers"]}
        assert used == {f"{archive.HOST}/{image.name}@{digests[image.name]}"}
        events = json.loads(target.run("kubectl", "get", "events", "-n", namespace, "-o", "json"))["items"]
        mine = {pod["metadata"]["uid"] for pod in pods}  # others may have been there before
        told = {event["reason"] for event in events if event["involvedObject"].get("uid") in mine}
        assert "Pulled" in told, "the image was there already"
        assert "Pulling" not in told
