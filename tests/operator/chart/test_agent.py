"""The chart's node agent: its DaemonSet, its roles, and the hook that restores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.charts import CHART
from strata_operator.agent.fake_file import FakeFile
from strata_operator.agent.main import parser
from tests.operator.chart.helm import Helm

ON = ("agent.enabled=true",)


def pod(helm: Helm, *sets: str) -> dict[str, Any]:
    return dict(helm.objects(*ON, *sets)["DaemonSet", "strata-agent"]["spec"]["template"]["spec"])


def test_without_it_nothing_of_it_is_installed(helm: Helm) -> None:
    assert [key for key in helm.objects() if "agent" in key[1] or "uninstall" in key[1]] == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("agent.enable=true", "additional properties 'enable' not allowed"),
        ("agent.logLevel=LOUD", "'DEBUG', 'INFO', 'WARNING', 'ERROR'"),
        ("agent.uninstallSeconds=1", "minimum: got 1, want 10"),
        ("agent.fake.fans=2", "additional properties 'fans' not allowed"),
        ("agent.priorityClassName=", "minLength"),
    ],
)
def test_unknown_and_wrong_values_are_refused(helm: Helm, value: str, words: str) -> None:
    done = helm.run("template", "strata", str(CHART), f"--set={value}")
    assert done.returncode != 0
    assert words in done.stderr


def test_it_alone_is_privileged_and_runs_on_gpu_nodes(helm: Helm) -> None:
    spec = pod(helm)
    (container,) = spec["containers"]
    assert container["securityContext"]["privileged"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert {one["name"]: one.get("hostPath", {}).get("path") for one in spec["volumes"]} == {"sys": "/sys", "tmp": None}
    for (kind, _), obj in helm.objects(*ON).items():
        if kind in ("Deployment", "Job"):
            (other,) = obj["spec"]["template"]["spec"]["containers"]
            assert other["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_arguments_are_those_of_the_program(helm: Helm) -> None:
    (container,) = pod(helm, "agent.logLevel=DEBUG")["containers"]
    assert container["command"] == ["strata-agent"]
    options = parser().parse_args([*container["args"], "--node=n"])
    assert (options.command, options.log_level, options.fake) == ("run", "DEBUG", None)
    job = helm.objects(*ON, "agent.uninstallSeconds=77")["Job", "strata-uninstall"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    options = parser().parse_args(container["args"])
    assert (options.command, options.daemonset, options.timeout) == ("uninstall", "ns/strata-agent", 77)
    assert options.keep_going is True
    assert job["spec"]["activeDeadlineSeconds"] > options.timeout


def test_the_hook_comes_before_all_else_goes_and_has_its_rights_by_then(helm: Helm) -> None:
    hooks = {key: obj["metadata"] for key, obj in helm.objects(*ON).items() if "uninstall" in key[1]}
    assert {kind for kind, _ in hooks} == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Job",
    }
    weights = {kind: int(one["annotations"]["helm.sh/hook-weight"]) for (kind, _), one in hooks.items()}
    assert {one["annotations"]["helm.sh/hook"] for one in hooks.values()} == {"pre-delete"}
    assert max(weights, key=lambda kind: weights[kind]) == "Job"


def test_roles_have_no_wildcards_and_no_secrets(helm: Helm) -> None:
    for (kind, name), obj in helm.objects(*ON).items():
        for rule in obj.get("rules", ()):
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], (kind, name)
            assert "secrets" not in rule["resources"]
        if kind == "ClusterRole" and name == "strata-agent":
            assert not any("delete" in rule["verbs"] for rule in obj["rules"])


def test_fake_cards_reach_the_agent_as_it_reads_them(helm: Helm, tmp_path: Path) -> None:
    sets = ("agent.fake.cards[0].kind=rtx3090", "agent.fake.cards[0].power_limit=300000", "agent.fake.numa_nodes=1")
    made = helm.objects(*ON, *sets)
    (tmp_path / "cards.yaml").write_text(made["ConfigMap", "strata-agent"]["data"]["cards.yaml"])
    fake = FakeFile(tmp_path / "cards.yaml", tmp_path / "root")
    assert (fake.driver.cards[0].power_limit, len(fake.host.facts().numa)) == (300_000, 1)
    template = made["DaemonSet", "strata-agent"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert "privileged" not in container["securityContext"]  # nothing real is touched
    assert not [one for one in template["spec"]["volumes"] if "hostPath" in one]
    assert "--fake=/etc/strata-agent/cards.yaml" in container["args"]
    another = helm.objects(*ON, *sets, "agent.fake.cards[0].load=1")["DaemonSet", "strata-agent"]["spec"]["template"]
    assert another["metadata"]["annotations"] != template["metadata"]["annotations"]


def test_what_prometheus_is_to_scrape_is_there_on_request(helm: Helm) -> None:
    wanted = helm.objects(*ON, "monitors.agent=true", "agent.prometheusRule=true")
    (endpoint,) = wanted["PodMonitor", "strata-agent"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"
    assert wanted["PrometheusRule", "strata-agent"]["spec"] == yaml.safe_load(
        (CHART / "files" / "rules.yaml").read_text()
    )
    assert ("PodMonitor", "strata-agent") not in helm.objects(*ON)
