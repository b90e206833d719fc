"""The table of `flyball top`: a row per service, from what the API server has of it. Pure.

Only what a row shows is kept, so that a thousand services are a few hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from flyball_operator.api.objects import Object
from flyball_operator.api.parse import parse_status
from flyball_operator.api.summary import is_ready, number, trouble, wanted_pods, worst_objective

#: Columns that names and reasons have at least.
_LEAST: Final = 8
_GAP: Final = "  "


@dataclass(frozen=True)
class Row:
    """One service. `attained`: percent of its worst objective, the one with the least budget left; None: not counted.

    `arrivals`, `capacity`: requests per second; None: not known. `reason`: why it is not Ready, else of the gravest
    trouble.
    """

    namespace: str
    name: str
    ready: int
    desired: int
    is_ready: bool
    worst_objective: str
    attained: float | None
    budget_remaining: float | None
    arrivals: float | None
    capacity: float | None
    requests: int | None
    tokens: int | None
    reason: str

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def load(self) -> float | None:
        """Share of the capacity that arrives."""
        return self.arrivals / self.capacity if self.arrivals is not None and self.capacity else None


def key_of(service: Object) -> tuple[str, str]:
    """Namespace and name of an object."""
    return str(service["metadata"]["namespace"]), str(service["metadata"]["name"])


def row(service: Object) -> Row:
    """The row of a service. What its status does not say, or says wrongly, is not known."""
    status = parse_status(service.get("status"))
    setpoint, worst = status.tuning.setpoint, worst_objective(status)
    namespace, name = key_of(service)
    return Row(
        namespace=namespace,
        name=name,
        ready=status.ready_replicas,
        desired=wanted_pods(status, (service.get("spec") or {}).get("replicas")),
        is_ready=is_ready(status),
        worst_objective=worst.name if worst is not None else "",
        attained=number(worst.attained) if worst is not None else None,
        budget_remaining=number(worst.budget_remaining) if worst is not None else None,
        arrivals=number(status.tuning.arrivals),
        capacity=number(status.tuning.capacity),
        requests=setpoint.max_num_active_seqs,
        tokens=setpoint.max_num_scheduled_tokens,
        reason=trouble(status),
    )


def _unknown_last(of: Callable[[Row], float | None]) -> Callable[[Row], tuple[Any, ...]]:
    def key(one: Row) -> tuple[Any, ...]:
        value = of(one)
        return (value is None, 0.0 if value is None else value, *one.key)

    return key


#: What rows can be sorted by: the worst first, names by the alphabet.
SORTS: Final[Mapping[str, Callable[[Row], tuple[Any, ...]]]] = {
    "name": lambda one: one.key,
    "pods": lambda one: (one.is_ready, one.ready - one.desired, *one.key),
    "worst": _unknown_last(lambda one: one.budget_remaining),
    "load": _unknown_last(lambda one: None if one.load is None else -one.load),
    "reason": lambda one: (not one.reason, one.reason, *one.key),
}
_HEAD: Final = ("NAMESPACE", "NAME", "PODS", "WORST", "LOAD", "LIMITS", "REASON")
#: Of the head, columns whose words are cut where there is no room.
_CUT: Final = (1, 0, 6)


def ordered(rows: Iterable[Row], sort: str) -> list[Row]:
    """Rows in the order of one of `SORTS`."""
    return sorted(rows, key=SORTS[sort])


def table(rows: Sequence[Row], width: int) -> list[str]:
    """A head and a line per row, none longer than `width`: names and reasons are cut where there is no room."""
    cells = [_HEAD, *map(_cells, rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(_HEAD))]
    room = width - len(_GAP) * (len(_HEAD) - 1)
    while sum(widths) > room and any(widths[at] > _LEAST for at in _CUT):
        longest = max(_CUT, key=widths.__getitem__)
        widths[longest] -= 1
    return [
        _GAP.join(cut(cell, size).ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip()[:width]
        for line in cells
    ]


def _cells(one: Row) -> tuple[str, ...]:
    load = "-" if one.load is None else f"{one.arrivals:g}/{one.capacity:g} {100 * one.load:.0f}%"
    attained = "-" if one.attained is None else f"{one.attained:.1f}%"
    limits = f"{_or_dash(one.requests)}/{_or_dash(one.tokens)}"
    return one.namespace, one.name, f"{one.ready}/{one.desired}", attained, load, limits, one.reason or "-"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def cut(text: str, size: int) -> str:
    """The text in so many columns; what is cut ends with an ellipsis."""
    return text if len(text) <= size else f"{text[: size - 1]}…"


def summary(rows: Sequence[Row]) -> str:
    """How many there are and how many of them are Ready."""
    return f"{len(rows)} {'service' if len(rows) == 1 else 'services'}, {sum(one.is_ready for one in rows)} Ready"


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The document of `-o json`."""
    return {"services": [asdict(one) | {"load": one.load} for one in rows]}
