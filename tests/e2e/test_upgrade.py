"""A release is installed, upgraded, rolled back and taken away as docs/installation.md says, and no request fails."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.docs.blocks import blocks
from tests.e2e import install
from tests.e2e.conftest import NAMESPACE
from tests.e2e.load import Load
from tests.e2e.manifest import model
from tests.e2e.models import OPERATOR_NAMESPACE, wait_ready
from tests.e2e.target import Target
from tests.e2e.test_load import POD, READY_SECONDS
from tests.operator.live.test_release import BEFORE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

NAME = "steady"
MINE = ("-n", NAMESPACE, "-l", f"strata.ai/model={NAME}")
# Of the two blocks that begin with it, the one that names images.
UPGRADE = "helm upgrade strata charts/strata --namespace strata-system --reset-then-reuse-values \\\n  --set-string"
MANIFESTS = "application/vnd.oci.image.manifest.v1+json"
RELEASE_LABEL = f"app.kubernetes.io/instance={install.RELEASE}"
CLUSTER_WIDE = "clusterroles,clusterrolebindings"
KINDS = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,pdb,networkpolicies,leases"


def tagged(registry: str, reference: str, tag: str) -> str:
    """The same image under another tag: what a release of another version names."""
    _, _, image = reference.partition("/")
    name, _, old = image.partition(":")
    at = f"http://{registry}/v2/{name}/manifests/"
    with urllib.request.urlopen(urllib.request.Request(at + old, headers={"Accept": MANIFESTS})) as answer:
        manifest = answer.read()
    headers = {"Content-Type": MANIFESTS}
    urllib.request.urlopen(urllib.request.Request(at + tag, manifest, headers, method="PUT")).close()
    return f"{registry}/{name}:{tag}"


@pytest.fixture
def bare(target: Target, images: dict[str, str]) -> Iterator[Target]:
    """The cluster without the release, which is there again afterwards for other tests."""
    install.uninstall(target)
    yield target
    target.run("kubectl", "delete", "stratamodel", NAME, "-n", NAMESPACE, "--wait", "--ignore-not-found")
    target.run("kubectl", "delete", "pods", *MINE, "--wait", "--grace-period=1")
    install.install(target, images)


def as_documented(target: Target, command: str, words: dict[str, str]) -> None:
    """Run the block of docs/installation.md that begins with this command, with those words in place of its own."""
    (block,) = [b for b in blocks() if b.page == "docs/installation.md" and b.text.startswith(command)]
    text = block.text
    for old, new in words.items():
        assert old in text
        text = text.replace(old, new)
    target.run("bash", "-euo", "pipefail", "-c", f"cd {install.ROOT}\n{text}")


def test_no_request_fails_from_one_version_to_the_next_and_back(
    bare: Target, cluster: Cluster, images: dict[str, str]
) -> None:
    target, before = bare, images["strata-engine"]
    after = tagged(target.registry, before, "next")
    operator, engine = (images[name].rpartition(":")[2] for name in ("strata-operator", "strata-engine"))
    registry = images["strata-operator"].partition("/strata-operator:")[0]
    values = {"image.registry": registry, "image.tag": operator, "engineImage.tag": engine}
    sets = [part for key, value in values.items() for part in ("--set-string", f"{key}={value}")]
    place = ("--namespace", OPERATOR_NAMESPACE)

    def serving(image: str) -> None:
        """The model's pods are of that image alone."""
        cluster.wait_for(lambda: set(running()) == {image}, READY_SECONDS, f"pods of {image} alone")
        wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)

    def running() -> list[str]:
        found = json.loads(target.run("kubectl", "get", "pods", *MINE, "-o", "json"))["items"]
        return [pod["spec"]["containers"][0]["image"] for pod in found]

    # A chart of some time ago, with the definitions of now: what a rollback leaves, and this operator writes.
    target.run(
        "helm", "install", install.RELEASE, str(BEFORE), *place, "--create-namespace", "--skip-crds", *sets, "--wait"
    )
    target.run("kubectl", "apply", "-n", NAMESPACE, "-f", "-", stdin=model(NAME, {"podTemplate": POD}))
    wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)
    with target.service(NAMESPACE, NAME) as url:
        load = Load(url, NAME)

        def more(number: int, after: str) -> None:
            """Wait for so many answers more; none has failed."""
            enough = load.answers + number
            cluster.wait_for(lambda: bool(load.failures) or load.answers >= enough, 240, f"answers after {after}")
            assert load.failures == [], after

        with load.running():
            more(3, "the start")
            new = {"OPERATOR_TAG": operator, "ENGINE_TAG": "next"}
            as_documented(target, UPGRADE, new)
            serving(after)
            more(3, "the upgrade")
            target.run("helm", "rollback", install.RELEASE, "1", *place, "--wait", "--timeout", "10m")
            serving(before)
            more(3, "the rollback")
            as_documented(target, UPGRADE, new)
            serving(after)
            as_documented(target, "helm uninstall", {})
            more(3, "the release's end")
    print(f"{load.answers + len(load.failures)} requests, {len(load.failures)} failed")
    assert load.failures == []

    # Nothing of the release is left, but the definitions and what they define.
    def left() -> str:
        named = target.run("kubectl", "get", KINDS, "-A", "-l", RELEASE_LABEL, "-o", "name", "--ignore-not-found")
        return named + target.run("kubectl", "get", CLUSTER_WIDE, "-l", RELEASE_LABEL, "-o", "name")

    cluster.wait_for(lambda: not left().strip(), 60, "the release's objects to be gone")
    assert target.run("kubectl", "get", KINDS, "-n", OPERATOR_NAMESPACE, "-o", "name").split() == [
        "configmap/kube-root-ca.crt",
        "serviceaccount/default",
    ]
    assert "stratamodels.strata.ai" in target.run("kubectl", "get", "crd", "-o", "name")
    wait_ready(target, NAMESPACE, NAME, seconds=READY_SECONDS)
