"""`flyball plan` as a page: one file of HTML that loads nothing. Pure."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from flyball_operator.cli.plan import plot
from flyball_operator.cli.plan.report import FleetPlan, heading, look_back, needed, rows, savings, total
from flyball_operator.cli.terminal import printable

#: The console's, so that both look alike.
_STYLE: Final = ("flyball_operator.console", "static/console.css")


def as_page(fleet: FleetPlan) -> str:
    """The whole plan: what the text says, and plots of the load and of the objectives."""
    return _templates().get_template("plan.html.jinja").render(fleet=fleet, look_back=look_back(fleet))


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("flyball_operator.cli.plan"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    package, path = _STYLE
    made.globals |= {
        "style": (resources.files(package) / path).read_text(encoding="utf-8"),
        "heading": heading,
        "needed": needed,
        "printable": printable,
        "rows": rows,
        "savings": savings,
        "total": total,
        "plots": plot.plots,
        "area": {"left": plot.LEFT, "right": plot.LEFT + plot.WIDTH, "foot": plot.ABOVE + plot.HEIGHT},
    }
    return made
