"""Templates of pages. Every value is escaped, except for the SVG that `charts` made."""

from __future__ import annotations

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from flyball_engine.figures import format_duration
from flyball_lab.pages.theme import DARK, LIGHT

_TEMPLATES: Final = Environment(
    loader=PackageLoader("flyball_lab.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters["duration"] = format_duration


def render(template: str, /, **values: object) -> str:
    """The page of a template; raises jinja2.TemplateError."""
    return _TEMPLATES.get_template(template).render(light=LIGHT, dark=DARK, **values)
