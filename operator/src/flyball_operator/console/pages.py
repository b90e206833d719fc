"""Pages as HTML: templates that escape whatever they are given. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from flyball_operator.console import chart
from flyball_operator.console.source import cut

#: What browsers may load and do: what comes from here, and no script or style within a page. Forms may lead to HTTPS
#: elsewhere: once a login has ended, an OIDC proxy redirects them to a login page, and Chromium checks that, too.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self' https:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def templates(package: str, *, shown: Callable[[object], object] | None = None) -> Environment:
    """The templates of a package, which escape whatever they are given. `shown`: what becomes of each value."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )


@cache
def _templates() -> Environment:
    made = templates("flyball_operator.console", shown=_shortened)
    made.filters["part"] = lambda text: quote(text, safe="")
    made.globals["chart_of"] = {"side": chart.SIDE, "left": chart.LEFT, "above": chart.ABOVE}
    return made


def _shortened(value: object) -> object:
    """Texts of any length come from status; only markup that templates made stays whole."""
    return cut(value) if type(value) is str else value


def render(template: str, *, root: str, **values: object) -> str:
    """A page. `root`: from its address to that of the first page, so that any proxy may put the console anywhere."""
    return _templates().get_template(f"{template}.html.jinja").render(root=root, **values)
