"""When to stop applying: somebody changes the same fields after each apply. What policies do in it is `admission`'s.

After two equal results of the same apply the service says so. The object is not applied again until the spec changes,
it changes in other fields, or the resync is due. Other objects are looked after as ever.

What is tried again at a resync is tried once. The condition stays, until the object was left alone for a
whole resync. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from flyball_engine.figures import format_duration
from flyball_operator.api import names
from flyball_operator.api.objects import ROUTE_KINDS, Kind, annotation, content, digest, name
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.reconcile.plan.acceptance import AcceptedReason
from flyball_operator.reconcile.plan.fields import managers, spelt
from flyball_operator.reconcile.plan.intents import Apply, Intent
from flyball_operator.reconcile.plan.snapshot import Attempt, Snapshot

#: A condition message has room for this many fields.
_MOST_FIELDS: Final = 5


def attempt(snapshot: Snapshot, apply: Apply) -> Attempt:
    """What to remember of this apply, once it is done: what it was for is the result of the one before."""
    of = _of(snapshot, apply)
    before = snapshot.attempts.get(apply.kind)
    if before is None or before.of != of:
        return Attempt(of=of, results=frozenset(), at=snapshot.now)
    if _is_recent(snapshot, before):
        return replace(before, results=before.results | {apply.fields}, at=snapshot.now)
    if apply.fields in before.results and _given_up(snapshot, apply.kind):
        return Attempt(of=of, results=frozenset({apply.fields}), at=snapshot.now, doubt=_changed_after(snapshot, apply))
    return Attempt(of=of, results=frozenset(), at=snapshot.now)


def futile(snapshot: Snapshot, intents: Iterable[Intent]) -> tuple[Apply, ...]:
    """The applies that had this result before: the same fields were found changed after an apply of the same."""
    applies = [intent for intent in intents if isinstance(intent, Apply)]
    return tuple(
        one for one in applies if (before := _recent(snapshot, one)) is not None and one.fields in before.results
    )


def looks(snapshot: Snapshot, given_up: Iterable[Apply]) -> list[float]:
    """Seconds until each of them is tried again, or no longer doubted."""
    kinds = {*(one.kind for one in given_up), *_doubted(snapshot)}
    ages = [(snapshot.now - snapshot.attempts[kind].at).total_seconds() for kind in kinds]
    return [snapshot.config.resync_seconds - age for age in ages]


def words(snapshot: Snapshot, given_up: Iterable[Apply], undone: Iterable[Apply], *, routes: bool) -> str:
    """Names the objects, their fields, and who changes them after an apply (`given_up`) or in it (`undone`).

    Empty if nobody does. `routes`: of the way from gateways, else of all else. A route is not worth a service that is
    not accepted.
    """
    after = {kind: snapshot.attempts[kind].doubt for kind in _doubted(snapshot)}
    after |= {one.kind: _changed_after(snapshot, one) for one in given_up}
    within = {one.kind: _changed_within(snapshot, one) for one in undone}
    kinds = [kind for kind in Kind if (kind in ROUTE_KINDS) == routes]
    sentences = [found[kind] for kind in kinds for found in (within, after) if kind in found]
    if not sentences:
        return ""
    sentences.append("Exempt the object, or ask for the same in the spec.")
    again = format_duration(snapshot.config.resync_seconds)
    sentences.append(f"It is applied again when the spec or another of its fields changes, and every {again}.")
    return " ".join(sentences)


def _changed_within(snapshot: Snapshot, apply: Apply) -> str:
    return f"{_fields(snapshot, apply)} changed in each apply, by an admission policy or webhook."


def _changed_after(snapshot: Snapshot, apply: Apply) -> str:
    live = snapshot.objects[apply.kind]
    changers = sorted({manager for path in apply.fields for manager in managers(live, path)})
    who = (
        f"by field manager {' and '.join(changers)}"
        if changers
        else "probably by an admission policy or webhook (no field manager is recorded)"
    )
    return f"{_fields(snapshot, apply)} changed after each apply, {who}."


def _fields(snapshot: Snapshot, apply: Apply) -> str:
    fields = [spelt(path) for path in apply.fields[:_MOST_FIELDS]]
    if len(apply.fields) > _MOST_FIELDS:
        fields.append(f"{len(apply.fields) - _MOST_FIELDS} more")
    return f"{apply.kind.value} {name(snapshot.objects[apply.kind])}: {', '.join(fields)}"


def _doubted(snapshot: Snapshot) -> tuple[Kind, ...]:
    """Objects that were tried again, and have not yet been left alone for a whole resync."""
    return tuple(
        kind
        for kind, tried in snapshot.attempts.items()
        if tried.doubt and tried.of[0] == snapshot.desire.meta.generation and _is_recent(snapshot, tried)
    )


def _given_up(snapshot: Snapshot, kind: Kind) -> bool:
    """Whether status says that applies of a kind have ended."""
    told = ConditionType.ROUTED if kind in ROUTE_KINDS else ConditionType.ACCEPTED
    conditions = snapshot.desire.status.conditions
    return any((one.type, one.reason) == (told, AcceptedReason.CHANGED_BY_OTHERS) for one in conditions)


def _recent(snapshot: Snapshot, apply: Apply) -> Attempt | None:
    """The last apply of the same, if it is recent."""
    before = snapshot.attempts.get(apply.kind)
    if before is None or before.of != _of(snapshot, apply):
        return None
    return before if _is_recent(snapshot, before) else None


def _is_recent(snapshot: Snapshot, tried: Attempt) -> bool:
    """Whether it is not so old that the world may be another by now."""
    # Before the last apply is no time to wait from: the clock was set back.
    return 0 <= (snapshot.now - tried.at).total_seconds() < snapshot.config.resync_seconds


def _of(snapshot: Snapshot, apply: Apply) -> tuple[int, str]:
    """Names what is applied for which generation; not annotations, which note what became of it.

    Except that of a shortage: it may come and go often, and another moment to note is another apply.
    """
    noted = annotation(apply.body, names.ANNOTATION_SHORTAGE)
    return snapshot.desire.meta.generation, digest([content(apply.body), noted])
