"""Why no series of a service are found: what its scrape job lacks, and what mends it. Pure.

All sentences stay the same from tick to tick: they go into a condition and its event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from flyball_engine.contract import CONTROL_PORT, METRICS_PATH
from flyball_operator.api.names import LABEL_SERVICE_UID, PORT_CONTROL
from flyball_operator.prometheus.queries import ENGINES, FIELD, JOB, NAMELESS, NAMESPACE, POD, PRESENT, UID, UP
from flyball_operator.prometheus.vector import Vector
from flyball_operator.tuning.observe.signals import Identity

_PORT: Final = f"port `{PORT_CONTROL}` ({CONTROL_PORT} by default)"
#: So many jobs or namespaces are named.
_NAMED: Final = 5


class Found(NamedTuple):
    """Series or targets that are there: which (`queries.found`), by whose job, and what their labels say."""

    field: str
    job: str
    namespace: str
    uid: str


def rows_of(answer: Vector) -> list[Found]:
    """The answer to `queries.found`."""
    return [_row(sample.metric) for sample in answer]


def _row(labels: Mapping[str, str]) -> Found:
    return Found(*(labels.get(name, "") for name in (FIELD, JOB, NAMESPACE, UID)))


def why(identity: Identity, rows: Sequence[Found]) -> str:
    """What keeps a service from being seen, and how to mend it."""
    namespace, uid = identity
    here = [row for row in rows if row.namespace in ("", namespace)]
    ours = [row for row in rows if row.uid == uid and row.field == ENGINES]
    # The first of these that there is: what says more of the service comes before what says less.
    known: tuple[tuple[list[Found], Callable[[list[Found]], str]], ...] = (
        ([row for row in here if row.uid == uid and row.field == NAMELESS], partial(_lacking, POD)),
        ([row for row in ours if row.namespace == ""], partial(_lacking, NAMESPACE)),
        ([row for row in here if row.uid == uid and row.field == UP], _other_port),
        (ours, _elsewhere),
        ([row for row in here if row.uid == "" and row.field == ENGINES], partial(_lacking, UID)),
        ([row for row in rows if row.field == ENGINES], partial(_others, namespace, uid)),
    )
    nothing = f"Prometheus has no series {PRESENT}: no job scrapes {_PORT} of engine pods"
    message = next((sentence(seen) for seen, sentence in known if seen), nothing)
    return f"{message}; see docs/scraping.md"


def _lacking(label: str, rows: list[Found]) -> str:
    how = {
        UID: f"the pod label {LABEL_SERVICE_UID} as {UID} (a labelmap, or podTargetLabels)",
        NAMESPACE: "the namespace of the pod",
        POD: "the name of the pod",
    }
    return f"job {_jobs(rows)} scrapes {PRESENT} without the target label {label}. Let its relabelling set {how[label]}"


def _elsewhere(rows: list[Found]) -> str:
    where = _list(row.namespace for row in rows)
    return (
        f"{PRESENT} with this service's UID has the label {NAMESPACE}={where} only. "
        f"Let the job set {NAMESPACE} to the pod's namespace, or delete the foreign pods"
    )


def _other_port(rows: list[Found]) -> str:
    return (
        f"job {_jobs(rows)} scrapes pods of this service, but {PRESENT} is not among what it finds. "
        f"Let it scrape {_PORT} of the pods, path {METRICS_PATH}"
    )


def _others(namespace: str, uid: str, _rows: list[Found]) -> str:
    # Whose they are is no tenant's business, and jobs are named after namespaces.
    return (
        f"{PRESENT} is found for other services, not for UID {uid} in {namespace}. "
        f"Its pods are new, or no job scrapes {_PORT} of them"
    )


def _jobs(rows: Iterable[Found]) -> str:
    return _list(f"`{row.job}`" for row in rows)


def _list(words: Iterable[str]) -> str:
    distinct = sorted(set(words))
    more = f" and {len(distinct) - _NAMED} more" if len(distinct) > _NAMED else ""
    return ", ".join(distinct[:_NAMED]) + more
