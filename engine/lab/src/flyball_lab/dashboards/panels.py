"""Panels, variables and annotations as all dashboards have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

Panel: TypeAlias = Builder[models.Panel]
#: The one that the viewer chooses at the top.
SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
#: All dashboards have it, and link each other by it.
TAG: Final = "flyball"
_ALL: Final = models.VariableOption(selected=True, text="All", value="$__all")
#: Grid units: a dashboard is 24 wide.
WIDTH: Final = 24
_HEIGHT: Final = 8


@dataclass(frozen=True)
class Query:
    """One query of a panel. `legend` names its series by their labels; `dashed`: it is a bound or a target."""

    expression: str
    legend: str
    dashed: bool = False


def dashboard(title: str, uid: str, description: str) -> builders.Dashboard:
    """An empty dashboard of the last hour, with the choice of a data source and links to the others."""
    links = builders.DashboardLink("Flyball").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    return (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(links.keep_time(True).include_vars(True).as_dropdown(True))
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )


def variable(
    name: str, query: str, *, label: str, several: bool = False, hidden: bool = False
) -> builders.QueryVariable:
    """A choice among what a query finds, asked anew when the time shown changes. `several`: all by default."""
    made = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if several:
        made = made.multi(True).include_all(True).current(_ALL)
    return made.hide(models.VariableHide.HIDE_VARIABLE) if hidden else made


def lines(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    width: int = WIDTH // 2,
    stacked: bool = False,
    most: float | None = None,
) -> timeseries.Panel:
    """Lines over time, from zero up. `most`: where the axis ends at least."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .axis_soft_min(0)
        .line_width(1)
        .fill_opacity(20 if stacked else 0)
        .span(width)
        .height(_HEIGHT)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if most is not None:
        panel = panel.axis_soft_max(most)
    for number, query in enumerate(queries):
        reference = _reference(number)
        panel = panel.with_target(_target(query, reference).range())
        if query.dashed:
            dash = {"fill": "dash", "dash": [8, 6]}
            panel = panel.override_by_query(reference, [models.DynamicConfigValue("custom.lineStyle", dash)])
    return panel


def number(
    title: str, description: str, query: Query, *, unit: str = "short", steps: Sequence[tuple[float | None, str]] = ()
) -> stat.Panel:
    """One figure, as it is now. `steps`: from which value on it has which colour, the first from None on."""
    colours = [models.Threshold(value=value, color=colour) for value, colour in steps or ((None, "text"),)]
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(WIDTH // 6)
        .height(4)
        .thresholds(builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(colours))
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .with_target(_target(query, "A").instant())
    )


def rows(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    units: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
    hidden: Sequence[str] = (),
    links: Mapping[str, models.DashboardLink] | None = None,
    width: int = WIDTH,
) -> table.Panel:
    """A table of figures as they are now: queries become columns with their legend as head, labels the others.

    `units`: by head. `renamed`: heads of labels. `hidden`: labels and columns that are not shown.
    """
    references = {f"Value #{_reference(place)}": query.legend for place, query in enumerate(queries)}
    heads = references | ({"Value": queries[0].legend} if len(queries) == 1 else {}) | dict(renamed or {})
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .span(width)
        .height(_HEIGHT)
        .with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            models.DataTransformerConfig(
                id_val="organize",
                options={"excludeByName": dict.fromkeys(("Time", *hidden), True), "renameByName": heads},
            )
        )
    )
    for place, query in enumerate(queries):
        panel = panel.with_target(_target(query, _reference(place)).instant().format(PromQueryFormat.TABLE))
    for head, unit in (units or {}).items():
        panel = panel.override_by_name(head, [models.DynamicConfigValue("unit", unit)])
    for head, link in (links or {}).items():
        panel = panel.override_by_name(head, [models.DynamicConfigValue("links", [link])])
    return panel


class _Annotation(models.AnnotationQuery):
    """With what Grafana's Prometheus data source takes of an annotation besides."""

    def __init__(self, *, title: str, tags: str, **given: Any) -> None:
        super().__init__(**given)
        self._more: Final = {"titleFormat": title, "tagKeys": tags, "textFormat": "", "step": "15s"}

    def to_json(self) -> dict[str, object]:
        return super().to_json() | self._more


class Annotation(builders.AnnotationQuery):
    """Marks the times at which a query has a figure. `title` and `tags` name labels of it."""

    def __init__(self, name: str, expression: str, *, title: str, tags: str, colour: str) -> None:
        super().__init__()
        self._internal = _Annotation(
            title=title, tags=tags, name=name, expr=expression, datasource=SOURCE, icon_color=colour
        )


def _target(query: Query, reference: str) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(reference).datasource(SOURCE)
    )


def _reference(number: int) -> str:
    return chr(ord("A") + number)
