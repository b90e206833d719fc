"""The queries of a dashboard as Grafana sends them: with its variables filled in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_LABEL_VALUES: Final = re.compile(r"label_values\((?P<series>.+), (?P<label>\w+)\)")
_VARIABLE: Final = re.compile(r"\$(\w+)")

#: Values of a label among series that a selector finds.
LabelValues = Callable[[str, str], Sequence[str]]


@dataclass(frozen=True)
class PanelQuery:
    """A query of a panel. `instant`: asked for one time, else for each time that is drawn."""

    panel: str
    kind: str
    expression: str
    legend: str
    unit: str
    instant: bool

    def name_of(self, labels: Mapping[str, str]) -> str:
        """What the legend calls a series."""
        return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), self.legend)


def variables(document: Mapping[str, Any], values: LabelValues) -> dict[str, list[str]]:
    """What each variable of a dashboard may be, by name. The first value of one stands for it in those after it.

    Raises `ValueError` where a variable's query is none that is known here.
    """
    found: dict[str, list[str]] = {}
    for one in document["templating"]["list"]:
        if one["type"] != "query":
            continue
        asked = _LABEL_VALUES.fullmatch(fill(one["query"], chosen(document, found)))
        if asked is None:
            raise ValueError(f"variable {one['name']}: {one['query']!r} is not label_values(series, label)")
        found[one["name"]] = sorted(values(asked["series"], asked["label"]))
    return found


def chosen(document: Mapping[str, Any], found: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What a dashboard that was just opened has: all values, or the first where one is to be chosen."""
    several = {one["name"] for one in document["templating"]["list"] if one.get("includeAll")}
    return {
        name: f"({'|'.join(map(_escaped, values))})" if name in several else next(iter(values), "")
        for name, values in found.items()
    }


def _escaped(value: str) -> str:
    """As a regular expression within PromQL's quotes."""
    return re.escape(value).replace("\\", r"\\")


def fill(text: str, values: Mapping[str, str]) -> str:
    """With these values for its variables. Those that are not known stay."""
    return _VARIABLE.sub(lambda found: values.get(found[1], found[0]), text)


def panel_queries(document: Mapping[str, Any], values: Mapping[str, str]) -> Iterator[PanelQuery]:
    """The queries of all panels."""
    for panel in document["panels"]:
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
        for target in panel.get("targets", ()):
            yield PanelQuery(
                panel["title"],
                panel["type"],
                fill(target["expr"], values),
                target["legendFormat"],
                unit,
                bool(target.get("instant")),
            )
