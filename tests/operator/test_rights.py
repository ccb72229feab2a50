"""The table of rights in docs/operator.md is the chart's, verb by verb, and the programs ask for all of it."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from strata_operator.api.errors import UnavailableError
from strata_operator.api.model import KIND
from strata_operator.api.node import NODE_KIND
from strata_operator.api.reach import ROUTE_KINDS
from strata_operator.api.route import Parent, RouteDefaults
from strata_operator.cluster.client import RESOURCES, Client
from strata_operator.gateway.process import Process
from strata_operator.process import WATCHED
from strata_operator.render import MONITOR_KINDS, MonitorKind, Monitors
from tests.operator import test_reconcile as scenes
from tests.operator.agent.test_rights import used
from tests.operator.cluster.fake import FakeClient
from tests.operator.gateway.objects import model as gateway_model
from tests.operator.gateway.objects import secret
from tests.operator.live.harness import CHART, ROOT

TEMPLATES = {
    "operator": ("_helpers.tpl", "clusterrole.yaml", "role.yaml"),
    "agent": ("agent-clusterrole.yaml", "agent-role.yaml"),
    "sidecar": ("_gateway.tpl", "gateway-role.yaml"),
    "definer": ("crds-clusterrole.yaml",),
    "uninstaller": ("uninstall-clusterrole.yaml", "uninstall-role.yaml"),
}
WATCHES = ("list", "watch")
Rights = set[tuple[str, str]]  # verb and resource


def granted(who: str) -> Rights:
    """By the chart's rules, as they are written there."""
    text = "\n".join((CHART / "templates" / name).read_text() for name in TEMPLATES[who])
    rules = re.findall(r"resources: \[([^]]+)\]\n(?: *resourceNames: .*\n)? *verbs: \[([^]]+)\]", text)
    assert len(rules) == text.count("apiGroups:"), "a rule is not written as the others"
    return {
        (verb, resource)
        for resources, verbs in rules
        for resource in resources.split(", ")
        for verb in verbs.split(", ")
    }


def documented() -> list[tuple[str, str, str, str]]:
    """Rows of the table: who, resource, verb, what for."""
    section = (ROOT / "docs" / "operator.md").read_text().split("## Rights")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| (.+?) \| `(\w+)` \| (.+?) \|$", section, re.MULTILINE)
    return [
        (who, resource, verb, why)
        for who, resources, verb, why in rows
        for resource in re.findall("`(.+?)`", resources)
    ]


@pytest.mark.parametrize("who", TEMPLATES)
def test_the_table_has_every_verb_of_the_chart_s_once_and_no_other(who: str) -> None:
    found = [(verb, resource) for whose, resource, verb, _ in documented() if whose == who]
    assert set(found) == granted(who)
    assert len(found) == len(set(found))


def test_every_row_of_the_table_is_somebody_s_and_says_what_for() -> None:
    assert {who for who, *_ in documented()} == set(TEMPLATES)
    assert all(len(why.split()) >= 2 for *_, why in documented())


def children_calls(kind: MonitorKind) -> list[str]:
    """What is asked for while children are made, made again, and found to be another's."""
    made = scenes.World(replicas=2, podTemplate={"metadata": {"annotations": {"a": "b"}}})
    made.monitors = Monitors(kind)
    made.run()
    made.cache.remove("Service", made.client.objects.pop(("Service", *scenes.KEY)))
    made.run()  # made again: the owner is looked at, the event is counted up at the second time
    made.cache.remove("Service", made.client.objects.pop(("Service", *scenes.KEY)))
    made.client.failing["create Event"] = UnavailableError("already exists", status=409)
    made.run()
    made.client.failing.clear()
    made.put_pod()
    made.now += timedelta(seconds=60)
    made.run()  # why it is not created
    for child in (*scenes.ALL, "PodDisruptionBudget", kind):  # somebody took the label off: the name is taken, and ours
        made.cache.remove(child, made.client.objects[child, *scenes.KEY])
    made.run()
    return made.client.calls


def test_the_operator_asks_for_all_that_it_may() -> None:
    """What no scene of these uses is granted in vain, or is missing here."""
    calls = [call for kind in MONITOR_KINDS for call in children_calls(kind)]

    tuned = scenes.tuned_world()
    calls += tuned.client.calls

    tried = scenes.one_card_world()
    tried.run()
    scenes.trial(tried, 30, "Running")
    tried.model["spec"] = {**scenes.GPU}
    tried.change(generation=3)
    tried.run()
    calls += tried.client.calls

    stranded = scenes.stranded_world()
    stranded.run()
    calls += stranded.client.calls

    roomless = scenes.roomless_world()
    roomless.run()
    calls += roomless.client.calls

    kinds = (*WATCHED, *MONITOR_KINDS, *ROUTE_KINDS, KIND, NODE_KIND)
    for route in ({"endpointPickerRef": {"name": "p"}}, {"kind": "Ingress"}):
        led = scenes.World(routes=RouteDefaults(Parent("g")), route=route)
        led.served = set(ROUTE_KINDS)
        led.run()
        for kind in ROUTE_KINDS:  # the label was taken off: whose it is is looked at
            if (kind, *scenes.KEY) in led.client.objects:
                led.cache.remove(kind, led.client.objects[kind, *scenes.KEY])
        led.run()
        del led.model["spec"]["route"]
        led.change(generation=2)
        led.run()
        calls += led.client.calls

    watched = {(verb, RESOURCES[kind].plural) for kind in kinds for verb in WATCHES}
    leader: Rights = {("get", "leases"), ("create", "leases"), ("patch", "leases")}  # tests/operator/test_leader.py
    implied: Rights = {("update", "stratamodels/finalizers")}  # by owner references, not by a call
    assert used(calls) | watched | leader | implied == granted("operator")


def test_the_gateways_sidecar_asks_for_all_that_it_may(tmp_path: Path) -> None:
    client = FakeClient(secret("keys", "a", keys="k"))
    process = Process(cast("Client", client), tmp_path / "gateway.json", "gateway", ())
    process.book.put(KIND, gateway_model("m", service={"apiKeysSecretRef": {"name": "keys"}}))
    process.writer.write()
    watches = {(verb, RESOURCES[loop.kind].plural) for loop in process.loops for verb in WATCHES}
    assert used(client.calls) | watches == granted("sidecar")
