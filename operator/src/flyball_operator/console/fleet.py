"""The page of all services. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flyball_operator.api.desire import Desire
from flyball_operator.api.v1alpha1 import TROUBLES, Condition, ConditionType, InferenceServiceStatus, ObjectiveStatus
from flyball_operator.console.source import Source, cut

#: Services on a page.
PAGE_SIZE: Final = 100
#: Characters of a namespace and a name, with what may be between.
LONGEST_SEARCH: Final = 128


class WrongQueryError(ValueError):
    """A query that cannot be answered; the message names the parameter and what is accepted."""


@dataclass(frozen=True)
class Row:
    """One service, in words. `trouble`: the reason of the gravest, empty where there is none."""

    namespace: str
    name: str
    pods: str
    worst: str
    capacity: str
    limits: str
    trouble: str


@dataclass(frozen=True)
class Fleet:
    """Those whose name has `search` in it, page by page. `ready`: of all that match."""

    rows: tuple[Row, ...]
    search: str
    matching: int
    ready: int
    page: int
    pages: int


def fleet(source: Source, query: Mapping[str, str]) -> Fleet:
    """The page that is asked for. Raises `WrongQueryError`."""
    if wrong := sorted(query.keys() - {"search", "page"}):
        raise WrongQueryError(f"{cut(wrong[0], 40)}: unknown; accepted: search, page")
    search = query.get("search", "").strip()
    if len(search) > LONGEST_SEARCH:
        raise WrongQueryError(f"search: {len(search)} characters; accepted: at most {LONGEST_SEARCH}")
    matching = [one for one in source.services() if search in f"{one.meta.namespace}/{one.meta.name}"]
    pages = max(1, -(-len(matching) // PAGE_SIZE))
    page = _page(query.get("page", "1"), pages)
    matching.sort(key=lambda one: (one.meta.namespace, one.meta.name))
    return Fleet(
        rows=tuple(map(row, matching[(page - 1) * PAGE_SIZE : page * PAGE_SIZE])),
        search=search,
        matching=len(matching),
        ready=sum(is_ready(one.status) for one in matching),
        page=page,
        pages=pages,
    )


def _page(given: str, pages: int) -> int:
    # Of few characters: Python refuses to read a number of thousands.
    page = int(given) if given.isascii() and given.isdigit() and len(given) < 8 else 0
    if not 1 <= page <= pages:
        raise WrongQueryError(f"page: {cut(given, 40)!r}; accepted: a number from 1 to {pages}")
    return page


def row(service: Desire) -> Row:
    """The row of a service."""
    status, setpoint = service.status, service.status.tuning.setpoint
    worst = _worst(status)
    known = setpoint.max_num_active_seqs, setpoint.max_num_scheduled_tokens
    return Row(
        namespace=service.meta.namespace,
        name=service.meta.name,
        pods=pods(status),
        worst=f"{worst.name} {worst.attained} %" if worst is not None else "",
        capacity=status.tuning.capacity,
        limits=f"{known[0]} / {known[1]}" if None not in known else "",
        trouble=trouble(service),
    )


def pods(status: InferenceServiceStatus) -> str:
    """How many serve."""
    return f"{status.ready_replicas} of {status.replicas}"


def is_ready(status: InferenceServiceStatus) -> bool:
    """Whether status says so."""
    return any(one.type == ConditionType.READY and one.status == "True" for one in status.conditions)


def trouble(service: Desire) -> str:
    """The reason of the gravest trouble, empty where there is none."""
    known: dict[str, Condition] = {one.type: one for one in service.status.conditions}
    if not known:
        return "New"
    for kind in TROUBLES:
        one = known.get(kind)
        if one is not None and (one.status == "False" or (one.status != "True" and kind in TROUBLES[:2])):
            return one.reason
    return ""


def _worst(status: InferenceServiceStatus) -> ObjectiveStatus | None:
    """The objective with the least budget left."""
    counted = [(left, one) for one in status.objectives if (left := number(one.budget_remaining)) is not None]
    return min(counted, key=lambda one: one[0])[1] if counted else None


def number(text: str) -> float | None:
    """The number in a text of a status; None where there is none."""
    try:
        return float(text)
    except ValueError:
        return None
