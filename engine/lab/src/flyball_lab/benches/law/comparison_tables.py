"""The comparisons as tables of docs/law-figures.md. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Final

from flyball_engine.figures import figure
from flyball_lab.benches.figures import Tables
from flyball_lab.benches.intervals import OF_SEED, WIDTH
from flyball_lab.benches.law.comparison import OVER, PLAIN, SELDOM, Figures
from flyball_lab.benches.law.contenders import CONSTANT, the_law
from flyball_lab.benches.law.setpoints import GATE_MARGIN
from flyball_lab.pages.figures import Cell, Column, table

#: The law at the tick that ships.
LAW: Final = the_law(5.0).name
DEFAULT: Final = "256/8192"
#: Rows that are no scenario.
_SUMMED: Final = ("worst", "geometric mean")
#: Prefix of most scenarios: those that name no device run on an H100.
_USUAL: Final = "h100 "
#: From so many rules on, a tie has their number.
_TIE: Final = 3
#: What is asked of a law that decides every 15 s, and of changes a minute.
_SELDOM_LEAST: Final = 0.97
_CHANGES: Final = f"{LAW}, changes a minute"


def tables(figures: Figures) -> Tables:
    """By scenario the law, the best fixed limits and the best baseline; over all scenarios; what is asked, and got."""
    cases = {name: values for name, values in figures.items() if name not in _SUMMED}
    rows = [
        (
            short(name),
            statistics.fmean(_seeds(values, LAW)),
            100 * values[f"{LAW}, kept of those let in"],
            *_oracle(values),
            _with_width(values, LAW + OVER),
            *best_baseline(values),
        )
        for name, values in cases.items()
    ]
    columns = (
        "scenario",
        Column(title="law, /s", decimals=2),
        Column(title="kept, %", decimals=1),
        "best fixed limits",
        Column(title="theirs, /s", digits=4),
        Column(title="law/fixed", decimals=2),
        "best baseline",
        Column(title="its ratio", decimals=2),
    )
    found = {"": table(columns, rows)}
    if len(cases) > 1:
        numbers = (Column(title=title, decimals=2) for title in _SUMMED)
        found["summary"] = table(("over all scenarios", *numbers), list(_summary(figures, cases)))
    if asked := list(_asked(cases)):
        found["asked"] = table(("asked", "got"), asked)
    return found


def traced(figures: Figures) -> Tables:
    """Recorded traffic, by whether there is a gate."""
    rows = []
    for name, values in figures.items():
        limits, goodput = _oracle(values)
        rule, ratio = best_baseline(values)
        rows.append((name, f"{limits}, {goodput:.1f}/s", _with_width(values, LAW + OVER), f"{rule} {ratio:.2f}"))
    titles = ("load", "best fixed limits", Column(title="law/fixed", decimals=2), "best baseline")
    return {"": table(titles, rows)}


def short(case: str) -> str:
    """A scenario's name on the page."""
    return case.removeprefix(_USUAL)


def best_baseline(values: Mapping[str, float]) -> tuple[str, float]:
    """Names of the best rules, and their ratio; rules whose ratios are written alike are equal."""
    ratios = {rule: round(ratio, 2) for rule, ratio in _rules(values).items()}
    most = max(ratios.values())
    tied = [rule for rule, ratio in ratios.items() if ratio == most]
    return (f"{len(tied)} rules" if len(tied) >= _TIE else ", ".join(tied)), most


def _rules(values: Mapping[str, float]) -> dict[str, float]:
    """Of each baseline the ratio; of one that moves S alone, with the best C."""
    found: dict[str, float] = {}
    for key, value in values.items():
        name = key.removesuffix(OVER)
        ours = name.startswith("the law") or name in (CONSTANT, PLAIN)
        if key.endswith(OVER) and not ours and "/" not in name:
            rule = name.partition(", C ")[0]
            found[rule] = max(value, found.get(rule, 0.0))
    return found


def _seeds(values: Mapping[str, float], name: str) -> list[float]:
    return [value for key, value in values.items() if key.startswith(OF_SEED) and key.endswith(f": {name}, requests/s")]


def _oracle(values: Mapping[str, float]) -> tuple[str, float]:
    """The best fixed limits, with their budget and margin, and their goodput."""
    key, goodput = next((key, value) for key, value in values.items() if key.startswith("oracle "))
    name = key.removeprefix("oracle ").removesuffix(", goodput").replace(", steps × ", "×")
    return name.removesuffix(f", gate × {GATE_MARGIN:g}"), goodput


def _with_width(values: Mapping[str, float], key: str) -> float | str:
    """A ratio, with half of its interval where there are several seeds."""
    width = values.get(key + WIDTH)
    return values[key] if width is None else f"{values[key]:.2f} ± {figure(width, 2)}"


def _summary(figures: Figures, cases: Figures) -> Iterator[tuple[Cell, ...]]:
    worst, mean = (figures[name] for name in _SUMMED)
    for name, key in (("the law", LAW + OVER), (CONSTANT, CONSTANT + OVER)):
        if key in mean:
            yield name, worst[key], _with_width(mean, key)
    by_case = [_rules(values) for values in cases.values()]
    for rule in by_case[0]:
        ratios = [one[rule] for one in by_case]
        yield rule, min(ratios), statistics.geometric_mean(ratios) if min(ratios) > 0 else 0.0
    yield f"vLLM's default {DEFAULT}", worst[DEFAULT + OVER], _with_width(mean, DEFAULT + OVER)


def _asked(cases: Figures) -> Iterator[tuple[str, str]]:
    seldom = sorted((values[SELDOM], short(name)) for name, values in cases.items() if SELDOM in values)
    if seldom:
        below = [one for one in seldom if one[0] < _SELDOM_LEAST] or seldom[:1]
        told = ", ".join(f"{ratio:.2f} in {name}" for ratio, name in below)
        yield f"every 15 s: {_SELDOM_LEAST:g} of every 1 s", f"{told}; all others {_SELDOM_LEAST:g} or more"
    yield "at most 6 changes a minute", f"{max(values[_CHANGES] for values in cases.values()):g}"
