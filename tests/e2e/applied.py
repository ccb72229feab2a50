"""A StrataModel for one test, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.e2e.conftest import NAMESPACE
from tests.e2e.models import Object, conditions, evidence, states
from tests.e2e.target import Target

PULL_SECONDS = 600  # the first pod pulls the engine's image


@contextmanager
def applied(target: Target, manifest: str, name: str) -> Iterator[None]:
    target.run("kubectl", "apply", "-n", NAMESPACE, "-f", "-", stdin=manifest)
    try:
        yield
    finally:
        target.run("kubectl", "delete", "stratamodel", name, "-n", NAMESPACE, "--wait")
        # The node has CPUs for one model at a time: the next test's pod waits for this one's end.
        pods = ("kubectl", "delete", "pods", "-n", NAMESPACE, "-l", f"strata.ai/model={name}")
        target.run(*pods, "--wait", "--grace-period=1")


def until(target: Target, name: str, wanted: Callable[[Object], bool], seconds: float = PULL_SECONDS) -> Object:
    for state in states(target.kubeconfig, NAMESPACE, name, seconds=seconds):
        if wanted(state):
            return state
    raise AssertionError(evidence(target, NAMESPACE, name))


def degraded(reason: str) -> Callable[[Object], bool]:
    def wanted(state: Object) -> bool:
        condition = conditions(state).get("Degraded", {})
        return condition.get("status") == "True" and condition.get("reason") == reason

    return wanted
