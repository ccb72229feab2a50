"""Which nodes have a model's converted weights, by the operator's own record in the status; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api import wire
from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.model import StrataModel
from strata_operator.api.observed import Observed
from strata_operator.fit import Verdict
from strata_operator.inventory import candidates
from strata_operator.render.meta import digest

MOST_NODES = 32  # of a record: the newest; a scheduler that is told of more has no more use of it


@dataclass(frozen=True, slots=True)
class Cached:
    """``nodes``: in the order in which they got the weights."""

    weights: str  # what they are of, see ``weights_of``
    nodes: tuple[str, ...] = ()

    @classmethod
    def of(cls, status: Mapping[str, Any], weights: str) -> Cached:
        """What the status has of those weights. What cannot be read, edited by hand perhaps, counts as absent."""
        table = status.get("cache")
        if not isinstance(table, Mapping) or table.get("weights") != weights:
            return cls(weights)
        try:
            return wire.load(cls, table, "status.cache", closed=False)
        except InvalidSpecError:
            return cls(weights)

    def and_on(self, nodes: Iterable[str]) -> Cached:
        """With those nodes, too."""
        return Cached(self.weights, tuple(dict.fromkeys((*self.nodes, *nodes)))[-MOST_NODES:])

    def dump(self) -> dict[str, Any]:
        """For the status; empty where no node is known."""
        return dict(wire.dump(self)) if self.nodes else {}


def weights_of(model: StrataModel) -> str:
    """A digest of all that tells one node's weights from others, as far as the spec says."""
    facts = (model.source.text, model.revision, model.format, model.cache_host_path)
    return digest({"weights": [str(fact) for fact in facts]})


def known(model: StrataModel, revision: str, observed: Observed, status: Mapping[str, Any]) -> Cached:
    """The record, with the nodes where a pod of ``revision`` serves, or has brought the weights of it."""
    there = [pod for pod in observed.pods if pod.ready] + [pod for pod in observed.preflight if pod.succeeded]
    nodes = sorted({pod.node for pod in there if pod.revision == revision and pod.node is not None})
    return Cached.of(status, weights_of(model)).and_on(nodes)


def preferred(
    model: StrataModel,
    revision: str,
    observed: Observed,
    status: Mapping[str, Any],
    nodes_with: Callable[[str], Iterable[str]],
) -> tuple[str, ...]:
    """The nodes that pods of ``revision`` should prefer. ``nodes_with``: nodes with such weights of any model.

    Those that its template names already, unless no pod is of it yet: another template would replace them all.
    """
    deployment = observed.children.get("Deployment")
    live = deployment.rollout if deployment is not None else None
    is_asleep = live is not None and not (live.replicas or live.wanted)
    if live is not None and live.revision == revision and not (is_asleep and model.wanted_replicas):
        return live.preferred
    there = known(model, revision, observed, status)
    return there.and_on(nodes_with(there.weights)).nodes


def next_to_warm(model: StrataModel, revision: str, observed: Observed, fit: Verdict, there: Cached) -> str | None:
    """A node that ``cache.keepWarm`` wants the weights on; None: no more, or one gets them just now.

    One after the other: they share the line, and mostly the source.
    """
    if not model.keep_warm or fit.fits is False or len(there.nodes) >= MOST_NODES:
        return None
    tried = [pod for pod in observed.preflight if pod.revision == revision]
    if any(not (pod.failed or pod.succeeded or pod.trouble) for pod in tried):
        return None
    wanted = fit.nodes or [one.node.name for one in candidates(model.hardware, observed.nodes)]
    done = {*there.nodes, *(pod.meant_for for pod in tried)}
    return next((node for node in sorted(wanted) if node not in done), None)
