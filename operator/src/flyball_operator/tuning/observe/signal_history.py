"""What is seen of one service: the newest signals and counts, and since when they are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flyball_operator.tuning.observe.signals import (
    LEAST_READ_BACK_SECONDS,
    Attainment,
    CellKey,
    Missing,
    ObjectiveCounts,
    Observation,
    OrderOutcome,
    Reading,
    Signals,
    StepWindow,
    Sums,
    Unobserved,
    blind_spot,
    steps_between,
)
from flyball_operator.tuning.observe.verdict import metrics_verdict
from flyball_operator.tuning.reasons import ConditionState
from flyball_operator.tuning.tunables import TUNABLES
from flyball_operator.tuning.unchanged import Equal

NOT_ASKED: Final = Unobserved(Missing.NOT_SCRAPED, "Prometheus has not been asked yet")


class SignalHistory:
    """`grace_seconds`: how long signals may be missing before it is said; one late answer is no outage.

    `seen`: whether status says that they were there. `clock` is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float], grace_seconds: float, *, seen: bool) -> None:
        self.observation: Observation = NOT_ASKED
        #: What keeps the observation from being acted on, None if nothing does.
        self.blind: Unobserved | None = NOT_ASKED
        self.counts: Attainment | Unobserved = NOT_ASKED
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._began_at = clock()
        self._twice = ""
        self._observed_at: float | None = clock() if seen else None
        self._counted_at: float | None = None
        self._read: Reading | None = None
        self._verdict = Equal(metrics_verdict)

    def look(self, observation: Observation, counts: Attainment | Unobserved, *, ready_pods: int) -> None:
        """Take in what a tick brings. The last counts stay as long as it takes to call it an outage: of minutes."""
        now = self._clock()
        self.observation = observation
        if ready_pods == 0:
            # Prometheus comes to pods once there are some: the time that it has for that begins then.
            self._began_at, self._observed_at = now, None
        self.blind = blind_spot(observation, TUNABLES.stale_seconds)
        if self.blind is None:
            self._observed_at = now
        if isinstance(observation, Signals):
            self._twice = observation.twice
        if not isinstance(counts, Unobserved):
            self._counted_at = now
        elif self._counted_at is not None and now - self._counted_at < self._grace_seconds:
            return
        self.counts = counts

    @property
    def outcomes(self) -> Mapping[str, ObjectiveCounts] | Unobserved:
        """The counts by objective id."""
        return self.counts if isinstance(self.counts, Unobserved) else self.counts.outcomes

    @property
    def order(self) -> OrderOutcome | None:
        """What came of the on-time order, None where that is not known."""
        return None if isinstance(self.counts, Unobserved) else self.counts.order

    @property
    def biases(self) -> Mapping[str, float] | None:
        """What steps take over what the model says, by pod, None where that is not known."""
        return None if isinstance(self.counts, Unobserved) else self.counts.biases

    def steps_read_back(
        self, observation: Observation, steps: Callable[[], Mapping[str, Mapping[CellKey, Sums]]], now: float
    ) -> StepWindow | None:
        """A window of steps out of the read-backs, where Prometheus has none; `now`: Unix seconds.

        `steps`: cumulative ones of each start of each pod. Adding them up takes long, and waits until they make a
        window.
        """
        if isinstance(observation, Signals) and not isinstance(observation.steps, Unobserved):
            if isinstance(observation.steps, StepWindow):
                self._read = None
            return None
        if self._read is not None and 0.0 <= now - self._read.at < LEAST_READ_BACK_SECONDS:
            return None
        # Until they were read back, too, they are asked for anew.
        if not (cells := steps()):
            return None
        window, self._read = steps_between(self._read, cells, now)
        return window

    def verdict(self, *, ready_pods: int, lost: bool) -> ConditionState:
        """Whether the service can be observed. `lost`: status says that it cannot; a new leader takes that not back."""
        missing, now = self.blind, self._clock()
        if missing is None or (self._observed_at is not None and now - self._observed_at < self._grace_seconds):
            return self._verdict(None, ready_pods=ready_pods, young=False, twice=self._twice)
        young = self._observed_at is None and not lost and now - self._began_at < self._grace_seconds
        return self._verdict(missing, ready_pods=ready_pods, young=young, twice="")
