"""The chart with the real helm, and what is generated from it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.generate import CHART, rendered
from strata_operator.main import leases_of
from tests.cluster import Cluster

pytestmark = pytest.mark.cluster  # helm is one of the local cluster's parts


class Helm:
    def __init__(self, program: Path) -> None:
        self.program = str(program)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *args], capture_output=True, text=True, check=False)

    def template(self, *sets: str) -> dict[str, Any]:
        """The rendered objects by kind."""
        done = self.run("template", "strata", str(CHART), "-n", "ns", *(f"--set={one}" for one in sets))
        assert done.returncode == 0, done.stderr
        return {obj["kind"]: obj for obj in yaml.safe_load_all(done.stdout)}


@pytest.fixture(scope="module")
def helm(cluster: Cluster) -> Helm:
    return Helm(cluster.bin("helm"))


def pod(objects: dict[str, Any]) -> dict[str, Any]:
    return dict(objects["Deployment"]["spec"]["template"]["spec"])


def test_lint(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_generated_manifests_are_up_to_date(helm: Helm) -> None:
    stale = [
        path.name for path, text in rendered(helm.program).items() if not path.exists() or path.read_text() != text
    ]
    assert stale == [], "run `make manifests`"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("image.tags=1", "additional properties 'tags' not allowed"),
        ("replicas=2", "additional properties 'replicas' not allowed"),
        ("image.pullPolicy=Sometimes", "'Always', 'IfNotPresent', 'Never'"),
        ("operator.workers=0", "minimum: got 0, want 1"),
        ("operator.replicas=0", "minimum: got 0, want 1"),
        ("image.digest=abc", "does not match pattern"),
        # As a number it may have lost digits already.
        ("image.tag=123456789012", "'/image/tag': got number, want string"),
    ],
)
def test_unknown_and_wrong_values_are_refused(helm: Helm, value: str, words: str) -> None:
    done = helm.run("template", "strata", str(CHART), f"--set={value}")
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize(
    ("sets", "operator", "engine"),
    [
        ((), "strata-operator:0.1.0", "strata-engine:0.1.0"),
        (("image.registry=r:5000",), "r:5000/strata-operator:0.1.0", "r:5000/strata-engine:0.1.0"),
        (("image.registry=r/", "engineImage.registry=e"), "r/strata-operator:0.1.0", "e/strata-engine:0.1.0"),
        (("image.tag=a", "engineImage.tag=b"), "strata-operator:a", "strata-engine:b"),
        (
            (f"image.digest=sha256:{'0' * 64}", "image.tag=a"),
            f"strata-operator@sha256:{'0' * 64}",
            "strata-engine:0.1.0",
        ),
    ],
)
def test_images(helm: Helm, sets: tuple[str, ...], operator: str, engine: str) -> None:
    container = pod(helm.template(*sets))["containers"][0]
    assert container["image"] == operator
    assert f"--engine-image={engine}" in container["args"]


def test_a_tag_of_digits_alone_stays_as_it_is(helm: Helm) -> None:
    done = helm.run("template", "strata", str(CHART), "--set-string=image.tag=012345678901,engineImage.tag=12e45678")
    assert "strata-operator:012345678901" in done.stdout
    assert "strata-engine:12e45678" in done.stdout


def test_arguments_are_those_of_the_program(helm: Helm) -> None:
    from strata_operator.main import parser

    options = parser().parse_args(pod(helm.template("operator.workers=3"))["containers"][0]["args"])
    assert (options.workers, options.log_level) == (3, "INFO")


def test_the_operator_s_pod_is_restricted(helm: Helm) -> None:
    spec = pod(helm.template())
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    security = spec["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True


def test_rights_are_no_more_than_are_used(helm: Helm) -> None:
    rules = helm.template()["ClusterRole"]["rules"]
    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "secrets" not in rule["resources"]
        assert not {"delete", "deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_all_operators_share_a_lease_to_which_they_have_the_rights(helm: Helm) -> None:
    objects = helm.template("operator.replicas=3")
    assert objects["Deployment"]["spec"]["replicas"] == 3
    assert not [arg for arg in pod(objects)["containers"][0]["args"] if arg.startswith("--lease")]
    [(namespace, name)] = leases_of(None, ()) or ()
    role = objects["Role"]
    assert (role["metadata"]["namespace"], role["rules"]) == (namespace, lease_rules(name))


def lease_rules(name: str) -> list[dict[str, Any]]:
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    return [{**rule, "verbs": ["create"]}, {**rule, "resourceNames": [name], "verbs": ["get", "patch"]}]


def test_replicas_are_kept_apart_unless_told_otherwise(helm: Helm) -> None:
    assert "podAntiAffinity" in pod(helm.template())["affinity"]
    assert list(pod(helm.template("affinity.nodeAffinity.x=y"))["affinity"]) == ["nodeAffinity"]


def test_in_some_namespaces_only_nodes_are_seen_in_the_whole_cluster(helm: Helm) -> None:
    done = helm.run("template", "strata", str(CHART), "-n", "ns", "--set=watchNamespaces={a,b}")
    objects = list(yaml.safe_load_all(done.stdout))
    (cluster_wide,) = (obj for obj in objects if obj["kind"] == "ClusterRole")
    assert [rule["resources"] for rule in cluster_wide["rules"]] == [["stratanodes"], ["nodes"]]
    roles = {obj["metadata"]["namespace"]: obj["rules"] for obj in objects if obj["kind"] == "Role"}
    assert sorted(roles) == ["a", "b"]
    whole = helm.template()["ClusterRole"]["rules"]
    elsewhere = [rule for rule in whole if rule not in cluster_wide["rules"]]
    assert roles["a"] == roles["b"] == [*lease_rules("strata-operator"), *elsewhere]
    bound = {obj["metadata"]["namespace"]: obj["subjects"][0] for obj in objects if obj["kind"] == "RoleBinding"}
    assert sorted(bound) == ["a", "b"]
    assert {subject["namespace"] for subject in bound.values()} == {"ns"}
    (deployment,) = (obj for obj in objects if obj["kind"] == "Deployment")
    assert "--namespaces=a,b" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
