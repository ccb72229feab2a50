"""From a dashboard to Grafana's JSON, with Grafana's own SDK."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.panel import Dashboard, Panel, Query, Variable

TAG = "strata"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHTS = {"timeseries": 8, "stat": 4, "table": 9}
_PANELS = {"timeseries": timeseries.Panel, "stat": stat.Panel, "table": table.Panel}


def to_json(dashboard: Dashboard) -> str:
    """The same text for the same dashboard."""
    made = (
        build.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(dashboard.description)
        .tags([TAG])
        .time("now-3h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_to_the_others())
        .with_variable(build.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in dashboard.variables:
        made = made.with_variable(_variable(variable))
    number = 0
    for row in dashboard.rows:
        made = made.with_row(build.Row(row.title).id(number := number + 1))
        for panel in row.panels:
            made = made.with_panel(_panel(panel).id(number := number + 1))
    return f"{JSONEncoder(sort_keys=True, indent=2).encode(made.build())}\n"


def _to_the_others() -> build.DashboardLink:
    """Chosen values and the time go along."""
    link = build.DashboardLink("Strata").type(models.DashboardLinkType.DASHBOARDS)
    return link.tags([TAG]).as_dropdown(True).include_vars(True).keep_time(True)


def _variable(variable: Variable) -> build.QueryVariable:
    """``.*`` for all: series that lack the label are among them."""
    return (
        build.QueryVariable(variable.name)
        .label(variable.name.capitalize())
        .query(variable.query)
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel | table.Panel:
    made = (
        _PANELS[panel.kind]()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .span(panel.width)
        .height(_HEIGHTS[panel.kind])
        .unit(panel.unit)
    )
    for place, query in enumerate(panel.queries):
        made = made.with_target(_target(query, panel.kind, chr(ord("A") + place)))
    if panel.top is not None:
        made = made.max(panel.top)
    steps = [models.Threshold(value=None, color="green")]
    steps += [models.Threshold(value=panel.warn, color="yellow")] if panel.warn is not None else []
    steps += [models.Threshold(value=panel.bad, color="red")] if panel.bad is not None else []
    made = made.thresholds(build.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.kind == "timeseries":
        return _graph(made, panel)
    if panel.kind == "table":
        return _table(made, panel)
    return made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _graph(made: timeseries.Panel, panel: Panel) -> timeseries.Panel:
    mode = options.StackingMode.NORMAL if panel.stacked else options.StackingMode.NONE
    legend = common.VizLegendOptions().display_mode(options.LegendDisplayMode.LIST)
    return (
        made.min(0)
        .fill_opacity(20 if panel.stacked else 0)
        .stacking(common.StackingConfig().mode(mode))
        .legend(legend.placement(options.LegendPlacement.BOTTOM).show_legend(True))
        .tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI))
    )


def _table(made: table.Panel, panel: Panel) -> table.Panel:
    """One row for each combination of labels, one column for each query."""
    names: Mapping[str, str] = {
        f"Value #{chr(ord('A') + place)}": one.legend for place, one in enumerate(panel.queries)
    }
    names = {"Value": panel.queries[0].legend, **names} if len(panel.queries) == 1 else names
    made = made.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    arranged = {"excludeByName": {"Time": True}, "renameByName": dict(names)}
    made = made.with_transformation(models.DataTransformerConfig(id_val="organize", options=arranged))
    return made.data_links([build.DashboardLink("Open").url(panel.link)]) if panel.link else made


def _target(query: Query, kind: str, name: str) -> prometheus.Dataquery:
    made = prometheus.Dataquery().ref_id(name).expr(query.expr).legend_format(query.legend or "__auto")
    return made.instant().format(PromQueryFormat.TABLE) if kind == "table" else made.range()
