"""Ctrl-C with what was measured by then."""

from __future__ import annotations

from collections.abc import Mapping


class InterruptedPart(KeyboardInterrupt):
    """A part ended early; `figures` are those of what was finished."""

    def __init__(self, figures: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__()
        self.figures = {title: dict(values) for title, values in figures.items()}
