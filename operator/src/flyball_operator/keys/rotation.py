"""Keeps the signing key: fills its Secret, publishes the public half, and rotates it while engines and operator run.

What is due next is decided in `keys.state`. Whatever fails is tried again in the next round, and meanwhile setpoints
are signed with the keys that were read last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NoReturn, Protocol

from flyball_engine.signing import BadKeyError, Signer
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import Object, unless_changed
from flyball_operator.engines.client import Address
from flyball_operator.engines.signing_keys import HeldKeys
from flyball_operator.keys.public_keys import PublicKeys
from flyball_operator.keys.state import CURRENT, KEPT, NEXT, BadSecretError, KeyRing, advanced, read, written
from flyball_operator.keys.trial import LEAST_SECONDS, Engines, Trial
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ClusterError, NotFoundError, NotLeadingError, UnavailableError
from flyball_operator.kube.resources import SECRETS
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.tuning.ports import Services

#: Seconds between two rounds.
ROUND_SECONDS: Final = 5.0
#: Seconds between two looks at the Secret while nothing is due: how late an emptied one is noticed. Another replica's
#: next key is published for two minutes before anything is signed with it alone.
LOOK_SECONDS: Final = 30.0
#: Engines that a line of the log names.
_NAMED: Final = 5

log = logging.getLogger(__name__)


class KeyedServices(Services, Protocol):
    """The services of engines that have keys, from memory."""

    def pods_of_one_key(self) -> Sequence[str]:
        """Pods of any service, be it accepted or not, that know one public key for good: `namespace/name`."""
        ...


@dataclass(frozen=True)
class KeySettings:
    """Where the key is kept, and at which age it is replaced; zero is never."""

    namespace: str
    secret: str
    period: timedelta


class KeyRotation:
    """The keys in one Secret.

    `rotates`: whether this process writes the Secret; it reads it in any case. `now` is the time on the wall, as in the
    Secret, `clock` measures durations. `make`: a new private key, PEM.
    """

    def __init__(
        self,
        api: KubeApi,
        public: PublicKeys,
        *,
        where: KeySettings,
        services: KeyedServices,
        rotates: Callable[[], bool],
        now: Callable[[], datetime],
        clock: Callable[[], float],
        make: Callable[[], str],
    ) -> None:
        self._api = api
        self._public = public
        self._where = where
        self._services = services
        self._rotates = rotates
        self._now = now
        self._clock = clock
        self._make = make
        self._keys = KeyRing()
        self._problem = ""
        self._trial: Trial | None = None
        self._read_at = float("-inf")
        #: Since when this process leads, on its clock.
        self._leading_since: float | None = None
        #: Since when this process leads and no write of the public keys has failed everywhere, on its clock.
        self._reaching_since: float | None = None
        self._told_of_kept = False
        self._looked = asyncio.Event()
        #: What setpoints are signed with.
        self.signers = HeldKeys()

    # What others ask

    def age(self) -> float:
        """Seconds since the oldest key that is signed with was made or taken over; 0 while there is none."""
        oldest = self._keys.kept or self._keys.current
        return 0.0 if oldest is None else max(0.0, (self._now() - oldest.since).total_seconds())

    def export(self, metrics: Metrics) -> None:
        """Have the figures scraped with the operator's others."""
        metrics.watch(
            "flyball_operator_signing_key_age_seconds",
            "Seconds since the oldest key that is signed with was made or taken over; 0 while there is none.",
            self.age,
        )
        metrics.watch(
            "flyball_operator_public_keys_unpublished",
            "Namespaces whose ConfigMap of public keys could not be written.",
            self._public.problems,
        )

    async def looked(self) -> None:
        """Return once the Secret was looked at, whatever came of it."""
        await self._looked.wait()

    async def enter(self, namespace: str) -> None:
        """Bring the public keys to a namespace, before pods start there."""
        await self.looked()
        await self._public.publish_in(namespace)

    # The work

    async def run(self, engines: Engines) -> NoReturn:
        """Look again and again."""
        while True:
            await self.look(engines)
            await asyncio.sleep(ROUND_SECONDS)

    async def look(self, engines: Engines) -> None:
        """Do what is due."""
        self._note_reach()
        try:
            if self._is_due():
                await self._advance()
                self._say("")
        except NotLeadingError:
            pass
        except NotFoundError:
            self._say("it is missing; helm upgrade makes it")
        except UnavailableError as error:
            self._say(str(error), passes=self._keys.current is not None)
        except (ClusterError, BadSecretError, BadKeyError) as error:
            self._say(str(error))
        finally:
            self._looked.set()
        # Each replica for the namespaces that it works in.
        await self._public.publish()
        if self._rotates() and self._trial is not None:
            await self._trial.ask(engines, self._ready())

    def _is_due(self) -> bool:
        """Whether to look at the Secret: now and then, and while there is no key, trouble with it or a rotation."""
        current, period = self._keys.current, self._where.period
        if current is None or self._keys.next is not None or self._problem:
            return True
        rotates = bool(period) and self._rotates() and self._now() - current.since >= period
        return rotates or self._clock() - self._read_at >= LOOK_SECONDS

    def _say(self, problem: str, *, passes: bool = False) -> None:
        """Log another problem once. `passes`: the API server is away, and the key that is known signs on."""
        if problem and passes and not self._problem:
            log.warning(
                "Secret %s/%s cannot be read now, the known key signs on: %s",
                self._where.namespace,
                self._where.secret,
                problem,
                extra=logged(LogEvent.SIGNING_SECRET_UNREAD),
            )
        elif problem and not passes and problem != self._problem:
            log.error(
                "Secret %s/%s cannot be used for signing: %s",
                self._where.namespace,
                self._where.secret,
                problem,
                extra=logged(LogEvent.SIGNING_SECRET_UNUSABLE),
            )
        self._problem = problem

    async def _advance(self) -> None:
        """Read the Secret, and take the step that is due. Raises `ClusterError`, BadSecretError and BadKeyError."""
        began = self._clock()
        found = await self._api.get(SECRETS, self._where.namespace, self._where.secret)
        held = read(found.get("data") or {}, now=self._now())
        # Before anything is written: what cannot be read is for people to mend.
        signers = _signers(held)
        if self._rotates():
            accepted, period = self._passed(signers.get(NEXT)), self._where.period
            keys = held
            if self._may_advance(held):
                keys = advanced(
                    held, now=self._now(), period=period, accepted=accepted, bound=self._may_be_bound(), make=self._make
                )
            if written(keys) != (found.get("data") or {}):
                await self._write(found, keys)
                self._tell(held, keys)
                held, signers = keys, _signers(keys)
            self._tell_of_kept(held)
        self._hold(held, signers)
        self._read_at = began

    def _note_reach(self) -> None:
        if not self._rotates():
            self._leading_since = None
        elif self._leading_since is None:
            self._leading_since = self._clock()
        if not self._rotates() or self._public.reaches_engines() is False:
            self._reaching_since = None
        elif self._reaching_since is None:
            self._reaching_since = self._clock()

    def _may_advance(self, held: KeyRing) -> bool:
        """Whether engines hear of another key. Where none do, all would refuse it, and the one before would be lost.

        A process that has just begun to lead has no lease of a namespace, so at first it knows of none with services.
        """
        if held.current is None:
            return True
        if held.next is None and self._public.reaches_engines():
            return True
        since = self._reaching_since
        return since is not None and self._clock() - since >= LEAST_SECONDS

    def _may_be_bound(self) -> bool:
        """Whether pods may know one key for good. A leader may not know all pods at first."""
        since = self._leading_since
        return since is None or self._clock() - since < LEAST_SECONDS or bool(self._services.pods_of_one_key())

    def _tell_of_kept(self, keys: KeyRing) -> None:
        """Log once that an earlier key is kept, and for whom: these pods are for people to replace."""
        bound = self._services.pods_of_one_key() if keys.kept is not None else ()
        if bound and not self._told_of_kept:
            log.warning(
                "an earlier signing key is kept: %d pods of earlier templates know no other, such as %s",
                len(bound),
                "; ".join(bound[:_NAMED]),
                extra=logged(LogEvent.EARLIER_KEY_KEPT),
            )
        self._told_of_kept = bool(bound)

    def _passed(self, following: Signer | None) -> bool:
        """Whether engines accept the next key, so that it can be signed with."""
        trial = self._trial
        if trial is None or following is None or trial.signer.public_pem != following.public_pem:
            return False
        return trial.passed(self._clock())

    async def _write(self, found: Object, keys: KeyRing) -> None:
        patch = (unless_changed(found), {"op": "add", "path": "/data", "value": written(keys)})
        await self._api.json_patch(SECRETS, self._where.namespace, self._where.secret, patch)

    def _tell(self, before: KeyRing, keys: KeyRing) -> None:
        if before.current is None:
            log.info("a signing key was made", extra=logged(LogEvent.SIGNING_KEY_MADE))
        elif keys.next is not None and before.next is None:
            log.info(
                "the next signing key was made: engines are given both public keys",
                extra=logged(LogEvent.NEXT_KEY_MADE),
            )
        elif keys.next is None and before.next is not None:
            late = self._trial.missing() if self._trial is not None else ()
            if late:
                named = "; ".join(late[:_NAMED])
                log.warning(
                    "%d engines did not accept the next signing key in time: %s",
                    len(late),
                    named,
                    extra=logged(LogEvent.NEXT_KEY_NOT_ACCEPTED),
                )
            log.info(
                "setpoints are signed with the next key: the one before is revoked", extra=logged(LogEvent.KEY_ROTATED)
            )

    def _hold(self, keys: KeyRing, signers: Mapping[str, Signer]) -> None:
        self._keys = keys
        if not signers:
            return
        taken = [signer for name, signer in signers.items() if name != KEPT]
        self.signers.replace(*taken, kept=signers.get(KEPT))
        self._public.text = "".join(signer.public_pem for signer in taken)
        following = signers.get(NEXT)
        if following is None:
            self._trial = None
        elif self._trial is None or self._trial.signer.public_pem != following.public_pem:
            self._trial = Trial(following, self._clock())

    def _ready(self) -> Iterator[tuple[str, Address]]:
        """Ready pods that take keys, to ask whether they accept one."""
        bound = frozenset(self._services.pods_of_one_key())
        for service in self._services.all():
            for pod in self._services.pods(service.metadata.uid):
                if pod.ready and pod.ip is not None and f"{pod.namespace}/{pod.name}" not in bound:
                    address = Address(key=pod.uid, tenant=pod.namespace, ip=pod.ip, port=pod.control_port)
                    yield service.metadata.uid, address


def _signers(keys: KeyRing) -> dict[str, Signer]:
    """By their name in the Secret, in the order they are signed with. Raises BadKeyError."""
    named = {CURRENT: keys.current, NEXT: keys.next, KEPT: keys.kept}
    return {name: Signer.parse(key.pem.encode(), name) for name, key in named.items() if key is not None}
