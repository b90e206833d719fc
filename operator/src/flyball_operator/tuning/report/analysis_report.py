"""What status says of the revision that is judged: asked for every 15 s, and kept once it is decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from flyball_operator.api.v1alpha1 import AnalysisStatus, CanaryStatus, InferenceService
from flyball_operator.tuning import revision_analysis
from flyball_operator.tuning.observe.signals import PodOutcomes, Unobserved
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.revision_analysis import Compared
from flyball_operator.tuning.spec import TuningSpec

#: Seconds between two looks at a revision: about three scrapes, as for the window of other signals.
LOOK_SECONDS: Final = 15.0
#: Characters that status has for a sentence.
_LONGEST: Final = 1024


class AnalysisReport:
    """The verdict on one service's new revision. `status`: as it was found. Clocks in seconds, `wall` Unix time."""

    def __init__(self, service: InferenceService, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock = clock
        self._wall = wall
        self._said = service.status.analysis
        self._looked: float | None = None

    def window(self, service: InferenceService, pods: Sequence[EnginePod]) -> int | None:
        """Seconds over which requests are to be counted now; None where nothing is judged, or not yet again."""
        canary = service.status.canary
        if canary is None or self._is_decided(canary) or service.spec.rollout.canary is None:
            return None
        since = _compared(canary, pods).since
        if since is None or (self._looked is not None and self._clock() - self._looked < LOOK_SECONDS):
            return None
        # A clock that is behind counts from a moment ago.
        return max(1, int(self._wall() - since))

    def note(
        self,
        service: InferenceService,
        spec: TuningSpec,
        pods: Sequence[EnginePod],
        outcomes: PodOutcomes | Unobserved,
    ) -> None:
        """Take in what came of requests, which is a look. A verdict stays for as long as this revision is judged."""
        self._looked = self._clock()
        canary, asked = service.status.canary, service.spec.rollout.canary
        if canary is None or asked is None or self._is_decided(canary):
            return
        found = _compared(canary, pods)
        if found.since is None:
            return
        verdict = revision_analysis.judge(
            found,
            outcomes,
            spec.objectives,
            passed=self._wall() - found.since,
            duration=asked.duration_seconds,
        )
        self._said = AnalysisStatus(
            revision=canary.revision,
            start_time=canary.start_time,
            phase=verdict.phase,
            message=verdict.message[:_LONGEST],
        )

    def status(self, service: InferenceService) -> AnalysisStatus | None:
        """What status says; None where nothing is judged, or nothing is known of it yet."""
        canary = service.status.canary
        return self._said if canary is not None and self._is_of(canary) else None

    def _is_of(self, canary: CanaryStatus) -> bool:
        said = self._said
        return said is not None and (said.revision, said.start_time) == (canary.revision, canary.start_time)

    def _is_decided(self, canary: CanaryStatus) -> bool:
        return self._is_of(canary) and self._said is not None and self._said.phase.decided


def _compared(canary: CanaryStatus, pods: Sequence[EnginePod]) -> Compared:
    return revision_analysis.compared(pods, canary.revision, canary.baseline, canary.pods)
