"""The reconciler: snapshot, plan, apply, and again until nothing is left to do; then the status, then the events.

Everything is decided on live reads and carried out only on what was read. There is no look where nothing was written
since the last one (`steady`). The status is written once a round finds nothing to change, so it never reports a state
that was only meant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from cachetools import LRUCache

from flyball_operator.api.desire import Desire, read_desire
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import ROUTE_KINDS, Kind
from flyball_operator.api.service_key import Key
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    NotLeadingError,
    UnavailableError,
)
from flyball_operator.kube.events import EventPoster
from flyball_operator.kube.leadership import Leadership
from flyball_operator.kube.status import apply_status
from flyball_operator.reconcile.adoptions import Adoptions
from flyball_operator.reconcile.apply import carry_out, describe, dry_run
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.plan import admission, settling
from flyball_operator.reconcile.plan.fields import spelt
from flyball_operator.reconcile.plan.intents import Apply, Create, Plan
from flyball_operator.reconcile.plan.planner import plan as make_plan
from flyball_operator.reconcile.plan.snapshot import Attempt, DryRun, Snapshot
from flyball_operator.reconcile.plan.unwatched import unwatched
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.reader import Observed, SnapshotReader
from flyball_operator.reconcile.steady import SteadyServices

#: Rounds of snapshot, plan and apply in one go: creating takes three, a rollback four.
ROUNDS: Final = 8
#: Seconds one service may take; longer is a fault, and is tried again.
RECONCILE_SECONDS: Final = 60.0
#: Services whose last status write, last applies and last dry runs are remembered.
_REMEMBERED: Final = 10_000

log = logging.getLogger(__name__)


class UnsettledError(ClusterError):
    """After all rounds there was still something to do: somebody else keeps changing the same objects."""


class _AdoptionRefusedError(Exception):
    """The API server refused this operator's template, which the service would have taken by itself; its words."""


class _RefusedAsideError(Exception):
    """The API server refused what no pod waits for that serves: of the model, the adapters or the route; its words."""

    def __init__(self, kind: Kind, words: str) -> None:
        super().__init__(words)
        self.kind = kind


async def _held(_: str) -> bool:
    return True


class Reconciler:
    """Brings services to what their specs ask for."""

    def __init__(  # noqa: PLR0913 - parts of one operator, all by name
        self,
        *,
        api: KubeApi,
        reader: SnapshotReader,
        leadership: Leadership,
        events: EventPoster,
        metrics: Metrics,
        now: Callable[[], datetime],
        steady: SteadyServices,
        why_unwatched: Callable[[str], str | None] = lambda _: None,
        hold: Callable[[str], Awaitable[bool]] = _held,
        adoptions: Adoptions | None = None,
    ) -> None:
        """`why_unwatched`: why a namespace is not watched, None if it is, empty while that is not known.

        `hold`: whether this release may act in a namespace, or write the status of its services. `adoptions`: gives
        services their turns at this operator's template; by default none.
        """
        self._api = api
        self._reader = reader
        self._leadership = leadership
        self._events = events
        self._metrics = metrics
        self._now = now
        self._steady = steady
        self._why_unwatched = why_unwatched
        self._hold = hold
        self._adoptions = adoptions or Adoptions()
        #: Services whose turn has come since the queue was last told.
        self._next: set[Key] = set()
        # A process that starts does not know when the status was written last, and must not write because it started.
        self._started = now()
        self._status_written: LRUCache[str, datetime] = LRUCache(_REMEMBERED)
        self._attempts: LRUCache[str, dict[Kind, Attempt]] = LRUCache(_REMEMBERED)
        self._dry_runs: LRUCache[str, dict[Kind, DryRun]] = LRUCache(_REMEMBERED)

    async def work(self, queue: KeyQueue[Key]) -> None:
        """Work on keys for ever. Only its cancellation ends it: no service's trouble may stop the others."""
        while True:
            key = await queue.get()
            try:
                await self._work_on(key, queue)
            finally:
                queue.done(key)

    async def _work_on(self, key: Key, queue: KeyQueue[Key]) -> None:
        if not self._leadership.may_act():
            # Standing by. All keys are added again when the lease is won.
            return
        try:
            async with asyncio.timeout(RECONCILE_SECONDS):
                again = await self._look_at(key)
        except NotLeadingError:
            self._metrics.reconciled("fenced")
        except (ClusterError, TimeoutError) as error:
            self._metrics.reconciled("error")
            delay = queue.failed(key)
            log.warning(
                "%s: %s: %s; again in %.1f s",
                key,
                type(error).__name__,
                error,
                delay,
                extra=logged(LogEvent.RECONCILE_FAILED, key.namespace, key.name),
            )
        except Exception:
            # A bug shows on one service first; the others go on.
            self._metrics.reconciled("bug")
            log.exception(
                "%s: unexpected error; again in %.1f s",
                key,
                queue.failed(key),
                extra=logged(LogEvent.RECONCILE_BUG, key.namespace, key.name),
            )
        else:
            self._metrics.reconciled("ok")
            queue.succeeded(key)
            self._look_at_next(queue)
            if again is not None:
                queue.add(key, again)

    def _look_at_next(self, queue: KeyQueue[Key]) -> None:
        for key in self._next:
            queue.add(key)
        self._next.clear()

    async def _look_at(self, key: Key) -> float | None:
        why = self._why_unwatched(key.namespace)
        if why == "" or not await self._hold(key.namespace):
            return None
        if why is None:
            return None if self._steady.has(key, self._now()) else await self.reconcile(key)
        with suppress(ForbiddenError, NotFoundError):
            await self._report_unwatched(key, why)
        return None

    async def _report_unwatched(self, key: Key, why: str) -> None:
        """Say that nobody looks after the service; nothing else is done about it."""
        raw = await self._reader.service(key)
        if raw is None:
            return
        status = unwatched(raw, why, epoch=self._leadership.epoch, now=self._now())
        if status is not None:
            await apply_status(self._api, raw["metadata"], status)

    async def reconcile(self, key: Key) -> float | None:
        """Bring one service to what its spec asks for. Returns seconds after which to look again, if it must be.

        Raises `UnsettledError`, `InvalidObjectError` or `ForbiddenError` (shown in the status before), and the rest of
        the tree.
        """
        refused: dict[Kind, DryRun] = {}
        adoption_refused = ""
        refused_aside: dict[Kind, str] = {}
        for _ in range(ROUNDS):
            known = self._steady.known(key)
            seen = await self._reader.read(key, now=self._now(), epoch=self._leadership.epoch)
            if seen is None:
                self._next.update(self._adoptions.forget(key))
                return None
            uid = seen.snapshot.desire.meta.uid
            remembered = replace(
                seen.snapshot,
                status_written=self._status_written.get(uid, self._started),
                attempts=self._attempts.get(uid, {}),
                dry_runs={**self._dry_runs.get(uid, {}), **refused},
                turn=self._adoptions.turn(key, seen.snapshot.now),
                adoption_refused=adoption_refused,
                job_refused=refused_aside.get(Kind.JOB, ""),
                claim_refused=refused_aside.get(Kind.VOLUME_CLAIM, ""),
                adapters_refused=refused_aside.get(Kind.CONFIG_MAP, ""),
                route_refused=next((refused_aside[kind] for kind in ROUTE_KINDS if kind in refused_aside), ""),
            )
            seen = replace(seen, snapshot=remembered)
            plan = make_plan(seen.snapshot)
            self._next.update(self._adoptions.note(key, plan.standing))
            away: UnavailableError | None = None
            try:
                if unanswered := admission.unanswered(seen.snapshot, plan.intents):
                    answers, refusals, away = await self._ask(key, seen.snapshot, unanswered)
                    refused |= refusals
                    seen = replace(seen, snapshot=replace(seen.snapshot, dry_runs={**answers, **refused}))
                    plan = _answered(seen.snapshot)
                if not await self._carry_out(key, seen, plan):
                    left = await self._report(seen, plan)
                    if away is not None:
                        raise away
                    self._steady.note(key, seen.snapshot, plan, left, known)
                    return plan.requeue_after
            except _AdoptionRefusedError as error:
                log.warning(
                    "%s: this operator's template is refused, the earlier one stays: %s",
                    key,
                    error,
                    extra=logged(LogEvent.ADOPTION_REFUSED, key.namespace, key.name),
                )
                adoption_refused = str(error)
            except _RefusedAsideError as error:
                _log_refused_aside(key, error)
                refused_aside[error.kind] = str(error)
            except (ConflictError, AlreadyExistsError, NotFoundError) as error:
                log.info(
                    "%s: changed meanwhile, looking again: %s",
                    key,
                    error,
                    extra=logged(LogEvent.RECONCILE_AGAIN, key.namespace, key.name),
                )
        raise UnsettledError(f"{key} did not settle in {ROUNDS} rounds")

    async def _ask(
        self, key: Key, snapshot: Snapshot, applies: Iterable[Apply]
    ) -> tuple[dict[Kind, DryRun], dict[Kind, DryRun], UnavailableError | None]:
        """What the API server would make of these applies: its answers, its refusals, and why it could not say.

        A refusal is remembered for this reconciliation alone. A webhook that is away holds up the applies that it is
        asked about, and nothing else.
        """
        uid = snapshot.desire.meta.uid
        known: dict[Kind, DryRun] = dict(self._dry_runs.get(uid, {}))
        refused: dict[Kind, DryRun] = {}
        away: UnavailableError | None = None
        for apply in applies:
            try:
                answer = admission.answer(snapshot, apply, await dry_run(self._api, apply))
            except (InvalidObjectError, ForbiddenError):
                # Most likely the apply is refused, too. It is sent, and what comes of it is told.
                refused[apply.kind] = admission.refused(snapshot, apply)
                continue
            except UnavailableError as error:
                if apply.kind in ROUTE_KINDS:
                    refused[apply.kind] = admission.refused(snapshot, apply)
                    continue
                away = error
                continue
            before, known[apply.kind] = known.get(apply.kind), answer
            if answer.mutated and (before is None or before.mutated != answer.mutated):
                fields = ", ".join(sorted(spelt(path) for path in answer.mutated))
                log.info(
                    "%s: policies of the cluster change of %s: %s",
                    key,
                    apply.kind.value,
                    fields,
                    extra=logged(LogEvent.CHANGED_BY_POLICY, key.namespace, key.name),
                )
        self._dry_runs[uid] = known
        return known, refused, away

    async def _carry_out(self, key: Key, seen: Observed, plan: Plan) -> bool:
        """Carry the intents out in order. True if there were any."""
        for intent in plan.intents:
            try:
                await carry_out(self._api, key.namespace, intent)
            except (InvalidObjectError, ForbiddenError, UnavailableError) as error:
                if isinstance(error, UnavailableError) and intent.kind not in ROUTE_KINDS:
                    raise
                words = f"{describe(intent)}: {error}"
                aside = (Kind.VOLUME_CLAIM, Kind.CONFIG_MAP, *ROUTE_KINDS)
                if intent.kind in aside or (intent.kind is Kind.JOB and isinstance(intent, Create)):
                    # Whatever serves does so without it.
                    raise _RefusedAsideError(intent.kind, words) from error
                if plan.adopts:
                    # What serves shall go on, and follow its spec.
                    raise _AdoptionRefusedError(words) from error
                refused = replace(seen.snapshot, refused=words)
                await self._report(seen, make_plan(refused))
                raise
            if isinstance(intent, Apply):
                self._remember_attempt(seen, intent)
            self._metrics.wrote(intent)
            log.info("%s: %s", key, describe(intent), extra=logged(LogEvent.WROTE, key.namespace, key.name))
        return bool(plan.intents)

    def _remember_attempt(self, seen: Observed, intent: Apply) -> None:
        uid = seen.snapshot.desire.meta.uid
        attempt = settling.attempt(seen.snapshot, intent)
        self._attempts[uid] = {**self._attempts.get(uid, {}), intent.kind: attempt}

    async def _report(self, seen: Observed, plan: Plan) -> Desire:
        """Write the status, if it is to be. Returns the service with it."""
        desire = seen.snapshot.desire
        if plan.status is None:
            return desire
        meta = desire.meta
        written = await apply_status(self._api, seen.raw["metadata"], plan.status)
        self._status_written[meta.uid] = seen.snapshot.now
        for event in plan.events:
            await self._events.post_about(meta, type=event.type, reason=event.reason, message=event.message)
        return read_desire(written, desire)


def _log_refused_aside(key: Key, error: _RefusedAsideError) -> None:
    if error.kind in ROUTE_KINDS:
        log.warning(
            "%s: the route to the service is refused: %s",
            key,
            error,
            extra=logged(LogEvent.ROUTE_REFUSED, key.namespace, key.name),
        )
        return
    if error.kind is Kind.CONFIG_MAP:
        log.warning(
            "%s: the ConfigMap of its adapters is refused: %s",
            key,
            error,
            extra=logged(LogEvent.ADAPTERS_REFUSED, key.namespace, key.name),
        )
        return
    log.warning(
        "%s: the Job or claim for the model is refused: %s",
        key,
        error,
        extra=logged(LogEvent.DOWNLOAD_REFUSED, key.namespace, key.name),
    )


def _answered(snapshot: Snapshot) -> Plan:
    """The plan without the applies that nobody could say of what they change."""
    plan = make_plan(snapshot)
    unanswered = admission.unanswered(snapshot, plan.intents)
    return replace(plan, intents=tuple(intent for intent in plan.intents if intent not in unanswered))
