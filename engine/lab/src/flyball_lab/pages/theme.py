"""Colours of pages and charts, on light and on dark ground. Pure."""

from __future__ import annotations

from typing import Final

#: Series are told apart by readers with any of the three colour vision deficiencies, and have a contrast of at least
#: 3:1 to the card (WCAG 2.2, 1.4.11). Their lines and markers differ, too.
_SERIES_ON_LIGHT: Final = ("#0072b2", "#d55e00", "#269c62", "#7b88b2", "#193971", "#964ff4", "#4b4c12", "#101018")
_SERIES_ON_DARK: Final = ("#4aa3f0", "#f58231", "#b74f3e", "#e9ffd3", "#e2e009", "#3fe3ea", "#a6ab9b", "#0b68eb")
#: How many colours series have.
SERIES: Final = len(_SERIES_ON_LIGHT)

#: By name of the CSS property. Charts are drawn in these and refer to the properties.
LIGHT: Final[dict[str, str]] = {
    "ground": "#ffffff",
    "card": "#f6f7f9",
    "ink": "#1c2430",
    "soft": "#5b6675",
    "grid": "#dde2e8",
    **{f"series-{number}": colour for number, colour in enumerate(_SERIES_ON_LIGHT)},
}
DARK: Final[dict[str, str]] = {
    "ground": "#12161c",
    "card": "#1b2129",
    "ink": "#e6eaf0",
    "soft": "#9aa6b5",
    "grid": "#2f3843",
    **{f"series-{number}": colour for number, colour in enumerate(_SERIES_ON_DARK)},
}
