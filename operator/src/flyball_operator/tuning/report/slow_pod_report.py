"""Which pods are slower than their siblings: said once when they begin to be, and once when they no longer are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flyball_operator.api.v1alpha1 import TuningStatus
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.observe import slow_pods
from flyball_operator.tuning.observe.signal_history import SignalHistory
from flyball_operator.tuning.report.event_recorder import EventRecorder


class SlowPodReport:
    """The memory of one service; `tuning`: what its status says."""

    def __init__(self, signals: SignalHistory, clock: Callable[[], float], tuning: TuningStatus) -> None:
        self._signals = signals
        self._clock = clock
        self._compared: Mapping[str, float] | None = None
        self._slow = slow_pods.begun(status_codec.slow_pods(tuning), clock())

    @property
    def slow_pods(self) -> dict[str, float]:
        """The pods that are slower than their siblings, and by what factor."""
        return slow_pods.factors(self._slow)

    def compare_pods(self, event_recorder: EventRecorder) -> int:
        """Name the pods that are clearly slower than the others, and those that are no longer. Returns how many are."""
        biases = self._signals.biases
        if biases is None or (biases is self._compared and not self._slow):
            return len(self.slow_pods)
        before, self._compared = self.slow_pods, biases
        self._slow = slow_pods.watched(self._slow, biases, self._clock())
        event_recorder.pending += slow_pods.events(before, self.slow_pods, biases)
        return len(self.slow_pods)
