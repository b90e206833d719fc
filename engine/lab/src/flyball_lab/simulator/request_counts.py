"""What a simulated core counts of its requests: by objectives in the ledger, by batches in the metrics of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flyball_engine.batching.batch_metrics import BatchMetrics
from flyball_engine.batching.outcomes import End, RequestLedger
from flyball_engine.contract import DEFAULT_CLASS, Classes, Metric, ObjectiveSpec, Setpoint
from flyball_lab.simulator.requests import Fate, Request


class RequestCounts:
    """Of one core."""

    def __init__(self, ledger: RequestLedger, batches: BatchMetrics) -> None:
        self._ledger = ledger
        self._batches = batches
        self._gaps: tuple[ObjectiveSpec, ...] = ()

    def follow(self, setpoint: Setpoint) -> None:
        """Count against the objectives of a setpoint, by its classes."""
        self._ledger.set_objectives(setpoint.objectives)
        self._ledger.set_classes(setpoint.classes)
        self._gaps = tuple(o for o in setpoint.objectives if o.metric is Metric.INTER_TOKEN_LATENCY)

    @property
    def thresholds(self) -> list[float]:
        """Seconds that a step may take, of each objective that counts them."""
        return [objective.threshold_seconds for objective in self._gaps]

    def stepped(
        self, steps: int, within: Sequence[int], *, decodes: int, running: Iterable[Request], classes: Classes | None
    ) -> None:
        """Steps were made with so many `decodes`; `within`: for each of the `thresholds` how many kept it."""
        for objective, met in zip(self._gaps, within, strict=True):
            gaps = _gaps_of(objective, decodes, running, classes)
            self._ledger.gaps_passed(objective, met=met * gaps, violated=(steps - met) * gaps)

    def finished(self, request: Request, now: float) -> None:
        """A request has all its tokens."""
        self.catch_up(request, now)
        request.fate, request.ended = Fate.FINISHED, now
        self._batches.ended(request, request.output, now)

    def left(self, request: Request, *, at: float, now: float) -> None:
        """Its client left `at`, and the core has heard of it."""
        if request.first_token is not None:
            self.catch_up(request, now)
        request.fate, request.ended = Fate.LEFT, at
        self._batches.ended(request, request.made, now)
        if request.sequence is not None:
            self._ledger.ended(request.sequence.request, End.LEFT, at)

    def failed(self, request: Request, now: float) -> None:
        """The engine crashed."""
        request.fate, request.ended = Fate.FAILED, now
        self._batches.ended(request, request.made, now)
        if request.sequence is not None:
            self._ledger.ended(request.sequence.request, End.FAILED, now)

    def refused(self, requests: Sequence[Request], now: float) -> None:
        """Those of one HTTP request, which waited, are refused."""
        for request in requests:
            request.fate, request.ended = Fate.SHED, now
            self._batches.ended(request, 0, now)
        if (sequence := requests[0].sequence) is not None:
            self._ledger.ended(sequence.request, End.REFUSED, now)

    def catch_up(self, request: Request, at: float) -> None:
        """The ledger hears of tokens one by one only where it must."""
        sequence = request.sequence
        if sequence is not None and request.made > sequence.tokens > 0:
            gaps = request.deliveries - 1 - sequence.gaps
            self._ledger.caught_up(sequence, tokens=request.made - sequence.tokens, gaps=gaps, at=at)


def _gaps_of(objective: ObjectiveSpec, decodes: int, running: Iterable[Request], classes: Classes | None) -> int:
    """Of the decodes of a step those that an objective counts."""
    if classes is None:
        return decodes
    mine = (one.of_class if one.of_class in classes.names else DEFAULT_CLASS for one in running if one.made)
    return sum(name == objective.of_class for name in mine)
