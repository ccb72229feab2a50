"""Keeps what leads to models as their specs say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strata_operator import routing
from strata_operator.api.conditions import Condition, Trouble
from strata_operator.api.model import StrataModel
from strata_operator.api.observed import Observed
from strata_operator.api.reach import ROUTE_KINDS
from strata_operator.api.route import RouteDefaults
from strata_operator.cluster import apply
from strata_operator.cluster.client import Client
from strata_operator.cluster.executor import Executor
from strata_operator.plan import Action, plan


class Routes:
    """``defaults`` is None where routes are off; ``serves(kind)``: whether the API server knows the kind."""

    def __init__(
        self, client: Client, executor: Executor, defaults: RouteDefaults | None, serves: Callable[[str], bool]
    ) -> None:
        self._client = client
        self._executor = executor
        self._defaults = defaults
        self._serves = serves

    def keep(self, model: StrataModel, observed: Observed, done: list[Action], *, is_new: bool) -> Trouble | None:
        """Adds what succeeded to ``done``; returns what stands in the way. A model without a route costs nothing.

        ``is_new``: nobody can have deleted the model yet. Raises MissingError where it is gone, LeavingError where it
        is about to go, UnavailableError where the API server should be asked again later.
        """
        if model.route is None and not any(kind in observed.children for kind in ROUTE_KINDS):
            return None
        obstacle = None if model.route is None else routing.obstacle(model.route, self._defaults, self._serves)
        desired = {}
        if model.route is not None and self._defaults is not None and obstacle is None:
            desired = routing.children(model, model.route, self._defaults)
        wanted = plan(model, desired, observed)
        if not is_new and any(action.verb == "create" for action in wanted.actions):
            apply.check_owner(self._client, model)
        actions = (*wanted.actions, *routing.surplus(model, observed))
        outcome = self._executor.carry_out(model, replace(wanted, actions=actions), done, part="routes")
        return obstacle or next(iter(outcome.blocked), None)

    def verdict(self, model: StrataModel, observed: Observed, trouble: Trouble | None) -> Condition | None:
        """The condition Routed, None for a model that wants no route."""
        return routing.verdict(model, self._defaults, observed, trouble)
