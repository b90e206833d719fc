"""What a label selector may look like, as kubectl takes it. Pure."""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN: Final = r"(?=[^/]{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY: Final = f"({_DOMAIN}/)?{_WORD}"
_VALUE: Final = f"({_WORD})?"
_REQUIREMENT: Final = re.compile(
    rf"!\s*{_KEY}|{_KEY}(\s*(==?|!=)\s*{_VALUE})?|{_KEY}\s+(not)?in\s*\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\)"
)
_COMMA_BETWEEN: Final = re.compile(r",(?![^(]*\))")


def check_selector(text: str) -> None:
    """Raise `ValueError`, which names the part that is wrong. Nothing is wrong with an empty text."""
    for part in _COMMA_BETWEEN.split(text) if text else ():
        if not _REQUIREMENT.fullmatch(part.strip()):
            raise ValueError(
                f"{part.strip()!r} is no requirement of a label selector; accepted: such as team=ml, tier in (a,b), !x"
            )
