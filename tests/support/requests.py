"""A ledger of requests told as a story: clients arrive, tokens come at given times, clients leave.

Times are seconds from the start of the story; the engine core's clock is another one, shifted, as in life.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flyball_engine.batching.outcomes import (
    DEFAULT_CAPACITY,
    End,
    LedgerCounts,
    OpenRequest,
    OpenSequence,
    RequestLedger,
)
from flyball_engine.contract import Metric, ObjectiveSpec

#: The core's clock minus the server's.
CORE_CLOCK = 1000.0

TTFT = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5)
TPOT = ObjectiveSpec(metric=Metric.TIME_PER_OUTPUT_TOKEN, threshold_seconds=0.05)
GAP = ObjectiveSpec(metric=Metric.INTER_TOKEN_LATENCY, threshold_seconds=0.1)
E2E = ObjectiveSpec(metric=Metric.END_TO_END_LATENCY, threshold_seconds=5.0)


@dataclass
class Client:
    """One HTTP request and the sequences it became."""

    ledger: RequestLedger
    request: OpenRequest
    sequences: list[OpenSequence] = field(default_factory=list)

    def reaches_engine(self, sequences: int = 1) -> Client:
        """Its prompt goes to the engine as so many sequences."""
        self.sequences += [self.ledger.started(self.request) for _ in range(sequences)]
        return self

    def gets(self, *times: float, of: int = 0, tokens: int = 1) -> Client:
        """`tokens` tokens of one sequence at each of these times."""
        for time in times:
            self.ledger.received(self.sequences[of], tokens=tokens, at=CORE_CLOCK + time, now=time)
        return self

    def ends(self, at: float, *, of: int = 0, prompt: int = 10, cached: int = 0, failed: bool = False) -> Client:
        """One sequence ends."""
        self.ledger.done(self.sequences[of], prompt=prompt, cached=cached, now=at, failed=failed)
        return self

    def closes(self, how: End, at: float) -> None:
        """The HTTP exchange is over."""
        self.ledger.ended(self.request, how, at)

    def streams(self, *times: float) -> None:
        """A whole answer of one sequence, a token at each time."""
        self.reaches_engine().gets(*times).ends(times[-1]).closes(End.ANSWERED, times[-1])


class Story:
    """A ledger with objectives, its clients, and what it is expected to have counted."""

    def __init__(self, *objectives: ObjectiveSpec, capacity: int = DEFAULT_CAPACITY) -> None:
        self.ledger = RequestLedger(capacity=capacity)
        self.ledger.set_objectives(objectives)

    def arrives(self, at: float = 0.0) -> Client:
        """A client's request comes in."""
        return Client(self.ledger, self.ledger.opened(at))

    @property
    def counts(self) -> LedgerCounts:
        return self.ledger.collect()

    def expect_requests(self, **outcomes: int) -> None:
        """Exactly these requests, by outcome."""
        assert {name: count for name, count in self.counts.requests.items() if count} == outcomes

    def expect(self, objective: ObjectiveSpec, *, met: int = 0, violated: int = 0) -> None:
        """Exactly these counts of one objective."""
        assert self._pair(self.counts.objectives, objective.id) == (met, violated)

    def expect_together(self, *, met: int = 0, violated: int = 0) -> None:
        """Exactly these counts of all objectives together."""
        identities = {identity for identity, _ in self.counts.all_objectives}
        assert len(identities) == 1
        assert self._pair(self.counts.all_objectives, identities.pop()) == (met, violated)

    def expect_open(
        self, *, at: float, met: Iterable[ObjectiveSpec] = (), violated: Iterable[ObjectiveSpec] = ()
    ) -> None:
        """Of one open request each of these outcomes is certain, and of no other."""
        found = self.ledger.collect(at).open_objectives
        certain = {(one.id, "met"): 1 for one in met} | {(one.id, "violated"): 1 for one in violated}
        assert {key: count for key, count in found.items() if count} == certain

    @staticmethod
    def _pair(counts: dict[tuple[str, str], int], identity: str) -> tuple[int, int]:
        return counts[identity, "met"], counts[identity, "violated"]
