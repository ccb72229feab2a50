"""What is tried before a pod that serves is stopped for a new one: image, checkpoint and weights on its node; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from strata_operator.api.conditions import PREFLIGHT, PREFLIGHT_FAILED, STORAGE_FAILED, Trouble
from strata_operator.api.model import StrataModel
from strata_operator.api.observed import Observed
from strata_operator.api.pod import Pod

RETRY_SECONDS = 300.0  # of what had no room; as a kubelet's longest pause between two starts of a container


@dataclass(frozen=True, slots=True)
class Look:
    """How far it is; ``trouble`` says what it meets with, or of what it died."""

    state: Literal["absent", "running", "passed", "failed"]
    trouble: Trouble | None = None


def node_to_try(revision: str, observed: Observed) -> str | None:
    """The node of a pod that would be stopped for one of ``revision``; None where none serves.

    Of several, the first where nothing stands in the way so far: another may have an image that the first cannot get.
    """
    serving = [pod.node for pod in observed.pods if pod.ready and not pod.deleting and pod.revision != revision]
    nodes = sorted({node for node in serving if node is not None})
    fine = [node for node in nodes if look(observed.preflight, revision, node).trouble is None]
    return next(iter(fine or nodes), None)


def brings_nothing(model: StrataModel, before: StrataModel) -> bool:
    """Whether a new spec's pods need nothing on their node that those of ``before``, which serves, had not."""
    return _brought(before) == _brought(model)


def _brought(model: StrataModel) -> tuple[object, ...]:
    """All that has to be brought to a node, or be readable there."""
    return model.source, model.revision, model.token, model.format, model.image, model.cache_host_path


def look(pods: Iterable[Pod], revision: str, node: str) -> Look:
    """By the pods of that revision's preflight on that node."""
    mine = [pod for pod in pods if (pod.revision, pod.meant_for) == (revision, node)]
    if any(pod.succeeded for pod in mine):
        return Look("passed")
    alive = [pod for pod in mine if not pod.failed]
    if alive:
        return Look("running", next((pod.trouble for pod in alive if pod.trouble), None))
    if mine:
        return Look("failed", mine[-1].trouble)
    return Look("absent")


def superseded(pods: Iterable[Pod], revision: str) -> tuple[tuple[str, str], ...]:
    """Revisions that preflights try or have tried, with their nodes, and that are not ``revision``, which is served or
    is to be."""
    others = {(pod.revision, pod.meant_for) for pod in pods if pod.revision != revision and not pod.deleting}
    return tuple(sorted((other, node) for other, node in others if other is not None))


def retries(pods: Iterable[Pod], revision: str, now: datetime) -> dict[str, float]:
    """Nodes where a preflight of ``revision`` had no room, with the seconds until it is tried again: somebody may have
    made some. What fails for another reason is tried again once its Job has been deleted."""
    newest: dict[str, Pod] = {}
    for pod in sorted((pod for pod in pods if pod.revision == revision and pod.since), key=lambda pod: pod.since):
        newest[pod.meant_for] = pod
    return {
        node: RETRY_SECONDS - (now - datetime.fromisoformat(pod.since)).total_seconds()
        for node, pod in sorted(newest.items())
        if pod.failed and not pod.deleting and pod.trouble is not None and pod.trouble.reason == STORAGE_FAILED
    }


def hold(found: Look, node: str) -> Trouble:
    """Why the new spec's pods are not started yet."""
    if found.trouble is not None:
        return failed(found.trouble)
    return Trouble(
        PREFLIGHT,
        f"the image is pulled, the weights are fetched and converted on {node}; what serves goes on until then",
    )


def failed(trouble: Trouble) -> Trouble:
    """The same of a preflight that meets with ``trouble``."""
    return Trouble(PREFLIGHT_FAILED, f"{trouble.reason}: {trouble.message}; what serves goes on")
