"""The chart's roles have exactly what the agent asks for: nothing is refused, and nothing is granted in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import yaml

from strata_operator.agent.fake import rtx3090
from strata_operator.agent.restore import restore_here, uninstall
from strata_operator.api.errors import UnavailableError
from strata_operator.api.names import TUNING_FINALIZER
from strata_operator.api.node import FORGET_FAULTS_ANNOTATION, NODE_KIND
from strata_operator.cluster.client import RESOURCES, Client
from tests.operator.agent.conftest import NODE, World
from tests.operator.agent.test_restore import daemon_set, ready
from tests.operator.live.harness import CHART
from tests.operator.samples import model_object

Make = Callable[..., World]
VERBS = {"merge": "patch", "apply": "patch"}


def granted(*templates: str) -> set[tuple[str, str]]:
    """Verb and resource. The rules are plain YAML, but for the name of the DaemonSet."""
    found = set()
    for name in templates:
        text = (CHART / "templates" / f"{name}.yaml").read_text().partition("\nrules:\n")[2].partition("{{- end }}")[0]
        for rule in yaml.safe_load(text.replace("{{", "").replace("}}", "").replace('"', "")):
            found |= {(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]}
    return found


def used(calls: Iterable[str]) -> set[tuple[str, str]]:
    """The fake client's calls as rights."""
    found = set()
    for call in calls:
        verb, *_, kind = call.split()
        if verb == "evict":
            found.add(("create", "pods/eviction"))
            continue
        resource = RESOURCES[kind].plural + ("/status" if "status" in call else "")
        found.add((VERBS.get(verb, verb), resource))
    return found


def test_the_agent_s(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.client.failing = {f"apply {NODE_KIND}": UnavailableError("busy", status=409)}
    here.driver.send_xid(here.cards[0], 31)
    here.agent.turn()
    here.client.failing = {}
    here.driver.send_xid(here.cards[0], 31)
    here.turn(2)  # the same event twice is counted up
    here.client.merge(NODE_KIND, None, NODE, {"metadata": {"annotations": {FORGET_FAULTS_ANNOTATION: "true"}}})
    here.want({"model": "llm/a", "powerLimitWatts": 280})
    here.turn()
    restore_here(here.mirror, here.agent, lambda: None)
    watches = {(verb, loop.kind) for loop in here.mirror.loops for verb in ("list", "watch")}
    asked = used(here.client.calls) | {(verb, RESOURCES[kind].plural) for verb, kind in watches}
    assert asked == granted("agent-clusterrole", "agent-role")


def test_the_uninstaller_s(world: Make) -> None:
    here = world(rtx3090())
    here.turn()
    here.want({"model": "llm/a", "powerLimitWatts": 280})
    here.turn()
    ready(here, "True")
    theirs: list[str] = []
    model = model_object()
    model["metadata"]["finalizers"] = [TUNING_FINALIZER]
    here.client.keep(model)
    pause = daemon_set(here, [])
    mine = here.client._call

    def noted(verb: str, kind: str) -> None:
        theirs.append(f"{verb} {kind}")
        mine(verb, kind)

    def agents() -> None:
        """What the agents do meanwhile does not count."""
        here.client._call = mine  # type: ignore[method-assign]
        pause()
        here.client._call = noted  # type: ignore[method-assign]

    here.client._call = noted  # type: ignore[method-assign]
    uninstall(cast("Client", here.client), "ns", "agent", has_time=lambda: True, pause=agents)
    asked = used(theirs) | {("list", "pods")}
    assert asked == granted("uninstall-clusterrole", "uninstall-role")
