"""What a start from zero costs: ``python -m tests.e2e.cold_start [NAMESPACE/NAME] [--times N]``.

It scales a model that is served to zero and back to one, asks it at once, and prints a row for each time: seconds from
the pod's creation until its container ran, from there until it was ready, and in all until the first token came.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.instance import DEFAULT_NAME
from tests.e2e import chat
from tests.e2e.models import conditions, is_true, states
from tests.e2e.target import JourneyError, Target

PATIENCE_SECONDS = 1800
LOOK_SECONDS = 0.2
_ANY_MODEL = "default/smollm2"


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds. The first two are whole ones, for Kubernetes writes no others."""

    running: float  # from the pod's creation: scheduling, pulling, mounting
    ready: float  # from there: loading, and the kubelet seeing that it is ready
    first_token: float  # in all, from the request to scale


def measure(target: Target, namespace: str, name: str) -> Start:
    """Once. Raises JourneyError where it does not get ready."""
    _scale(target, namespace, name, 0)
    _wait(target, namespace, name, "ScaledToZero")
    while _pods(target, namespace, name):
        time.sleep(LOOK_SECONDS)
    began = time.monotonic()
    _scale(target, namespace, name, 1)
    _wait(target, namespace, name, "Serving")
    with target.service(namespace, name) as url, chat.openai(url) as client:
        [served] = [model.id for model in client.models.list().data]
        next(chat.stream(client, served, "Why is the sky blue?", max_tokens=1))
    total = time.monotonic() - began
    (pod,) = _pods(target, namespace, name)
    created, running, ready = _times(pod)
    return Start(running - created, ready - running, total)


def _scale(target: Target, namespace: str, name: str, replicas: int) -> None:
    target.run("kubectl", "scale", f"stratamodel/{name}", "-n", namespace, f"--replicas={replicas}")


def _wait(target: Target, namespace: str, name: str, reason: str) -> None:
    for model in states(target.kubeconfig, namespace, name, seconds=PATIENCE_SECONDS):
        found = conditions(model).get("Ready", {})
        if found.get("reason") == reason:
            return
        if is_true(model, "Degraded"):
            raise JourneyError(f"{namespace}/{name} does not get {reason}: {found.get('message')}")
    raise JourneyError(f"{namespace}/{name} is not {reason} after {PATIENCE_SECONDS} s")


def _pods(target: Target, namespace: str, name: str) -> list[Mapping[str, Any]]:
    selector = target.run("kubectl", "get", "sm", name, "-n", namespace, "-o", "jsonpath={.status.selector}")
    return list(
        json.loads(target.run("kubectl", "get", "pods", "-n", namespace, "-l", selector, "-o", "json"))["items"]
    )


def _times(pod: Mapping[str, Any]) -> tuple[float, float, float]:
    """When it was created, its container ran, and it was ready."""
    (container,) = pod["status"]["containerStatuses"]
    (ready,) = (one["lastTransitionTime"] for one in pod["status"]["conditions"] if one["type"] == "Ready")
    texts = (pod["metadata"]["creationTimestamp"], container["state"]["running"]["startedAt"], ready)
    created, running, got_ready = (datetime.fromisoformat(text).timestamp() for text in texts)
    return created, running, got_ready


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 where the model does not come back."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cold_start", description=__doc__.partition("\n\n")[2])
    parser.add_argument(
        "model", nargs="?", default=_ANY_MODEL, help=f"NAMESPACE/NAME (default: {_ANY_MODEL}, the demo's)"
    )
    parser.add_argument("--times", type=int, default=3, help="how often (default: 3)")
    options = parser.parse_args(argv)
    namespace, _, name = options.model.partition("/")
    if not name:
        parser.error(f"{options.model!r} is no NAMESPACE/NAME")
    try:
        kubeconfig = os.environ.get("STRATA_KUBECONFIG")
        local = os.environ.get("STRATA_CLUSTER", DEFAULT_NAME)
        target = Target.foreign(kubeconfig) if kubeconfig else Target.local(Cluster.attach(local))
        print("container runs | ready | first token, in all", flush=True)
        for _ in range(options.times):
            one = measure(target, namespace, name)
            print(f"{one.running:.0f} s | {one.ready:.0f} s | {one.first_token:.1f} s", flush=True)
    except (JourneyError, ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
