"""The chart in a real cluster: accepted in all its forms, installed, upgraded, rolled back, taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.charts import CHART, MODEL_CHART
from strata_operator.chart import crds
from strata_operator.render import MONITOR_KINDS
from tests.cluster import Cluster
from tests.cluster.shell import run
from tests.operator.chart.cases import CASES
from tests.operator.chart.helm import Helm
from tests.operator.live.harness import install_crds

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("only_operator")]

BEFORE = Path(__file__).parent / "strata-0.1.0.tgz"  # the chart of 2026-11-30, before it had hooks for definitions
CRD = "crd/stratamodels.strata.ai"
NAMESPACE, RELEASE = "strata-release-tests", "release"
CLUSTER_WIDE = "clusterroles,clusterrolebindings"
# Rendered only where somebody else's definitions are installed.
FOREIGN = (*MONITOR_KINDS, "PrometheusRule")


@dataclass(frozen=True, slots=True)
class Release:
    cluster: Cluster
    values: tuple[str, ...]

    def helm(self, *args: str) -> str:
        return run([self.cluster.bin("helm"), *args, "--namespace", NAMESPACE], env=self.cluster.env())

    def upgrade(self, chart: Path, *more: str) -> None:
        wait = ("--wait", "--timeout", "3m")
        self.helm("upgrade", RELEASE, str(chart), "--install", "--create-namespace", *self.values, *more, *wait)

    def left(self) -> list[str]:
        """What bears the release's label, whatever its kind."""
        label = ("-l", f"app.kubernetes.io/instance={RELEASE}", "--ignore-not-found", "-o", "name")
        kinds = "all,configmaps,serviceaccounts,roles,rolebindings,pdb,networkpolicies"
        found = [
            *self.cluster.kubectl("get", kinds, "-A", *label).split(),
            *self.cluster.kubectl("get", CLUSTER_WIDE, *label).split(),
        ]
        return sorted(found)

    def served(self) -> list[str]:
        """Groups of fields of a StrataModel's spec that the API server knows."""
        obj = json.loads(self.cluster.kubectl("get", CRD, "-o", "json"))
        (version,) = obj["spec"]["versions"]
        return sorted(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])

    def forget(self, group: str, manager: str) -> None:
        """Definitions as of the time before there was that group of fields, put there by ``manager``."""
        definition = yaml.safe_load((CHART / "crds" / "stratamodels.strata.ai.yaml").read_text())
        (version,) = definition["spec"]["versions"]
        del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][group]
        by = ("--server-side", "--force-conflicts", f"--field-manager={manager}")
        self.cluster.kubectl("apply", *by, "-f", "-", input=json.dumps(definition))
        assert group not in self.served()


@pytest.fixture
def release(cluster: Cluster, operator_image: str) -> Iterator[Release]:
    registry, _, tag = operator_image.partition("/strata-operator:")
    settings = {"image.registry": registry, "image.tag": tag, "operator.replicas": 1}
    values = [f"--set-json={key}={json.dumps(value)}" for key, value in settings.items()]
    made = Release(cluster, tuple(values))
    yield made
    made.helm("uninstall", RELEASE, "--ignore-not-found", "--no-hooks")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")
    cluster.kubectl("delete", CLUSTER_WIDE, "-l", f"app.kubernetes.io/instance={RELEASE}")


def as_it_is_admitted(obj: dict[str, Any]) -> dict[str, Any]:
    """A pod alone is refused while its account is not there."""
    if obj["kind"] != "Pod":
        return obj
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": obj["metadata"], "template": {"spec": obj["spec"]}}


def test_the_api_server_takes_every_set_of_values(cluster: Cluster) -> None:
    """In one call: it knows every field, and no object is refused."""
    install_crds(cluster)
    helm = Helm(str(cluster.bin("helm")))
    spaces = {"ns", "llm", "team-a", "team-b"}
    have = {item["metadata"]["name"] for item in cluster.get_json("namespaces")["items"]}
    made = sorted(spaces - have)
    texts = [helm.text(values) for values in CASES.values()]
    models = (MODEL_CHART / "examples").glob("*.yaml")
    texts += [helm.text(yaml.safe_load(path.read_text()), MODEL_CHART) for path in models]
    rendered = [as_it_is_admitted(obj) for text in texts for obj in yaml.safe_load_all(text) if obj]
    objects = list({json.dumps(obj): obj for obj in rendered if obj["kind"] not in FOREIGN}.values())
    try:
        for name in made:
            cluster.kubectl("create", "namespace", name)
        taken = cluster.kubectl(
            "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-",
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
        )  # fmt: skip
    finally:
        for name in made:
            cluster.kubectl("delete", "namespace", name, "--wait=false")
    assert len(taken.splitlines()) == len(objects) > 100


def test_the_life_of_a_release(release: Release) -> None:
    cluster = release.cluster
    install_crds(cluster)
    wanted = release.served()

    # As it was installed some time ago, with definitions of that time: those there are may be anybody's.
    release.upgrade(BEFORE, "--skip-crds")
    release.forget("rollout", "somebody")
    cluster.kubectl("delete", "crd", "stratanodes.strata.ai")

    # Upgraded: the definitions first, by a Job of which nothing is left.
    release.upgrade(CHART, "--set=networkPolicy.enabled=true")
    assert release.served() == wanted
    assert cluster.kubectl("get", "stratanodes", "--ignore-not-found") == ""
    assert not [one for one in release.left() if "-crds" in one]
    assert "works: it holds the Lease" in release.helm("test", RELEASE, "--logs")

    # Back to what there was; the definitions stay.
    release.helm("rollback", RELEASE, "1", "--wait")
    assert release.served() == wanted
    assert not [one for one in release.left() if "networkpolicy" in one]

    # Taken away. The next installation renews a definition that is old: helm 4 applies them too then, and would have to
    # give up were they another's.
    release.helm("uninstall", RELEASE, "--wait")
    cluster.wait_for(lambda: release.left() == [], 60, "all of the release to be gone")
    release.forget("rollout", crds.MANAGER)
    release.upgrade(CHART)
    assert release.served() == wanted
