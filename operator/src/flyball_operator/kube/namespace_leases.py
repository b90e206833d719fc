"""Which release looks after a namespace: the one that the Lease `names.NAMESPACE_LEASE` in it names.

Two releases that act in one namespace undo each other's writes. So the leader of a release acts only where it holds
this Lease:

- The holder is the release, not the process: `<release namespace>/<name of the election's Lease>`. A new leader of the
  release goes on with the Lease as it is. A process that ends does not give it back, because a restart must not hand
  the namespace to another release. A release that is uninstalled, or watches the namespace no more, renews no more.
- Time is monotonic. Another release takes the Lease 300 s after it *saw* it change last. A holder stops acting 240 s
  after it *sent* its last renewal, so that what is under way ends before.
- Where the right to keep the Lease is not granted, the release acts without it, as earlier versions did.
- A Lease is taken where there are services, and kept while there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NoReturn

from flyball_operator.api import names
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import Object
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    UnauthorizedError,
)
from flyball_operator.kube.resources import LEASES

#: Seconds after which other releases take a Lease that does not change.
LEASE_SECONDS: Final = 300
RENEW_SECONDS: Final = 100.0
#: Seconds from a renewal's sending for which its sender may act: a look at a service takes a minute at most.
HELD_SECONDS: Final = 240.0
#: Seconds between two looks at the Lease of another release.
LOOK_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 10.0
#: Seconds between two looks at which Leases are due.
ROUND_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 5.0
#: Leases that are renewed at the same time.
PARALLEL: Final = 4
#: Writes that others came before, after which a Lease is left for a while.
_ROUNDS: Final = 3
_NEVER: Final = float("-inf")
_ALWAYS: Final = float("inf")

log = logging.getLogger(__name__)


@dataclass
class _Known:
    """What is known of one namespace's Lease."""

    asked: float
    """When somebody asked for it last."""
    due: float = _NEVER
    held_until: float = _NEVER
    holder: str = ""
    """The other release that holds it."""
    taken_over: bool = False
    """Whether it was another's when it was seen last."""
    seen: tuple[str, float] | None = None
    """The version of the other's record, and since when it is the same."""
    why: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class NamespaceLeases:
    """Those of one release, as its leader keeps them."""

    def __init__(
        self,
        api: KubeApi,
        release: str,
        *,
        used: Callable[[], Collection[str]],
        enter: Callable[[str], Awaitable[None]],
        clock: Callable[[], float],
        now: Callable[[], datetime],
        jitter: Callable[[], float],
    ) -> None:
        """`used`: namespaces with services. `enter`: called before acting where another release acted until now."""
        self._api = api
        self._release = release
        self._used = used
        self._enter = enter
        self._clock = clock
        self._now = now
        self._jitter = jitter
        self._known: dict[str, _Known] = {}
        self._gate = asyncio.Semaphore(PARALLEL)
        self._without = False

    # What others ask

    def held(self, namespace: str) -> bool:
        """Whether this release may act in the namespace."""
        known = self._known.get(namespace)
        return known is not None and self._clock() < known.held_until

    def foreign(self) -> tuple[str, ...]:
        """Namespaces that other releases hold."""
        return tuple(namespace for namespace, known in self._known.items() if known.holder)

    def why_not_held(self, namespace: str) -> str:
        """Why this release does not act in the namespace; empty if it does, or did not ask yet."""
        known = self._known.get(namespace)
        return "" if known is None or self.held(namespace) else known.why

    async def hold(self, namespace: str) -> bool:
        """Take the Lease, if it is free. Returns whether this release may act there. Raises `ClusterError`."""
        known = self._known.setdefault(namespace, _Known(asked=self._clock()))
        known.asked = self._clock()
        async with known.lock:
            if not known.holder and not self.held(namespace):
                await self._attempt(namespace, known)
        return self.held(namespace)

    # The work

    async def run(self) -> NoReturn:
        """Renew, and look at those of others, for ever. Raises what `enter` raises but for `ClusterError`."""
        while True:
            now, used = self._clock(), self._used()
            self._drop(now, used)
            # Where a namespace is left, its rights may be gone before what is known of its Lease.
            due = [item for item in self._known.items() if item[1].due <= now and item[0] in used]
            await asyncio.gather(*(self._look(namespace, known) for namespace, known in due))
            await asyncio.sleep(ROUND_SECONDS)

    def _drop(self, now: float, used: Collection[str]) -> None:
        """Forget those of namespaces without services. Without a Lease at once: its right may be granted meanwhile."""
        for namespace, known in list(self._known.items()):
            kept = 0.0 if known.held_until == _ALWAYS else RENEW_SECONDS
            if namespace not in used and now - known.asked > kept and not known.lock.locked():
                del self._known[namespace]

    async def _look(self, namespace: str, known: _Known) -> None:
        async with self._gate, known.lock:
            with suppress(ClusterError):
                await self._attempt(namespace, known)

    async def _attempt(self, namespace: str, known: _Known) -> None:
        """Take or renew it, or see who holds it. Raises `ClusterError` where that is not known afterwards."""
        known.due = self._clock() + RETRY_SECONDS
        try:
            await self._take_or_renew(namespace, known)
        except NotFoundError:
            known.why = f"namespace {namespace} does not exist"
        except ClusterError as error:
            # Where another release is known to hold it, a right that is taken away frees nothing.
            if _refused(error) and not known.taken_over:
                self._go_without(namespace, known, error)
                return
            why = f"the Lease {names.NAMESPACE_LEASE} in namespace {namespace} could not be kept: {error}"
            if why != known.why:
                log.warning("%s", why, extra=logged(LogEvent.NAMESPACE_LEASE_FAILED, namespace))
            known.why = why
            raise

    async def _take_or_renew(self, namespace: str, known: _Known) -> None:
        for left in reversed(range(_ROUNDS)):
            try:
                lease = await self._read(namespace)
                holder = ((lease or {}).get("spec") or {}).get("holderIdentity") or ""
                if lease is not None and holder not in ("", self._release) and not self._expired(known, lease):
                    self._leave(namespace, known, holder)
                    return
                sent = self._clock()
                await self._write(namespace, lease)
            except (AlreadyExistsError, ConflictError):
                if not left:
                    raise
            else:
                await self._won(namespace, known, sent)
                return

    async def _read(self, namespace: str) -> Object | None:
        try:
            return await self._api.get(LEASES, namespace, names.NAMESPACE_LEASE, within=REQUEST_SECONDS)
        except NotFoundError:
            return None

    async def _write(self, namespace: str, lease: Object | None) -> None:
        moment = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before: Object = (lease or {}).get("spec") or {}
        ours = before.get("holderIdentity") == self._release
        spec = {
            "holderIdentity": self._release,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": before.get("acquireTime") or moment if ours else moment,
            "renewTime": moment,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (lease is not None and not ours),
        }
        if lease is not None:
            await self._api.replace(LEASES, namespace, {**lease, "spec": spec}, within=REQUEST_SECONDS)
            return
        metadata = {
            "name": names.NAMESPACE_LEASE,
            "namespace": namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        await self._api.create(LEASES, namespace, body, within=REQUEST_SECONDS)

    def _expired(self, known: _Known, lease: Object) -> bool:
        """Whether another's record has not changed for as long as it is valid, by our clock and our own watching."""
        version, now = str(lease["metadata"]["resourceVersion"]), self._clock()
        if known.seen is None or known.seen[0] != version:
            known.seen = (version, now)
        return now - known.seen[1] >= float(lease["spec"].get("leaseDurationSeconds") or LEASE_SECONDS)

    def _leave(self, namespace: str, known: _Known, holder: str) -> None:
        if holder != known.holder:
            log.warning(
                "namespace %s belongs to release %s, which holds its Lease %s: it is left alone until that is free",
                namespace,
                holder,
                names.NAMESPACE_LEASE,
                extra=logged(LogEvent.NAMESPACE_OF_ANOTHER_RELEASE, namespace),
            )
        known.holder, known.taken_over = holder, True
        known.held_until = _NEVER
        known.due = self._clock() + LOOK_SECONDS
        known.why = f"namespace {namespace} belongs to release {holder}"

    async def _won(self, namespace: str, known: _Known, sent: float) -> None:
        known.holder = ""
        if known.taken_over:
            log.info(
                "namespace %s belongs to this release now",
                namespace,
                extra=logged(LogEvent.NAMESPACE_TAKEN_OVER, namespace),
            )
            await self._enter(namespace)
            known.taken_over, known.seen = False, None
        known.why = ""
        known.held_until = sent + HELD_SECONDS
        known.due = sent + RENEW_SECONDS * (0.9 + 0.2 * self._jitter())

    def _go_without(self, namespace: str, known: _Known, error: ClusterError) -> None:
        if not self._without:
            log.warning(
                "namespace %s: its Lease %s may not be kept, so another release that watches it is not noticed: %s;"
                " said once for all namespaces",
                namespace,
                names.NAMESPACE_LEASE,
                error,
                extra=logged(LogEvent.NAMESPACE_LEASE_FORBIDDEN, namespace),
            )
        self._without = True
        known.holder, known.taken_over = "", False
        known.held_until = _ALWAYS
        known.due = self._clock() + RENEW_SECONDS


def _refused(error: ClusterError) -> bool:
    """Whether asking again cannot help until somebody changes rights or policies."""
    return isinstance(error, (ForbiddenError, InvalidObjectError)) and not isinstance(error, UnauthorizedError)
