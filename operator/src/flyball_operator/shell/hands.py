"""The hands: snapshot, plan, apply, and again until nothing is left to do; then the status, then the events.

Everything is decided on live reads and carried out only on what was read. The status is written once a round finds
nothing to change, so it never tells of a state that was only meant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

from flyball_operator.cluster.api import KubeApi
from flyball_operator.cluster.apply import carry_out, describe
from flyball_operator.cluster.errors import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    NotLeadingError,
    RefusedError,
)
from flyball_operator.cluster.events import EventPoster
from flyball_operator.cluster.reader import Key, Reader, Seen
from flyball_operator.cluster.status import apply_status
from flyball_operator.plan.intents import Plan
from flyball_operator.plan.planner import plan as make_plan
from flyball_operator.shell.ports import Leadership
from flyball_operator.shell.queue import KeyQueue
from flyball_operator.shell.telemetry import Metrics

#: Rounds of snapshot, plan and apply in one go: creating takes three, a rollback four.
ROUNDS: Final = 8
#: Seconds one service may take; longer is a fault, and is tried again.
RECONCILE_SECONDS: Final = 60.0
#: Services whose last status write is remembered.
_REMEMBERED: Final = 10_000

log = logging.getLogger(__name__)


class UnsettledError(ClusterError):
    """After all rounds there was still something to do: somebody else keeps changing the same objects."""


class Hands:
    """Brings services to what their specs ask for."""

    def __init__(
        self,
        *,
        api: KubeApi,
        reader: Reader,
        leadership: Leadership,
        events: EventPoster,
        metrics: Metrics,
        now: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._reader = reader
        self._leadership = leadership
        self._events = events
        self._metrics = metrics
        self._now = now
        # A process that starts does not know when the status was written last, and must not write because it started.
        self._started = now()
        self._status_written: dict[str, datetime] = {}

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
                again = await self.reconcile(key)
        except NotLeadingError:
            self._metrics.reconciled("fenced")
        except (ClusterError, TimeoutError) as error:
            self._metrics.reconciled("error")
            delay = queue.failed(key)
            log.warning("%s: %s: %s; again in %.1f s", key, type(error).__name__, error, delay)
        except Exception:
            # A bug shows on one service first; the others go on.
            self._metrics.reconciled("bug")
            log.exception("%s: unexpected error; again in %.1f s", key, queue.failed(key))
        else:
            self._metrics.reconciled("ok")
            queue.succeeded(key)
            if again is not None:
                queue.add(key, again)

    async def reconcile(self, key: Key) -> float | None:
        """Bring one service to what its spec asks for. Returns seconds after which to look again, if it must be.

        Raises `UnsettledError`, `RefusedError` or `ForbiddenError` (told in the status before), and the rest of the
        tree.
        """
        for _ in range(ROUNDS):
            seen = await self._reader.read(key, now=self._now(), epoch=self._leadership.epoch)
            if seen is None:
                return None
            uid = seen.snapshot.desire.meta.uid
            seen = replace(
                seen, snapshot=replace(seen.snapshot, status_written=self._status_written.get(uid, self._started))
            )
            plan = make_plan(seen.snapshot)
            try:
                if not await self._carry_out(key, seen, plan):
                    await self._tell(seen, plan)
                    return plan.requeue_after
            except (ConflictError, AlreadyExistsError, NotFoundError) as error:
                log.info("%s: changed meanwhile, looking again: %s", key, error)
        raise UnsettledError(f"{key} did not settle in {ROUNDS} rounds")

    async def _carry_out(self, key: Key, seen: Seen, plan: Plan) -> bool:
        """Carry the intents out in order. True if there were any."""
        for intent in plan.intents:
            try:
                await carry_out(self._api, key.namespace, intent)
            except (RefusedError, ForbiddenError) as error:
                told = replace(seen.snapshot, refused=f"{describe(intent)}: {error}")
                await self._tell(seen, make_plan(told))
                raise
            self._metrics.wrote(intent)
            log.info("%s: %s", key, describe(intent))
        return bool(plan.intents)

    async def _tell(self, seen: Seen, plan: Plan) -> None:
        if plan.status is None:
            return
        meta = seen.snapshot.desire.meta
        await apply_status(self._api, seen.raw["metadata"], plan.status)
        self._status_written.pop(meta.uid, None)
        self._status_written[meta.uid] = seen.snapshot.now
        if len(self._status_written) > _REMEMBERED:
            del self._status_written[next(iter(self._status_written))]
        for event in plan.events:
            await self._events.post_about(meta, type=event.type, reason=event.reason, message=event.message)
