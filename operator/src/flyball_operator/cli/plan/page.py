"""`flyball plan` as a page: one file of HTML that loads nothing. The console's style is read from its file."""

from __future__ import annotations

from importlib import resources

from flyball_operator import console
from flyball_operator.cli.plan import plot
from flyball_operator.cli.plan.report import FleetPlan, heading, look_back, needed, rows, savings, total
from flyball_operator.cli.terminal import printable
from flyball_operator.console.pages import templates


def as_page(fleet: FleetPlan) -> str:
    """The whole plan: what the text says, and plots of the load and of the objectives. It looks like the console."""
    return (
        templates(__package__)
        .get_template("plan.html.jinja")
        .render(
            fleet=fleet,
            style=(resources.files(console) / "static/console.css").read_text(encoding="utf-8"),
            area={"left": plot.LEFT, "right": plot.LEFT + plot.WIDTH, "foot": plot.ABOVE + plot.HEIGHT},
            plots=plot.plots,
            heading=heading,
            look_back=look_back(fleet),
            needed=needed,
            printable=printable,
            rows=rows,
            savings=savings,
            total=total,
        )
    )
