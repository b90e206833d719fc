"""The page of all services. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flyball_operator.api.desire import Desire
from flyball_operator.api.summary import is_ready, trouble, wanted_pods, worst_objective
from flyball_operator.console.source import Source, cut

#: Services on a page.
PAGE_SIZE: Final = 100
#: Characters of a namespace and a name, with what may be between.
LONGEST_SEARCH: Final = 128


class WrongQueryError(ValueError):
    """A query that cannot be answered; the message names the parameter and what is accepted."""


@dataclass(frozen=True)
class Row:
    """One service, in words. `load`: arrivals and capacity. `trouble`: the gravest's reason, empty if there is none."""

    namespace: str
    name: str
    pods: str
    worst: str
    load: str
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
    worst = worst_objective(status)
    known = setpoint.max_num_active_seqs, setpoint.max_num_scheduled_tokens
    return Row(
        namespace=service.meta.namespace,
        name=service.meta.name,
        pods=pods(service),
        worst=f"{worst.name} {worst.attained} %" if worst is not None else "",
        load=f"{status.tuning.arrivals or '–'} / {status.tuning.capacity}" if status.tuning.capacity else "",
        limits=f"{known[0]} / {known[1]}" if None not in known else "",
        trouble=trouble(status),
    )


def pods(service: Desire) -> str:
    """How many serve, of how many there shall be."""
    replicas = service.service.spec.replicas if service.service is not None else None
    return f"{service.status.ready_replicas} of {wanted_pods(service.status, replicas)}"
