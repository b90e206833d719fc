"""The figures as one HTML page: no script, nothing loaded, light or dark as the reader's system is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from flyball_lab.benches.report.chart import Dot, chart
from flyball_lab.benchmark.page import STYLE

#: How keys end that are drawn, and half of the interval of such a key.
DRAWN: Final = (" over the oracle", " over the perfect", " over the undisturbed")
WIDTH: Final = " ±"
#: How keys begin that are of one seed: in a table of their own.
OF_SEED: Final = "seed "
_MORE_STYLE: Final = ".reference { stroke: var(--soft); stroke-dasharray: 3 3; } td.row { white-space: nowrap; }"
#: What is said of each part.
_PARTS: Final = {
    "open": "Nobody stands before the queue",
    "gated": "Everybody has the same gate",
    "order": "Constant setpoints: who is served first, and who is refused",
    "robust": "Disturbed: the law, and limits that never move, over their own undisturbed runs",
    "ablate": "What each constant of the law buys",
    "trace": "Recorded traffic",
}

Figures = Mapping[str, Mapping[str, float]]


def page(parts: Mapping[str, Figures], *, interrupted: bool = False) -> str:
    """The whole page."""
    body = "".join(_body(parts, interrupted=interrupted))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>hack/bench law</title><style>{STYLE}{_MORE_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _body(parts: Mapping[str, Figures], *, interrupted: bool) -> Iterator[str]:
    yield "<h1>The law, measured</h1>"
    yield (
        "<p>Goodput: requests per second that keep every objective. The oracle is the best of a grid of fixed limits, "
        "found in hindsight; behind a gate it may hold steps to a budget, and choose the gate's margin. "
        "Where there are several seeds, ± is half of the 95 % interval of the mean over them "
        "(Student's t, paired by seed).</p>"
    )
    if interrupted:
        yield "<p>Interrupted: only what was finished is here.</p>"
    for part, figures in parts.items():
        yield f"<h2>{escape(_PARTS.get(part, part))}</h2>"
        if not figures:
            yield "<p>Nothing was finished.</p>"
            continue
        drawn = [chart(title, dots) for title, dots in _charts(figures).items()]
        yield f'<div class="charts">{"".join(drawn)}</div>'
        yield table({title: _split(values)[0] for title, values in figures.items()})
        seeds = {title: each for title, values in figures.items() if (each := _split(values)[1])}
        if seeds:
            yield "<p>Seed by seed:</p>"
            yield table(seeds)


def _split(values: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Figures of all seeds together, and those of each by itself."""
    of_seeds = {key: value for key, value in values.items() if key.startswith(OF_SEED)}
    return {key: value for key, value in values.items() if key not in of_seeds}, of_seeds


def _charts(figures: Figures) -> dict[str, list[Dot]]:
    """One for each title; titles of the form `group: one of it` are rows of their group's."""
    found: dict[str, list[Dot]] = {}
    for title, values in figures.items():
        group, _, of_it = title.partition(": ")
        for key, value in values.items():
            if key.endswith(DRAWN):
                name = ", ".join(filter(None, (of_it, _name(key).removeprefix("the law") if of_it else _name(key))))
                ours = _name(key).startswith("the law")
                found.setdefault(group, []).append(Dot(name, value, values.get(key + WIDTH), ours=ours))
    return found


def _name(key: str) -> str:
    return next((key.removesuffix(end) for end in DRAWN if key.endswith(end)), key)


def table(figures: Figures) -> str:
    """A row for each title. What only a row has (its oracle) is in a column of its own."""
    shared = [key for key in _columns(figures) if not key.endswith(WIDTH)]
    heads = "".join(f"<th>{escape(_name(key))}</th>" for key in ("", *shared, "besides"))
    rows = "".join(_row(title, values, shared) for title, values in figures.items())
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _columns(figures: Figures) -> list[str]:
    """Keys that more than one row has, or all if there is but one."""
    counts: dict[str, int] = {}
    for values in figures.values():
        for key in values:
            counts[key] = counts.get(key, 0) + 1
    return [key for key, count in counts.items() if count > 1 or len(figures) == 1]


def _row(title: str, values: Mapping[str, float], shared: Sequence[str]) -> str:
    cells = "".join(f"<td>{_cell(values, key)}</td>" for key in shared)
    own = [f"{key} {value:.3g}" for key, value in values.items() if key not in shared and not key.endswith(WIDTH)]
    return f'<tr><td class="row">{escape(title)}</td>{cells}<td>{escape(", ".join(own))}</td></tr>'


def _cell(values: Mapping[str, float], key: str) -> str:
    if key not in values:
        return ""
    width = values.get(key + WIDTH)
    return f"{values[key]:.3g}" + (f" ± {width:.2g}" if width is not None else "")
