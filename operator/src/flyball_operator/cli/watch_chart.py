"""The chart of `flyball watch`: load, limits and objectives of one service over time, and its last decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from flyball_operator.api.objects import Object
from flyball_operator.api.summary import number
from flyball_operator.cli.limits import change_in_words
from flyball_operator.cli.top_rows import Row, cut, row

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_NOT_KNOWN: Final = " "
#: Columns of names, and of figures beside a line.
_NAME: Final = 12
_FIGURE: Final = 26
#: Least percents that the line of an objective spans, so that noise is no cliff.
_LEAST_SPAN: Final = 5.0


@dataclass(frozen=True)
class Decision:
    """A change of limits, in words."""

    time: str
    change: str
    why: str


@dataclass(frozen=True)
class Sample:
    """A service at a moment. `attained`: percent, by objective; None where nothing was counted. `targets`: likewise."""

    at: str
    row: Row
    mode: str
    attained: Mapping[str, float | None]
    targets: Mapping[str, str]
    decisions: tuple[Decision, ...]


def sample(service: Object, at: str) -> Sample:
    """What a service is now; what its status does not say is not known."""
    spec, status = service.get("spec") or {}, service.get("status") or {}
    counted = {one.get("name"): one.get("attained") for one in status.get("objectives") or ()}
    objectives = spec.get("objectives") or ()
    return Sample(
        at=at,
        row=row(service),
        mode=str((spec.get("tuning") or {}).get("mode") or "Auto"),
        attained={one["name"]: number(counted.get(one["name"])) for one in objectives},
        targets={one["name"]: str(one.get("target") or "99") for one in objectives},
        decisions=tuple(map(_decision, (status.get("tuning") or {}).get("decisions") or ())),
    )


def _decision(found: Object) -> Decision:
    change = change_in_words(found.get("before") or {}, found.get("after") or {})
    return Decision(str(found.get("time")), change, str(found.get("trigger", "")))


def as_json(found: Sample) -> dict[str, Any]:
    """A sample as a document of one line."""
    return {**asdict(found), "row": asdict(found.row)}


def chart(samples: Sequence[Sample], width: int) -> list[str]:
    """The chart of these samples, the newest last and at the right, in lines that fit."""
    return [cut(line.rstrip(), width) for line in _lines(samples, width)]


def _lines(samples: Sequence[Sample], width: int) -> Iterator[str]:
    last = samples[-1]
    state = f"{last.row.ready}/{last.row.desired} pods Ready"
    yield f"{last.row.namespace}/{last.row.name}, mode {last.mode}, {state}, {last.at}"
    yield f"reason: {last.row.reason}" if last.row.reason else ""
    room = max(8, width - _NAME - _FIGURE)
    shown = samples[-room:]
    rows = [one.row for one in shown]
    load = "not known"
    if last.row.load is not None:
        load = f"{last.row.arrivals:g} of {last.row.capacity:g}/s, {100 * last.row.load:.0f} %"
    yield line("load", [one.load for one in rows], room, load)
    yield line("requests", [one.requests for one in rows], room, _limit(last.row.requests, "at once"))
    yield line("tokens", [one.tokens for one in rows], room, _limit(last.row.tokens, "in a step"))
    for name, value in last.attained.items():
        figure = f"{'-' if value is None else f'{value:.1f}'} % of {last.targets[name]} %"
        values = [one.attained.get(name) for one in shown]
        yield line(name, values, room, figure, most=100.0, least=_least(values))
    yield "last decisions" if last.decisions else "no decision yet"
    for one in last.decisions:
        yield f"  {one.time}: {one.change}"
        yield f"    {one.why}"


def _limit(value: int | None, unit: str) -> str:
    return "none set" if value is None else f"{value} {unit}"


def _least(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return min([*known, 100.0 - _LEAST_SPAN])


def line(
    name: str,
    values: Sequence[float | None],
    room: int,
    figure: str,
    *,
    most: float | None = None,
    least: float = 0.0,
) -> str:
    """One row: a name, blocks between `least` and `most` (default: the largest), and a figure. None: not known."""
    known = [value for value in values if value is not None]
    top = most if most is not None else max(known, default=0.0)
    blocks = "".join(_NOT_KNOWN if value is None else _block(value, least, top) for value in values)
    short = name if len(name) < _NAME else f"{name[: _NAME - 2]}…"
    return f"{short:<{_NAME}}{blocks:>{room}}  {figure}"


def _block(value: float, least: float, most: float) -> str:
    share = (value - least) / (most - least) if most > least else 0.0
    return _BLOCKS[round(max(0.0, min(1.0, share)) * (len(_BLOCKS) - 1))]
