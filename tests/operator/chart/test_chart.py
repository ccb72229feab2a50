"""The operator's part of the chart, and what is generated from it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from manifests.charts import CHART
from manifests.generate import rendered
from strata_operator.api.names import MODEL_LABEL
from strata_operator.chart.main import parser as chart_parser
from strata_operator.main import leases_of, parser
from strata_operator.render.arguments import PORT
from tests.operator.chart.helm import Helm, Objects, by_name


def pod(objects: Objects) -> dict[str, Any]:
    return dict(objects["Deployment", "strata"]["spec"]["template"]["spec"])


def test_lint(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_generated_manifests_are_up_to_date(helm: Helm) -> None:
    stale = [path.name for path, text in rendered(helm.program) if not path.exists() or path.read_text() != text]
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
    container = pod(helm.objects(*sets))["containers"][0]
    assert container["image"] == operator
    assert f"--engine-image={engine}" in container["args"]


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "strata"), ("DaemonSet", "strata-agent")])
def test_a_start_on_a_busy_node_is_not_ended_by_its_probe(helm: Helm, kind: str, name: str) -> None:
    """With 50m CPU beside others' load it took longer than the 75 seconds that the liveness probe gives."""
    (container,) = helm.objects("agent.enabled=true")[kind, name]["spec"]["template"]["spec"]["containers"]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["httpGet"] == liveness["httpGet"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300
    assert "initialDelaySeconds" not in liveness


def test_a_tag_of_digits_alone_stays_as_it_is(helm: Helm) -> None:
    done = helm.run("template", "strata", str(CHART), "--set-string=image.tag=012345678901,engineImage.tag=12e45678")
    assert "strata-operator:012345678901" in done.stdout
    assert "strata-engine:12e45678" in done.stdout


def test_arguments_are_those_of_the_program(helm: Helm) -> None:
    options = parser().parse_args(pod(helm.objects("operator.workers=3"))["containers"][0]["args"])
    assert (options.workers, options.log_level) == (3, "INFO")


def test_rights_are_no_more_than_are_used(helm: Helm) -> None:
    rules = helm.objects()["ClusterRole", "strata"]["rules"]
    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "secrets" not in rule["resources"]
        assert not {"delete", "deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_all_operators_share_a_lease_to_which_they_have_the_rights(helm: Helm) -> None:
    objects = helm.objects("operator.replicas=3")
    assert objects["Deployment", "strata"]["spec"]["replicas"] == 3
    assert not [arg for arg in pod(objects)["containers"][0]["args"] if arg.startswith("--lease")]
    [(namespace, name)] = leases_of(None, ()) or ()
    role = objects["Role", "strata"]
    assert (role["metadata"]["namespace"], role["rules"]) == (namespace, lease_rules(name))


def lease_rules(name: str) -> list[dict[str, Any]]:
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    return [{**rule, "verbs": ["create"]}, {**rule, "resourceNames": [name], "verbs": ["get", "patch"]}]


def test_replicas_are_kept_apart_unless_told_otherwise(helm: Helm) -> None:
    assert "podAntiAffinity" in pod(helm.objects())["affinity"]
    assert list(pod(helm.objects("affinity.nodeAffinity.x=y"))["affinity"]) == ["nodeAffinity"]


def test_in_some_namespaces_only_nodes_are_seen_in_the_whole_cluster(helm: Helm) -> None:
    done = helm.run("template", "strata", str(CHART), "-n", "ns", "--set=watchNamespaces={a,b}")
    objects = list(yaml.safe_load_all(done.stdout))
    (cluster_wide,) = (obj for obj in objects if (obj["kind"], obj["metadata"]["name"]) == ("ClusterRole", "strata"))
    assert [rule["resources"] for rule in cluster_wide["rules"]] == [["stratanodes"], ["nodes"]]
    roles = {obj["metadata"]["namespace"]: obj["rules"] for obj in objects if obj["kind"] == "Role"}
    assert sorted(roles) == ["a", "b"]
    whole = helm.objects()["ClusterRole", "strata"]["rules"]
    elsewhere = [rule for rule in whole if rule not in cluster_wide["rules"]]
    assert roles["a"] == roles["b"] == [*lease_rules("strata-operator"), *elsewhere]
    bound = {obj["metadata"]["namespace"]: obj["subjects"][0] for obj in objects if obj["kind"] == "RoleBinding"}
    assert sorted(bound) == ["a", "b"]
    assert {subject["namespace"] for subject in bound.values()} == {"ns"}
    (deployment,) = (obj for obj in objects if obj["kind"] == "Deployment")
    assert "--namespaces=a,b" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def test_hooks_run_what_the_image_has(helm: Helm) -> None:
    objects = helm.objects("watchNamespaces={a,b}")
    (container,) = objects["Job", "strata-crds"]["spec"]["template"]["spec"]["containers"]
    options = chart_parser().parse_args(container["args"])
    assert (container["command"], options.command) == (["strata-chart"], "crds")
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == str(options.folder)
    held = objects["ConfigMap", "strata-crds"]["data"]
    assert held == {path.name: path.read_text() for path in (CHART / "crds").iterdir()}
    (container,) = objects["Pod", "strata-test"]["spec"]["containers"]
    assert chart_parser().parse_args(container["args"]).namespaces == "a,b"


def test_definitions_may_be_changed_by_name_alone_and_are_all_named(helm: Helm) -> None:
    objects = helm.objects()
    (rule,) = objects["ClusterRole", "strata-crds"]["rules"]
    names = {yaml.safe_load(path.read_text())["metadata"]["name"] for path in (CHART / "crds").iterdir()}
    assert (set(rule["resourceNames"]), rule["verbs"]) == (names, ["get", "create", "patch"])
    weights = {
        kind: int(obj["metadata"]["annotations"]["helm.sh/hook-weight"])
        for (kind, name), obj in objects.items()
        if name == "strata-crds"
    }
    assert max(weights, key=lambda kind: weights[kind]) == "Job"


@pytest.mark.parametrize(
    "values",
    [{}, {"agent": {"enabled": True}}, {"gateway": {"enabled": True}}],
    ids=["default", "agent", "gateway"],
)
def test_every_pod_but_the_agent_s_meets_the_restricted_standard(helm: Helm, values: dict[str, Any]) -> None:
    for obj in by_name(helm.text(values)).values():
        spec = obj["spec"] if obj["kind"] == "Pod" else obj.get("spec", {}).get("template", {}).get("spec")
        if spec is None or obj["kind"] == "DaemonSet":
            continue
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_a_network_policy_lets_through_what_is_spoken_to(helm: Helm) -> None:
    objects = helm.objects("networkPolicy.enabled=true", "agent.enabled=true")
    dns, api_server, models = objects["NetworkPolicy", "strata"]["spec"]["egress"]
    assert [[one["port"] for one in rule["ports"]] for rule in (dns, api_server)] == [[53, 53], [443, 6443]]
    (peer,) = models["to"]
    assert peer["podSelector"]["matchExpressions"] == [{"key": MODEL_LABEL, "operator": "Exists"}]
    assert [one["port"] for one in models["ports"]] == [PORT]
    for name, kind in (("strata", "Deployment"), ("strata-agent", "DaemonSet")):
        (ingress,) = objects["NetworkPolicy", name]["spec"]["ingress"]
        (container,) = objects[kind, name]["spec"]["template"]["spec"]["containers"]
        assert [one["port"] for one in ingress["ports"]] == [one["containerPort"] for one in container["ports"]]
        assert objects["NetworkPolicy", name]["spec"]["podSelector"] == objects[kind, name]["spec"]["selector"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name"),
        ({"agent": {"podLabels": {"app.kubernetes.io/instance": "x"}}}, "app.kubernetes.io/instance"),
        ({"extraArgs": ["workers"]}, "does not match pattern"),
        ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "maxUnavailable"),
        ({"fullnameOverride": "Strata"}, "does not match pattern"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "topologyKey"),
    ],
    ids=str,
)
def test_values_that_would_break_an_object_are_refused(helm: Helm, values: dict[str, Any], words: str) -> None:
    done = helm.run("template", "strata", str(CHART), values=values)
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize(
    ("values", "commands"),
    [
        ({}, ("helm test strata --namespace ns --logs", "get lease strata-operator", "--set agent.enabled=true")),
        ({"watchNamespaces": ["llm"]}, ("kubectl apply -n llm -f -", "kubectl -n llm get lease strata-operator")),
        (
            {"gateway": {"enabled": True, "service": {"port": 8080}}},
            ("http://strata-gateway.ns.svc:8080/v1", "label secret team-a strata.ai/gateway-key="),
        ),
        (
            {"agent": {"enabled": True}},
            ("kubectl -n ns get daemonset strata-agent", "kubectl label node NODE nvidia.com/gpu.present=true"),
        ),
        ({"crds": {"upgrade": False}}, ("kubectl apply --server-side --field-manager=helm --force-conflicts -f",)),
    ],
    ids=str,
)
def test_notes_have_the_next_commands(helm: Helm, values: dict[str, Any], commands: tuple[str, ...]) -> None:
    done = helm.run("install", "strata", str(CHART), "--namespace=ns", "--dry-run=client", values=values)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:\n")[2]
    assert [command for command in commands if command not in notes] == []
    assert "kubectl delete crd stratamodels.strata.ai stratanodes.strata.ai" in notes
    assert "Weights stay on the nodes, in /var/lib/strata" in notes
    assert "kubectl apply --server-side -f FILE" in notes


@pytest.mark.parametrize(
    ("sets", "args"),
    [
        pytest.param((), ["--monitor-kind=PodMonitor", "--monitor-interval=15s"], id="models have them by default"),
        pytest.param(("monitors.models=false",), ["--monitor-kind=none"], id="and need not"),
        pytest.param(
            ("monitors.kind=ServiceMonitor", "monitors.labels.release=kps", "monitors.labels.a=b"),
            ["--monitor-kind=ServiceMonitor", "--monitor-interval=15s", "--monitor-labels=a=b,release=kps"],
            id="of another kind, for a Prometheus that selects",
        ),
    ],
)
def test_models_have_the_monitors_that_values_ask_for(helm: Helm, sets: tuple[str, ...], args: list[str]) -> None:
    objects = helm.objects(*sets)
    given = pod(objects)["containers"][0]["args"]
    assert [arg for arg in given if arg.startswith("--monitor")] == args
    assert vars(parser().parse_args(given))["monitor_kind"] == args[0].partition("=")[2]
    groups = [rule["apiGroups"] for rule in objects["ClusterRole", "strata"]["rules"]]
    assert (["monitoring.coreos.com"] in groups) == (args != ["--monitor-kind=none"])


def test_service_monitors_find_services_with_the_metrics_of_operator_and_agents(helm: Helm) -> None:
    sets = ("agent.enabled=true", "monitors.operator=true", "monitors.agent=true")
    by_pod, by_service = helm.objects(*sets), helm.objects(*sets, "monitors.kind=ServiceMonitor")
    for name, kind in (("strata", "Deployment"), ("strata-agent", "DaemonSet")):
        service, workload = by_service["Service", name], by_service[kind, name]["spec"]["template"]
        monitor = by_service["ServiceMonitor", name]["spec"]
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert service["spec"]["selector"].items() <= workload["metadata"]["labels"].items()
        (endpoint,), (port,) = monitor["endpoints"], service["spec"]["ports"]
        names = [one["name"] for one in workload["spec"]["containers"][0]["ports"]]
        assert endpoint["port"] == port["name"] == port["targetPort"]
        assert port["name"] in names
        assert by_pod["PodMonitor", name]["spec"]["podMetricsEndpoints"] == [endpoint]
        assert ("Service", name) not in by_pod
