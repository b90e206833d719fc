"""The tuner's loops: read all signals once per tick, let each service's tuner act on its own.

Two rhythms: the tick (5 s) reads Prometheus and decides; the watch (1 s) only looks, in memory, for pods whose engine
came back, and gives them their setpoint. A spec that changed brings the next tick forward. They act side by side, each
behind its own lock: one service whose pods hang delays neither the tick nor the others, it just misses ticks.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Protocol

from flyball_operator.api import names
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.kube.errors import ClusterError
from flyball_operator.supervision import EndedError, ended, first
from flyball_operator.tuning import model_sharing
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.insight import Insight
from flyball_operator.tuning.observe.signals import Attainment, Identity, Observation, PodOutcomes, Unobserved
from flyball_operator.tuning.ports import Services
from flyball_operator.tuning.service_tuner import ServiceTuner

_log: Final = logging.getLogger(__name__)
WATCH_SECONDS: Final = 1.0
#: A window of signals is that of so many ticks, and over so many new services are taken up if they are more than a few.
TICKS_OF_A_WINDOW: Final = 3
BEGUN_AT_ONCE: Final = 50
#: Services that decide in one turn of the loop, some 10 ms. A thousand take seconds: no answer of an engine is read
#: meanwhile, and open connections seem to have timed out. A turn for each is a fiftieth of a tick's processor time.
DECIDED_AT_ONCE: Final = 10
#: Services that are gone whose last generation is remembered: one whose namespace was out comes back with its engines.
GONE_REMEMBERED: Final = 10_000
#: Objects made between two looks for cycles of them: at least, and for each service. Every how manyth look is a deeper
#: one is Python's own choice. 200,000 cost an operator of one service 35 MiB, and save a tenth of a tick of 1000.
LEAST_OBJECTS_MADE: Final = 20_000
OBJECTS_MADE_OF_A_SERVICE: Final = 200


def collect_garbage_seldom(services: int = 0) -> None:
    """Collect garbage less often, in the whole process, by how many services are tuned.

    Each tick makes some hundred objects of a service. They live as long as the tick and are in no cycles, and Python's
    own thresholds cost more than parsing what they are made of. But each event that kopf hands over is a cycle, which
    holds its object until it is found: an operator of few services would keep the events of many minutes.
    """
    made = max(LEAST_OBJECTS_MADE, OBJECTS_MADE_OF_A_SERVICE * services)
    gc.set_threshold(made, *gc.get_threshold()[1:])


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """While answers are parsed: what they are made of is most of what was made last, and none of it is garbage yet."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class SignalReader(Protocol):
    """Where signals come from: `prometheus.reader.PrometheusReader`."""

    async def read(self, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        """Signals of each service; `pods` says how many ready pods each has."""
        ...

    async def attainment(self) -> Mapping[Identity, Attainment | Unobserved] | Unobserved:
        """What came of requests over the reported window."""
        ...

    async def pod_outcomes(self, windows: Mapping[Identity, int]) -> Mapping[Identity, PodOutcomes | Unobserved]:
        """What came of the requests of each pod of these services, over so many seconds each; not of all at once."""
        ...


class Tuner:
    """Tunes every service while we lead."""

    def __init__(
        self, *, services: Services, reader: SignalReader, dependencies: Dependencies, tick_seconds: float = 5.0
    ) -> None:
        self._services = services
        self._reader = reader
        self._dependencies = dependencies
        self._leadership = dependencies.leadership
        self._metrics = dependencies.metrics
        self._clock = dependencies.clock
        self._tick_seconds = tick_seconds
        self._tuners: dict[str, ServiceTuner] = {}
        #: When the ticks of a service begin, by UID. What each does once per window, like learning, would fall into the
        #: same tick for all that began in one. What runs is taken over before, so that it is given back to engines.
        self._begin_at: dict[str, float] = {}
        self._asked: dict[str, tuple[int, str | None]] = {}
        #: The services that there are tuners for, as they were when these took note of them.
        self._noted: Sequence[InferenceService] | None = None
        #: The same of the last watch, which looks for edits.
        self._watched: Sequence[InferenceService] | None = None
        self._edited = asyncio.Event()
        self._turned_at = dependencies.clock()

    def idle(self) -> float:
        """Seconds since all services were last looked at, or might have been, would we lead."""
        return self._clock() - self._turned_at

    def insight(self, service_uid: str) -> Insight | None:
        """What is known of a service beyond its status; None before it is tuned."""
        tuner = self._tuners.get(service_uid)
        return None if tuner is None else tuner.insight

    async def run(self) -> None:
        """Work until cancelled. What one service raises is logged and counted, never passed on."""
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(self._ticks(group), name="ticks"),
                group.create_task(self._watches(group), name="watches"),
            ]
            await first(loops)
            raise EndedError(f"the tuner: {ended(loops)}")

    async def close(self) -> None:
        """End what still goes to engines, and forget the metrics: another replica tunes the services from now on."""
        await asyncio.gather(*(tuner.close() for tuner in self._tuners.values()))
        for tuner in self._tuners.values():
            self._metrics.ended(*tuner.labels)
        self._metrics.services.dec(len(self._tuners))
        self._tuners.clear()
        self._noted = None

    async def _ticks(self, group: asyncio.TaskGroup) -> None:
        """Tick at a fixed rate, without catching up on what was missed, and at once when a spec was edited."""
        due = self._clock()
        while True:
            self._edited.clear()
            # A tick brought forward by an edit moves the rhythm with it; else many edits would put off the next one.
            due = min(due, self._clock()) + self._tick_seconds
            await self._tick(group)
            self._turned_at = self._clock()
            due = max(due, self._clock())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._edited.wait(), due - self._clock())

    async def _watches(self, group: asyncio.TaskGroup) -> None:
        while True:
            await self._watch(group)
            await asyncio.sleep(WATCH_SECONDS)

    async def _tick(self, group: asyncio.TaskGroup) -> None:
        services = self._sync(group)
        if services is None:
            return
        collect_garbage_seldom(len(services))
        began = self._clock()
        pods = {
            (s.metadata.namespace, s.metadata.uid): sum(1 for pod in self._services.pods(s.metadata.uid) if pod.ready)
            for s in services
        }
        with self._dependencies.tracing.read(), _no_garbage_collected():
            observations = await self._reader.read(pods)
            attainment = await self._reader.attainment()
            judged = await self._judged()
        self._metrics.prometheus_seconds.observe(self._clock() - began)
        for number, (identity, observation) in enumerate(observations.items(), 1):
            tuner = self._tuners.get(identity[1])
            if tuner is not None and not tuner.lock.locked():
                tick = partial(tuner.tick, observation, _of(attainment, identity), judged.get(identity))
                work = tick if self._begin_at[identity[1]] <= began else tuner.take_over
                group.create_task(self._guarded(tuner, work))
            if number % DECIDED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._metrics.tick_seconds.observe(self._clock() - began)

    async def _judged(self) -> Mapping[Identity, PodOutcomes | Unobserved]:
        """What came of the requests of services of which a revision is judged; mostly there are none."""
        windows = {
            (tuner.labels[0], uid): seconds
            for uid, tuner in self._tuners.items()
            if (seconds := tuner.judged_window()) is not None
        }
        return await self._reader.pod_outcomes(windows) if windows else {}

    async def _watch(self, group: asyncio.TaskGroup) -> None:
        services = self._sync(group)
        if services is None:
            return
        for tuner in self._tuners.values():
            try:
                self._keep(tuner, group)
            except Exception as error:  # noqa: BLE001 - whatever one service does, the others go on
                self._failed(tuner, error)
        if services is self._watched:
            return
        self._watched = services
        asked = {service.metadata.uid: _asked(service) for service in services}
        if asked != self._asked:
            self._asked = asked
            self._edited.set()

    def _keep(self, tuner: ServiceTuner, group: asyncio.TaskGroup) -> None:
        """Every second, and mostly there is nothing to do: a task for each of a thousand takes longer than to look."""
        if tuner.liveness.report_due():
            group.create_task(self._caught(tuner, tuner.report_late))
        if not tuner.lock.locked() and tuner.to_be_kept():
            group.create_task(self._guarded(tuner, tuner.keep))

    def _sync(self, group: asyncio.TaskGroup) -> Sequence[InferenceService] | None:
        """Tuners for the services there are, none for those gone. Returns the services, None while we do not lead.

        One process leads once: an epoch that was raised is the same leadership.
        """
        if not self._leadership.may_act():
            return None
        services = self._services.all()
        if services is self._noted:
            return services
        present = {service.metadata.uid: service for service in services}
        counted = len(self._tuners)
        gone = self._tuners.keys() - present.keys()
        for uid in gone:
            dismissed = self._tuners.pop(uid)
            del self._begin_at[uid]
            self._metrics.ended(*dismissed.labels)
            group.create_task(self._dismiss(dismissed))
        if gone:
            self._forget_given(present)
        # Once for all of them: a new leader makes a tuner for each, in one turn of the loop that renews the lease, too.
        new = [uid for uid in present if uid not in self._tuners]
        known = model_sharing.models_of(present.values()) if new else {}
        at_once, now = max(BEGUN_AT_ONCE, math.ceil(len(new) / TICKS_OF_A_WINDOW)), self._clock()
        self._begin_at |= {uid: now + number // at_once * self._tick_seconds for number, uid in enumerate(new)}
        for uid, service in present.items():
            tuner = self._tuners.get(uid)
            if tuner is None:
                tuner = self._tuners[uid] = ServiceTuner(
                    service, self._dependencies, known.get(model_sharing.kind_of(service))
                )
                self._metrics.began(*tuner.labels)
            tuner.update(service, self._services.pods(uid))
        self._metrics.services.inc(len(self._tuners) - counted)
        self._noted = services
        return services

    def _forget_given(self, present: Collection[str]) -> None:
        """Forget the generations of services that are gone, the oldest first. Status has them, should one come back."""
        given = self._dependencies.given
        gone = [uid for uid in given if uid not in present]
        for uid in gone[: max(0, len(gone) - GONE_REMEMBERED)]:
            del given[uid]

    async def _dismiss(self, tuner: ServiceTuner) -> None:
        """End a service's tuner. What it still measured is dropped, too, unless another service has its name."""
        await self._guarded(tuner, tuner.release)
        await self._caught(tuner, tuner.close)
        async with tuner.lock:
            self._metrics.forget(*tuner.labels)

    async def _guarded(self, tuner: ServiceTuner, work: Callable[[], Awaitable[None]]) -> None:
        async with tuner.lock:
            await self._caught(tuner, work)

    async def _caught(self, tuner: ServiceTuner, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whatever one service does, the others go on
            self._failed(tuner, error)

    def _failed(self, tuner: ServiceTuner, error: Exception) -> None:
        tuner.liveness.failed(error)
        if isinstance(error, ClusterError):
            # The API server is away or somebody else was faster; the next tick is another try.
            _log.warning(
                "%s/%s: this tick failed: %s: %s",
                *tuner.labels,
                type(error).__name__,
                error,
                extra=logged(LogEvent.TICK_FAILED, *tuner.labels),
            )
        else:
            self._metrics.failed(*tuner.labels)
            _log.error(
                "%s/%s: this tick failed",
                *tuner.labels,
                exc_info=error,
                extra=logged(LogEvent.TICK_FAILED, *tuner.labels),
            )


def _asked(service: InferenceService) -> tuple[int, str | None]:
    """What the user edits: the spec, whose number is the generation, and the annotation that moves no generation."""
    return service.metadata.generation, service.metadata.annotations.get(names.ANNOTATION_TUNING)


def _of(
    attainment: Mapping[Identity, Attainment | Unobserved] | Unobserved, identity: Identity
) -> Attainment | Unobserved:
    """One service's share of the attainment; nothing counted is an observation, too."""
    return attainment if isinstance(attainment, Unobserved) else attainment.get(identity, Attainment())
