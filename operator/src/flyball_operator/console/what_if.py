"""What the law would choose, were the objectives others. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.figures import format_duration, significant
from flyball_operator.console.service import NOT_LED
from flyball_operator.console.source import cut
from flyball_operator.tuning.control_input import ControlOutput
from flyball_operator.tuning.insight import Insight
from flyball_operator.tuning.outlook import NAMES, figures
from flyball_operator.tuning.spec import LatencyObjective

#: A slider has this many steps up to the present threshold. It goes down to a quarter, and up to four times.
_STEPS: Final = 20
_FURTHEST: Final = 4


@dataclass(frozen=True)
class Slider:
    """A threshold in milliseconds, `now` and as asked for. `least`, `most` and `step` are as HTML has them."""

    name: str
    metric: str
    now: str
    value: str
    least: str
    most: str
    step: str


@dataclass(frozen=True)
class Line:
    """A figure with the objectives there are, and with those asked for."""

    name: str
    now: str
    then: str


@dataclass(frozen=True)
class WhatIf:
    """`errors` name the parameter and what is accepted. `unknown`: why there is no answer."""

    sliders: tuple[Slider, ...]
    lines: tuple[Line, ...] = ()
    errors: tuple[str, ...] = ()
    unknown: str = ""


def what_if(insight: Insight | None, query: Mapping[str, str]) -> WhatIf:
    """The answer to altered thresholds, by name of the objective in milliseconds; one that is not given stays."""
    if insight is None:
        return WhatIf((), unknown=NOT_LED)
    present = insight.spec.objectives
    asked, errors = _asked(present, query)
    sliders = tuple(map(_slider, present, asked))
    if errors:
        return WhatIf(sliders, errors=errors)
    if not present:
        return WhatIf(sliders, unknown="The service has no objectives.")
    now, then = insight.choose(present), insight.choose(asked)
    if now is None or then is None:
        return WhatIf(sliders, unknown="The law has no answer yet: it needs a trusted step-time model, and requests.")
    return WhatIf(sliders, lines=_lines(now, then))


def _asked(
    present: tuple[LatencyObjective, ...], query: Mapping[str, str]
) -> tuple[tuple[LatencyObjective, ...], tuple[str, ...]]:
    names = [one.name for one in present]
    accepted = ", ".join(names) or "none"
    errors = [f"{cut(name, 40)}: unknown; accepted: {accepted}" for name in query if name not in names][:1]
    asked = []
    for one in present:
        value = _number(query[one.name]) if one.name in query else 1e3 * one.seconds
        least, most = _range(one)
        if not least <= value <= most:
            errors.append(f"{one.name}: {cut(query[one.name], 40)!r}; accepted: {least:g} to {most:g} milliseconds")
            value = 1e3 * one.seconds
        asked.append(replace(one, seconds=value / 1e3))
    return tuple(asked), tuple(errors)


def _number(text: str) -> float:
    """The number in a text; one that is in no range where there is none."""
    try:
        return float(text) if len(text) <= 24 else math.nan
    except ValueError:
        return math.nan


def _range(objective: LatencyObjective) -> tuple[float, float]:
    """Milliseconds, as a form shows them."""
    now = 1e3 * objective.seconds
    return significant(now / _FURTHEST, 6), significant(now * _FURTHEST, 6)


def _slider(now: LatencyObjective, asked: LatencyObjective) -> Slider:
    least, most = _range(now)
    return Slider(
        name=now.name,
        metric=now.metric.value,
        now=format_duration(now.seconds),
        value=f"{1e3 * asked.seconds:.6g}",
        least=f"{least:g}",
        most=f"{most:g}",
        step=f"{1e3 * now.seconds / _STEPS:.6g}",
    )


def _lines(now: ControlOutput, then: ControlOutput) -> tuple[Line, ...]:
    return tuple(map(Line, NAMES, figures(now), figures(then)))
