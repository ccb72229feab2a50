"""StrataModels as a client sees them: their conditions while they change, and what to show when they fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch

from tests.e2e.target import JourneyError, Target

OPERATOR_NAMESPACE, OPERATOR = "strata-system", "strata"
GROUP, VERSION, PLURAL = "strata.ai", "v1alpha1", "stratamodels"
# A model may be degraded for a while and mend: a pull is tried again, a pod starts again.
DEGRADED_SECONDS = 45
REMIND_SECONDS = 30  # a pull of gigabytes changes nothing for minutes
WATCH_SECONDS = 10  # then the list is read again, so that a state that lasts is seen to last

Object = dict[str, Any]


def api(kubeconfig: Path) -> client.ApiClient:
    return config.new_client_from_config(str(kubeconfig))


def states(kubeconfig: Path, namespace: str, name: str, *, seconds: float) -> Iterator[Object]:
    """The object now, after each change, and every few seconds; ends after ``seconds``."""
    models = client.CustomObjectsApi(api(kubeconfig))
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for event in watch.Watch().stream(
            models.list_namespaced_custom_object,
            GROUP, VERSION, namespace, PLURAL,
            field_selector=f"metadata.name={name}",
            timeout_seconds=max(1, min(WATCH_SECONDS, int(left))),
        ):  # fmt: skip
            if event["type"] != "DELETED":
                yield event["object"]


def conditions(model: Object) -> dict[str, Object]:
    """By type; none that speaks of an older generation than the spec's."""
    generation = model["metadata"]["generation"]
    given = model.get("status", {}).get("conditions", [])
    return {condition["type"]: condition for condition in given if condition["observedGeneration"] == generation}


def is_true(model: Object, condition: str) -> bool:
    return conditions(model).get(condition, {}).get("status") == "True"


def wait_ready(target: Target, namespace: str, name: str, *, seconds: float) -> Object:
    """Show the conditions as they change until the model is Ready; returns it.

    Raises JourneyError with the model's own reason and the end of its log.
    """
    started, shown = time.monotonic(), dict[str, str]()
    said = started

    def say(line: str) -> None:
        nonlocal said
        said = time.monotonic()
        print(f"    {said - started:6.1f} s  {line}", flush=True)

    def show(key: str, line: str) -> None:
        if line and shown.get(key) != line:
            shown[key] = line
            say(line)

    degraded_since: float | None = None
    for model in states(target.kubeconfig, namespace, name, seconds=seconds):
        for kind, condition in sorted(conditions(model).items()):
            show(kind, f"{kind}={condition['status']:<6} {condition['reason']}: {condition['message']}")
        if is_true(model, "Ready"):
            return model
        show("pod", last_pod_event(target, namespace, name))
        if time.monotonic() - said >= REMIND_SECONDS:
            say(f"still so: {shown.get('pod') or 'no pod yet'}")
        if not is_true(model, "Degraded"):
            degraded_since = None
        elif degraded_since is None:
            degraded_since = time.monotonic()
        elif time.monotonic() - degraded_since > DEGRADED_SECONDS:
            break
    raise JourneyError(
        f"{name} is not Ready after {time.monotonic() - started:.0f} s.\n{evidence(target, namespace, name)}"
    )


def last_pod_event(target: Target, namespace: str, name: str) -> str:
    """What Kubernetes last did for the model's pods ("Pulling image ..."); empty where nothing is known."""
    events = client.CoreV1Api(api(target.kubeconfig)).list_namespaced_event(
        namespace, field_selector="involvedObject.kind=Pod"
    )
    ours = [
        event
        for event in events.items
        # Probes fail as long as a model loads: the conditions say more of that.
        if event.involved_object.name.startswith(f"{name}-") and event.reason != "Unhealthy"
    ]
    if not ours:
        return ""
    last = max(ours, key=lambda event: str(event.last_timestamp or event.event_time or ""))
    return f"pod: {last.reason}: {last.message}"


def evidence(target: Target, namespace: str, name: str) -> str:
    """What a person would look at next."""
    of_model = ("-n", namespace, "-l", f"strata.ai/model={name}")
    looks = {
        "conditions": ("kubectl", "get", "stratamodel", name, "-n", namespace, "-o", "jsonpath={.status.conditions}"),
        "pods": ("kubectl", "get", "pods", *of_model, "-o", "wide"),
        "events": ("kubectl", "get", "events", "-n", namespace, "--sort-by=.lastTimestamp"),
        "the engine's log ends": ("kubectl", "logs", *of_model, "--tail=30"),
        "the operator's log ends": ("kubectl", "logs", "-n", OPERATOR_NAMESPACE, f"deployment/{OPERATOR}", "--tail=15"),
    }
    parts = []
    for title, command in looks.items():
        text = target.run(*command, check=False).strip().splitlines()
        parts.append(f"--- {title}\n" + "\n".join(text[-30:] or ["(nothing)"]))
    return "\n".join(parts)
