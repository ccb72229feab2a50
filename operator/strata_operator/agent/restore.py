"""Giving everything back: on this node at once, or on all nodes before the chart is uninstalled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from strata_operator.agent.agent import Agent
from strata_operator.agent.mirror import Mirror
from strata_operator.api.conditions import having
from strata_operator.api.errors import ApiError, MissingError
from strata_operator.api.model import KIND
from strata_operator.api.names import TUNING_FINALIZER
from strata_operator.api.node import NODE_KIND, NODE_LABELS
from strata_operator.cluster.client import Client

log = logging.getLogger(__name__)

TURNS = 5  # two suffice where the cards do what they are told


def restore_here(mirror: Mirror, agent: Agent, pause: Callable[[], None]) -> list[str]:
    """Suspend this node, so that a running agent does not tune it again, and give back; what could not be given back.

    Raises ApiError where the API server does not answer: the original values are there.
    """
    mirror.refresh()
    try:
        mirror.suspend()
    except MissingError:
        return []  # there are no original values: nothing was ever changed
    for _ in range(TURNS):
        mirror.refresh()
        agent.turn()
        if not left(mirror.strata_node or {}):
            return []
        pause()
    return left(mirror.strata_node or {})


def restore_everywhere(
    client: Client, *, has_time: Callable[[], bool], pause: Callable[[], None]
) -> dict[str, list[str]]:
    """Have the agents of all nodes give back; what is left by node. Nodes that are down are not waited for.

    Raises ApiError.
    """
    objects, _ = client.list_all(NODE_KIND)
    for obj in objects:
        client.merge(NODE_KIND, None, obj["metadata"]["name"], {"spec": {"suspend": True}})
    while True:
        objects, _ = client.list_all(NODE_KIND)
        waiting = {obj["metadata"]["name"]: left(obj) for obj in objects if left(obj)}
        if not has_time() or not any(_is_up(client, name) for name in waiting):
            return waiting
        pause()


def uninstall(
    client: Client, namespace: str, daemon_set: str, *, has_time: Callable[[], bool], pause: Callable[[], None]
) -> dict[str, list[str]]:
    """Give back everywhere, then end the agents and delete what they made; what is left by node.

    The agents end before the StrataNodes go: they would make them again, and the operator would have them tuned.
    Models are let go last. Raises ApiError.
    """
    waiting = restore_everywhere(client, has_time=has_time, pause=pause)
    try:
        selector = client.get("DaemonSet", namespace, daemon_set)["spec"]["selector"]["matchLabels"]
        client.delete("DaemonSet", namespace, daemon_set)
    except MissingError:
        selector = None
    while selector and has_time():
        pods = client.list(
            "Pod", namespace, labelSelector=",".join(f"{key}={value}" for key, value in selector.items())
        )
        if not pods.get("items"):
            break
        pause()
    objects, _ = client.list_all(NODE_KIND)
    for name in (obj["metadata"]["name"] for obj in objects):
        _unmark(client, name)
        if name not in waiting:  # with its original values a node can still be put right
            client.delete(NODE_KIND, None, name)
    _let_models_go(client)
    return waiting


def _let_models_go(client: Client) -> None:
    """Take the operator's finalizer off, for soon nobody is there any more who would: deletions would wait for ever.

    The operator adds none while no agent heeds what models wish for.
    """
    objects, _ = client.list_all(KIND)
    for metadata in (obj["metadata"] for obj in objects):
        held = metadata.get("finalizers") or []
        if TUNING_FINALIZER not in held:
            continue
        kept = [one for one in held if one != TUNING_FINALIZER]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": kept}}
        try:
            client.merge(KIND, metadata["namespace"], metadata["name"], patch)
        except ApiError as error:
            words = "%s/%s may keep the finalizer %s, and then waits for it when it is deleted: %s"
            log.warning(words, metadata["namespace"], metadata["name"], TUNING_FINALIZER, error)


def _unmark(client: Client, name: str) -> None:
    """Take the agent's labels and taint off the Node."""
    mirror = Mirror(client, name)
    try:
        mirror.put("Node", client.get("Node", None, name))
        mirror.mark_node(dict.fromkeys(NODE_LABELS), is_unhealthy=False)
    except MissingError:
        log.info("%s: there is no such Node any more", name)


def left(obj: Any) -> list[str]:
    """What a StrataNode's originals say that is still to be given back."""
    originals = (obj.get("status") or {}).get("originals") or {}
    return [f"card {one['uuid']}" for one in originals.get("gpus") or []] + [
        f"huge pages of {one['size']} on NUMA node {one['node']}" for one in originals.get("hugepages") or []
    ]


def _is_up(client: Client, name: str) -> bool:
    try:
        node = client.get("Node", None, name)
    except MissingError:
        return False
    return bool(having((node.get("status") or {}).get("conditions"), "Ready", "True"))
