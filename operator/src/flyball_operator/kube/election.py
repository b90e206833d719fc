"""Which replica acts: our own election over a Lease, with client-go's semantics.

The client library's own let two leaders act when the API server hung. The rules here:

- Time is monotonic and counts suspension; clocks of other machines, and ours on the wall, decide nothing.
- A leader may act for 10 s from the moment it *sent* its last successful renewal; another takes the lease 15 s after it
  *saw* the record change last. Any error is a failed renewal: not seeing is not holding.
- The epoch is the Lease's transitions. It never falls, also when the Lease was deleted. Whoever takes or makes the
  Lease goes above every epoch in any service's status, since engines and the API server refuse older ones. Who makes it
  goes far above, since engines may know leaders that changed nothing and are in no status.
- A leader may raise its epoch, by the Lease, to order above an engine that holds what nobody can have written. Once an
  hour at most, and not far: what engines say must not use the numbers up.
- The lease is given back only after this process has stopped writing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from flyball_operator.api.epochs import UNRECORDED_LEADERS
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ClusterError, NotFoundError
from flyball_operator.kube.resources import LEASES
from flyball_operator.reconcile.plan.objects import Object

#: Seconds after which others take a lease whose record does not change.
LEASE_SECONDS: Final = 15
#: Seconds from a successful renewal's sending for which its sender may act.
RENEW_DEADLINE: Final = 10.0
RETRY_SECONDS: Final = 2.0
REQUEST_SECONDS: Final = 2.0
#: Seconds between two epochs that one leader takes.
RAISE_SECONDS: Final = 3600.0

log = logging.getLogger(__name__)

Clock = Callable[[], float]
#: The highest epoch that any status tells of, given what the Lease has counted to.
EpochFloor = Callable[[int], Awaitable[int]]


class LeadershipLostError(Exception):
    """The lease could not be renewed in time, or is another's. The process must end: what it knows may be old."""


@dataclass(frozen=True)
class Candidate:
    """Who stands for election, and for which Lease. `identity` must never be used by another process."""

    namespace: str
    lease: str
    identity: str


class Elector:
    """Wins, keeps and gives back the lease; is the fence of every write meanwhile."""

    def __init__(
        self,
        api: KubeApi,
        candidate: Candidate,
        *,
        epoch_floor: EpochFloor,
        clock: Clock,
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._candidate = candidate
        self._epoch_floor = epoch_floor
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._lease: Object | None = None
        self._seen: tuple[str, float] | None = None
        self._acts_from = 0.0
        self._held_until = 0.0
        self._epoch = 0
        self._above: int | None = None
        self._raise_from = 0.0
        self._stopped = False
        self.leading = asyncio.Event()

    # What others ask

    def may_act(self) -> bool:
        """True while the lease is surely ours."""
        return self.seconds_left() > 0

    def seconds_left(self) -> float:
        """Seconds for which it surely is; no write may take longer."""
        now = self._clock()
        return 0.0 if self._stopped or now < self._acts_from else self._held_until - now

    @property
    def epoch(self) -> int:
        """Epoch of this leadership; 0 while not leading."""
        return self._epoch if self.may_act() else 0

    def raise_epoch(self, above: int) -> None:
        """Take an epoch above this one with the next renewal; not within an hour of the last such one, and not far."""
        if not self._epoch <= above <= self._epoch + UNRECORDED_LEADERS:
            return
        if self._above is None:
            now = self._clock()
            if now < self._raise_from:
                return
            self._raise_from = now + RAISE_SECONDS
        self._above = max(above, self._above or 0)

    def stop_acting(self) -> None:
        """Refuse every write from now on; the lease is still held, so nobody else writes either."""
        self._stopped = True

    # The election

    async def run(self) -> None:
        """Stand for election until elected, then renew. Raises `LeadershipLostError` when that fails for too long."""
        while not await self._attempt():
            await self._sleep(RETRY_SECONDS)
        log.info("leading", extra={"epoch": self._epoch, "identity": self._candidate.identity})
        if self._acts_from > self._clock():
            await self._sleep(self._acts_from - self._clock())
        self.leading.set()
        while True:
            await self._sleep(RETRY_SECONDS)
            await self._attempt()
            if self._clock() >= self._held_until:
                raise LeadershipLostError(f"the lease {self._candidate.lease} was not renewed in {RENEW_DEADLINE:g} s")

    async def release(self) -> None:
        """Give the lease back, so that another need not wait. Only after the last write; best effort."""
        self._stopped = True
        if self._clock() >= self._held_until:
            return
        self._held_until = 0.0
        where = self._candidate
        try:
            # Read anew: a renewal may have been cut off on its way.
            lease = await self._api.get(LEASES, where.namespace, where.lease, within=REQUEST_SECONDS)
            if lease["spec"].get("holderIdentity") == where.identity:
                body = self._record(lease, holder="", seconds=1, transitions=lease["spec"]["leaseTransitions"])
                await self._api.replace(LEASES, where.namespace, body, within=REQUEST_SECONDS)
        except ClusterError as error:
            log.warning("the lease was not given back: %s", error)

    async def _attempt(self) -> bool:
        """One try to take or renew. True if the lease is ours after it."""
        try:
            async with asyncio.timeout(4 * REQUEST_SECONDS):
                return await self._take_or_renew()
        except (ClusterError, TimeoutError) as error:
            # A write that failed may have landed: look before the next one.
            self._lease = None
            log.warning("the lease could not be taken or renewed: %s: %s", type(error).__name__, error)
            return False

    async def _take_or_renew(self) -> bool:
        lease = self._lease
        if lease is None:
            try:
                where = self._candidate
                lease = await self._api.get(LEASES, where.namespace, where.lease, within=REQUEST_SECONDS)
            except NotFoundError:
                return await self._make()
        holder = lease["spec"].get("holderIdentity") or ""
        if holder == self._candidate.identity:
            found = int(lease["spec"].get("leaseTransitions") or 0)
            return await self._write(lease, transitions=found if self._above is None else max(found, self._above + 1))
        if self._held_until > 0:
            self._held_until = 0.0
            raise LeadershipLostError(f"the lease {self._candidate.lease} is {holder}'s")
        if holder and not self._expired(lease):
            return False
        before = int(lease["spec"].get("leaseTransitions") or 0)
        return await self._write(lease, transitions=max(before, await self._epoch_floor(before)) + 1)

    def _expired(self, lease: Object) -> bool:
        """Whether the record has not changed for as long as it is valid, by our clock and our own watching."""
        version = str(lease["metadata"]["resourceVersion"])
        now = self._clock()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] >= float(lease["spec"].get("leaseDurationSeconds") or LEASE_SECONDS)

    async def _make(self) -> bool:
        if self._held_until > 0:
            self._held_until = 0.0
            raise LeadershipLostError(f"the lease {self._candidate.lease} was deleted")
        floor = await self._epoch_floor(0)
        lease: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._candidate.lease, "namespace": self._candidate.namespace},
        }
        epoch = floor + UNRECORDED_LEADERS if floor > 0 else 1
        sent = self._clock()
        body = self._record(lease, holder=self._candidate.identity, seconds=LEASE_SECONDS, transitions=epoch)
        made = await self._api.create(LEASES, self._candidate.namespace, body, within=REQUEST_SECONDS)
        # Somebody led before, so the Lease was deleted, maybe under a leader that does not know yet: outwait it.
        self._acts_from = sent + RENEW_DEADLINE + REQUEST_SECONDS if floor > 0 else 0.0
        return self._won(made, sent)

    async def _write(self, lease: Object, *, transitions: int) -> bool:
        sent = self._clock()
        identity = self._candidate.identity
        body = self._record(lease, holder=identity, seconds=LEASE_SECONDS, transitions=transitions)
        if transitions == lease["spec"].get("leaseTransitions"):
            body["spec"]["acquireTime"] = lease["spec"].get("acquireTime") or body["spec"]["acquireTime"]
        written = await self._api.replace(LEASES, self._candidate.namespace, body, within=REQUEST_SECONDS)
        return self._won(written, sent)

    def _won(self, lease: Object, sent: float) -> bool:
        self._lease = lease
        self._epoch = int(lease["spec"]["leaseTransitions"])
        if self._above is not None and self._epoch > self._above:
            log.warning("a new epoch orders above what an engine holds", extra={"epoch": self._epoch})
            self._above = None
        # The time of sending: the server may have taken the record at once, and the answer its time.
        self._held_until = sent + RENEW_DEADLINE
        return True

    def _record(self, lease: Object, *, holder: str, seconds: int, transitions: int) -> Object:
        moment = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "acquireTime": moment,
            "renewTime": moment,
            "leaseTransitions": transitions,
        }
        return {**lease, "spec": spec}
