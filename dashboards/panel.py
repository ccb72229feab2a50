"""What a dashboard consists of, before it is Grafana's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["timeseries", "stat", "table"]


@dataclass(frozen=True, slots=True)
class Query:
    """``needs``: what has to be there for an answer, where the engine, operator and agent of the tests lack it."""

    expr: str
    legend: str = ""
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """``unit`` is Grafana's. ``warn``, ``bad``: from where on a figure is yellow or red; a table has none.

    ``width`` is of 24. ``top``: where the axis ends. ``link``: of a table's rows, an address below Grafana's.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    warn: float | None = None
    bad: float | None = None
    top: float | None = None
    stacked: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """What a user chooses of the values of one label; ``metric`` is whose label it is."""

    name: str
    metric: str

    @property
    def query(self) -> str:
        """Grafana's, not PromQL."""
        return f"label_values({self.metric}, {self.name})"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """``uid`` stays the same for ever: links and bookmarks have it."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    def queries(self) -> Iterator[tuple[Panel, Query]]:
        """Of all panels."""
        for row in self.rows:
            for panel in row.panels:
                for query in panel.queries:
                    yield panel, query


NAMESPACE = Variable("namespace", "strata_build_info")
MODEL = Variable("model", 'strata_build_info{namespace=~"$namespace"}')
NODE = Variable("node", "strata_agent_connected")
