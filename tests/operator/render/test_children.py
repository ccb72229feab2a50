from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from strata.store.unused import KEEP_DAYS
from strata_operator.render import Monitors, children, preflight, preflight_name
from strata_operator.render.arguments import arguments
from strata_operator.render.deployment import GRACE_SECONDS, PROGRESS_DEADLINE_SECONDS, STARTUP_SECONDS
from tests.operator.samples import CPU, FULL_SPEC, NVIDIA, model


def rendered(**spec: Any) -> dict[str, dict[str, Any]]:
    return children(model(**spec), engine_image="registry/engine:1")


def pod(**spec: Any) -> dict[str, Any]:
    return dict(rendered(**spec)["Deployment"]["spec"]["template"]["spec"])


def engine(**spec: Any) -> dict[str, Any]:
    return dict(pod(**spec)["containers"][0])


def environment(**spec: Any) -> dict[str, str]:
    """By name, as far as it is said here."""
    return {one["name"]: one["value"] for one in engine(**spec)["env"] if "value" in one}


def source(text: str) -> dict[str, Any]:
    return {"model": {"source": text}}


def test_what_a_pod_needs_is_applied_before_it() -> None:
    assert list(rendered()) == [
        "ServiceAccount",
        "Service",
        "NetworkPolicy",
        "Deployment",
    ]
    assert list(children(model(), engine_image="e", monitors=Monitors()))[-1] == "PodMonitor"


def test_a_cpu_model_never_gets_a_gpu() -> None:
    made = engine(hardware=CPU)
    assert made["resources"] == {
        "requests": {"cpu": "2", "memory": "3Gi"},
        "limits": {"cpu": "2", "memory": "3Gi"},
    }
    assert "--device=cpu" in made["args"]
    assert environment(hardware=CPU)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_gpu_model_gets_one_and_runs_nowhere_else() -> None:
    made = engine(hardware=NVIDIA)
    assert made["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert made["resources"]["requests"] == made["resources"]["limits"]
    assert "--device=cuda" in made["args"]
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(hardware=NVIDIA)


def test_flags_that_are_left_out_are_left_to_the_engine() -> None:
    assert arguments(model(), grace_seconds=50) == [
        "serve",
        "builtin://smollm2-135m",
        "--dtype=int4",
        "--device=cpu",
        "--host=0.0.0.0",
        "--port=8000",
        "--threads=2",
        "--grace-seconds=50",
        "--served-model-name=m",
    ]


def test_every_engine_field_becomes_its_flag() -> None:
    assert None not in astuple(model(**FULL_SPEC).engine), "a field has no example here"
    made = engine(**FULL_SPEC)["args"]
    assert made[:2] == ["serve", "Qwen/Qwen3-30B-A3B"]
    assert made[-1] == "--allowed-origins=https://chat.example"
    for flag in (
        "--revision=v1",
        "--api-key-file=/etc/strata/api-keys/team",
        "--decode-latency-ms=50",
        "--no-prefix-cache",
        "--max-waiting=64",
        "--expert-placement=hybrid",
        "--expert-vram-gib=12",
        "--load-stall-seconds=600",
        "--tool-call-parser=hermes",
        "--reasoning-parser=think",
        "--log-level=debug",
        "--pipeline-depth=4",
        "--cpu-routing-threads=2",
        "--prefetch=history",
        "--prefetch-probability=0.85",
        "--dtype=int8",
        "--served-model-name=qwen",
        "--max-model-len=4096",
        "--max-num-seqs=8",
        "--max-num-batched-tokens=1024",
        "--block-size=32",
        "--num-kv-tokens=65536",
        "--gpu-memory-utilization=0.85",
    ):
        assert flag in made


def test_the_engine_s_command_line_knows_every_flag() -> None:
    """The real parser of `strata serve` reads what the operator writes."""
    from strata.cli.main import build_parser

    options = build_parser().parse_args(engine(**FULL_SPEC)["args"])
    assert (options.dtype, options.device, options.max_model_len, options.port) == ("int8", "cuda", 4096, 8000)
    assert (options.decode_latency_seconds, options.prefix_cache) == (0.05, False)
    assert options.grace_seconds < GRACE_SECONDS


@pytest.mark.parametrize(
    ("text", "volume", "path"),
    [
        ("hostpath:///srv/qwen", {"hostPath": {"path": "/srv/qwen", "type": "Directory"}}, "/model/qwen"),
        ("hostpath:///srv/a.gguf", {"hostPath": {"path": "/srv/a.gguf", "type": "File"}}, "/model/a.gguf"),
        ("pvc://w/a/b", {"persistentVolumeClaim": {"claimName": "w", "readOnly": True}}, "/model/a/b"),
        ("pvc://w", {"persistentVolumeClaim": {"claimName": "w", "readOnly": True}}, "/model"),
    ],
)
def test_a_checkpoint_outside_the_image_is_mounted_read_only(text: str, volume: dict[str, Any], path: str) -> None:
    made = pod(**source(text))
    assert {"name": "model", **volume} in made["volumes"]
    mount = next(m for m in made["containers"][0]["volumeMounts"] if m["name"] == "model")
    assert mount["readOnly"] is True
    assert path.startswith(mount["mountPath"])
    assert made["containers"][0]["args"][1] == path


def test_a_built_in_model_mounts_the_cache_alone() -> None:
    assert [volume["name"] for volume in pod()["volumes"]] == ["cache", "tmp"]


def test_a_model_of_the_hub_is_fetched_into_the_node_s_cache() -> None:
    assert environment(**source("hf://Qwen/Qwen3-8B"))["HF_HOME"].startswith("/var/lib/strata/")
    assert "HF_HOME" not in environment()
    assert engine(**source("hf://Qwen/Qwen3-8B:Q4_K_M"))["args"][1] == "Qwen/Qwen3-8B:Q4_K_M"


def test_a_file_of_a_web_server_is_given_to_the_engine_as_it_is() -> None:
    from strata.config.model_name import UrlName, parse_name

    text = f"https://host/m.gguf#sha256={'0' * 64}"
    made = engine(**source(text))["args"][1]
    assert made == text
    assert isinstance(parse_name(made), UrlName)


def test_a_token_is_the_kubelet_s_to_read() -> None:
    made = engine(model={"source": "hf://Qwen/Qwen3-8B", "secretRef": {"name": "hub"}})
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": reference} in made["env"]
    assert "HF_TOKEN" not in [one["name"] for one in engine()["env"]]


def test_api_keys_are_mounted_as_a_directory_that_follows_the_secret() -> None:
    made = pod(service={"apiKeysSecretRef": {"name": "keys"}})
    volume = next(one for one in made["volumes"] if one["name"] == "api-keys")
    assert volume["secret"]["secretName"] == "keys"
    mount = next(one for one in made["containers"][0]["volumeMounts"] if one["name"] == "api-keys")
    assert "subPath" not in mount
    assert f"--api-key-file={mount['mountPath']}/keys" in made["containers"][0]["args"]


def test_huge_pages_are_requested_beside_the_memory_and_mounted() -> None:
    hardware = {"accelerator": "nvidia", "cpu": 4, "hostMemory": {"pinned": "48Gi", "hugepages": "1Gi"}}
    made = pod(hardware=hardware)
    resources = made["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert {name: resources["limits"][name] for name in ("memory", "hugepages-1Gi")} == {
        "memory": "4Gi",
        "hugepages-1Gi": "48Gi",
    }
    assert {"name": "hugepages", "emptyDir": {"medium": "HugePages-1Gi"}} in made["volumes"]
    assert "--hugepages=1Gi" in made["containers"][0]["args"]
    made = pod(hardware={**hardware, "accelerator": "cpu"})
    assert not any(argument.startswith("--hugepages") for argument in made["containers"][0]["args"])


def test_a_suspended_model_keeps_its_children_and_has_no_pod() -> None:
    made = rendered(suspend=True, replicas=3)
    assert made["Deployment"]["spec"]["replicas"] == 0
    assert made.keys() == rendered(replicas=3).keys()


def test_the_user_s_pod_template_is_merged_over_ours() -> None:
    made = rendered(
        env=[{"name": "TZ", "value": "UTC"}, {"name": "HOME", "value": "/root"}],
        podTemplate={
            "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
            "spec": {"hostNetwork": True, "containers": [{"name": "engine", "env": [{"name": "TZ", "value": "CET"}]}]},
        },
    )
    template = made["Deployment"]["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"]["note"] == "b"
    assert template["spec"]["hostNetwork"] is True
    env = template["spec"]["containers"][0]["env"]
    assert {"name": "TZ", "value": "CET"} in env
    assert [one["value"] for one in env if one["name"] == "HOME"] == ["/root"]  # in place of the operator's
    assert made["Deployment"]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert "team" not in made["Deployment"]["metadata"]["labels"]


def test_the_cache_is_where_the_engine_is_told_that_it_is() -> None:
    data = environment()
    mount = next(m["mountPath"] for m in engine()["volumeMounts"] if m["name"] == "cache")
    assert data["STRATA_CACHE_DIR"].startswith(mount + "/")
    assert data["TRITON_CACHE_DIR"].startswith(mount + "/")


def test_the_days_that_weights_are_kept_reach_the_engine_and_what_fetches_for_it() -> None:
    kept = {"keepDays": 30}
    assert KEEP_DAYS not in environment()
    assert environment(cache=kept)[KEEP_DAYS] == "30"
    env = job(cache=kept)["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": KEEP_DAYS, "value": "30"} in env


def test_last_words_go_where_the_kubelet_reads_them() -> None:
    made = engine()
    assert made["terminationMessagePath"] == environment()["STRATA_TERMINATION_LOG"]
    assert made["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_deadline_outlasts_the_startup_budget() -> None:
    probe = engine()["startupProbe"]
    assert probe["httpGet"]["path"] == "/ready"
    assert probe["periodSeconds"] * probe["failureThreshold"] == STARTUP_SECONDS
    assert rendered()["Deployment"]["spec"]["progressDeadlineSeconds"] == PROGRESS_DEADLINE_SECONDS > STARTUP_SECONDS


def test_liveness_does_not_ask_for_readiness() -> None:
    assert engine()["livenessProbe"]["httpGet"]["path"] == "/health"
    assert engine()["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_a_roll_out_needs_no_second_gpu() -> None:
    strategy = rendered()["Deployment"]["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    first = children(model(), engine_image="registry/engine:1", starts_first=True)["Deployment"]["spec"]
    assert first["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert first["template"] == rendered()["Deployment"]["spec"]["template"]  # no new revision by itself


def test_a_pod_that_is_told_to_stop_serves_until_it_is_no_endpoint_any_more() -> None:
    made = pod()
    before = made["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = next(a for a in made["containers"][0]["args"] if a.startswith("--grace-seconds="))
    assert before + int(grace.split("=")[1]) < made["terminationGracePeriodSeconds"]


def test_pods_may_do_little() -> None:
    made = pod()
    assert made["automountServiceAccountToken"] is False
    security = made["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert made["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_a_changed_config_is_a_new_revision() -> None:
    def revision(**spec: Any) -> Any:
        return rendered(**spec)["Deployment"]["spec"]["template"]["metadata"]["annotations"]

    assert revision() == revision(replicas=5)
    assert revision() == revision(service={"port": 80})
    assert revision() != revision(engine={"maxModelLen": 8})
    assert revision(hardware=NVIDIA) != revision(hardware={**NVIDIA, "cpu": 8})


def test_scheduling_is_passed_on() -> None:
    made = pod(**FULL_SPEC)
    assert made["nodeSelector"] == {"disk": "nvme"}
    assert made["priorityClassName"] == "high"
    assert made["tolerations"][0]["tolerationSeconds"] == 60


def test_the_image_of_the_model_wins() -> None:
    assert engine()["image"] == "registry/engine:1"
    assert engine(image="mine:2")["image"] == "mine:2"


def test_the_url_is_the_service_s() -> None:
    service = rendered(service={"port": 80})["Service"]
    assert model(service={"port": 80}).endpoint.url == "http://m.ns.svc:80/v1"
    assert service["metadata"]["name"] == "m"
    assert service["spec"]["ports"][0]["port"] == 80
    assert model("a.b").endpoint.url.startswith("http://a-b-")


def test_the_api_s_port_is_open_and_no_other() -> None:
    made = rendered()
    container = made["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    (rule,) = made["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [port["containerPort"] for port in container["ports"]]
    assert "Egress" not in made["NetworkPolicy"]["spec"]["policyTypes"]


def test_a_drain_takes_one_of_several_replicas_at_a_time_and_is_never_held_up_for_ever() -> None:
    assert "PodDisruptionBudget" not in rendered(replicas=1)
    budget = rendered(replicas=3, suspend=True)["PodDisruptionBudget"]["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_metrics_are_read_at_the_engine_s_port() -> None:
    made = children(model(), engine_image="e", monitors=Monitors())
    (endpoint,) = made["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "http"
    node, named = endpoint["relabelings"]
    assert node["targetLabel"] == "node"  # by which its agent's figures are joined
    assert (named["targetLabel"], named["replacement"]) == ("model", "m")  # and the operator's
    assert made["PodMonitor"]["spec"]["selector"] == made["NetworkPolicy"]["spec"]["podSelector"]


def test_a_service_monitor_finds_the_model_s_service() -> None:
    labels = {"release": "kps", "app.kubernetes.io/name": "another"}
    made = children(model(), engine_image="e", monitors=Monitors("ServiceMonitor", labels, "30s"))
    service, monitor = made["Service"], made["ServiceMonitor"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,), (port,) = monitor["spec"]["endpoints"], service["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    by_pod = children(model(), engine_image="e", monitors=Monitors(interval="30s"))["PodMonitor"]
    assert by_pod["spec"]["podMetricsEndpoints"] == [endpoint]
    assert endpoint["interval"] == "30s"
    assert monitor["metadata"]["labels"] == {**service["metadata"]["labels"], "release": "kps"}


def job(**spec: Any) -> dict[str, Any]:
    return preflight(model(**spec), "0123456789abcdef", "gpu-1", engine_image="registry/engine:1")


def test_a_preflight_fetches_what_the_engine_would_where_it_would() -> None:
    hub = {"source": "hf://Qwen/Qwen3-8B", "revision": "v1", "secretRef": {"name": "hub"}}
    made = job(model=hub, hardware=NVIDIA)["spec"]["template"]["spec"]
    (container,) = made["containers"]
    assert container["args"] == ["fetch", "Qwen/Qwen3-8B", "--revision=v1", "--dtype=int4"]
    assert container["image"] == "registry/engine:1"
    served = environment(model=hub, hardware=NVIDIA)
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert {name: env[name] for name in ("STRATA_CACHE_DIR", "HF_HOME")} == {
        name: served[name] for name in ("STRATA_CACHE_DIR", "HF_HOME")
    }
    assert "HF_TOKEN" in env
    cache = next(one for one in made["volumes"] if one["name"] == "cache")
    assert cache in pod(hardware=NVIDIA)["volumes"]
    assert "nvidia.com/gpu" not in str(container["resources"])
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_preflight_s_command_line_is_the_engine_s() -> None:
    from strata.cli.main import build_parser

    args = job(**FULL_SPEC)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert build_parser().parse_args(args).dtype == "int8"


def test_a_preflight_is_no_endpoint_and_has_a_name_of_its_own_revision_and_node() -> None:
    made = job()
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert not rendered()["Service"]["spec"]["selector"].items() <= labels.items()
    assert labels["strata.ai/model"] == "m"  # by which its watch finds it
    others = [("fedcba98", "gpu-1"), ("0123456789abcdef", "gpu-2")]
    jobs = {preflight_name(model(), revision, node) for revision, node in others}
    assert len({made["metadata"]["name"], *jobs}) == 3
    assert made["metadata"]["name"] == preflight_name(model(), "0123456789abcdef", "gpu-1")
    assert len(job()["metadata"]["name"]) <= 63
    names = [one["name"] for one in made["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert len(names) == len(set(names))


def test_every_selector_finds_the_pods() -> None:
    made = children(model(replicas=2), engine_image="e", monitors=Monitors())
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind, field in (
        ("NetworkPolicy", "podSelector"),
        ("PodDisruptionBudget", "selector"),
        ("PodMonitor", "selector"),
    ):
        assert made[kind]["spec"][field]["matchLabels"].items() <= labels.items()
    assert made["Service"]["spec"]["selector"].items() <= labels.items()
    assert made["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    names = [port["name"] for port in made["Deployment"]["spec"]["template"]["spec"]["containers"][0]["ports"]]
    assert made["Service"]["spec"]["ports"][0]["targetPort"] in names
