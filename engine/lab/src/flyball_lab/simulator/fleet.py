"""Several simulated engines that a service makes look like one: requests take turns, counters and gauges are summed.

What drives an engine and what observes one use few parts of it; a fleet has those, with the figures that Prometheus'
sums over a service have. A setpoint goes to every engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeVar, cast

from flyball_engine.batching.gate import Admitted
from flyball_engine.batching.outcomes import LedgerCounts
from flyball_engine.contract import Setpoint
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.requests import Request

Key = TypeVar("Key")


def fleet(cores: Sequence[Core], shares: Sequence[float] = ()) -> Core:
    """They, as one. It is none: what is not in `_Fleet` it does not have.

    `shares`: of the requests that each gets; absent, they take turns.
    """
    return cast("Core", _Fleet(cores, shares or [1.0] * len(cores)))


def cores_of(core: Core) -> Sequence[Core]:
    """The engines behind what looks like one."""
    return core.cores if isinstance(core, _Fleet) else [core]


class _Fleet:
    """`statistics`, `batches`, `drafts`, `ledger`, `scheduler`: those of all engines together."""

    def __init__(self, cores: Sequence[Core], shares: Sequence[float]) -> None:
        self.cores = cores
        self.statistics = _Sums([core.statistics.sums for core in cores])
        self.batches = _Sums([core.batches.sums for core in cores])
        self.drafts = _Sums([core.drafts.sums for core in cores])
        self.ledger = _Ledgers(cores)
        self.scheduler = _Schedulers(cores)
        self._shares = shares
        self._given = [0] * len(cores)

    @property
    def now(self) -> float:
        """The same for all between two events."""
        return self.cores[0].now

    def run(self, until: float) -> None:
        """Each makes its steps."""
        for core in self.cores:
            core.run(until)

    def submit(self, requests: Sequence[Request]) -> Admitted | None:
        """To whom most is due, by its share."""
        due = [(given + 1) / share for given, share in zip(self._given, self._shares, strict=True)]
        turn = due.index(min(due))
        self._given[turn] += 1
        return self.cores[turn].submit(requests)

    def follow(self, setpoint: Setpoint) -> None:
        """All do."""
        for core in self.cores:
            core.follow(setpoint)

    def apply(self, setpoint: Setpoint) -> None:
        """All do."""
        for core in self.cores:
            core.apply(setpoint)


class _Sums:
    def __init__(self, parts: Sequence[Sequence[float]]) -> None:
        self._parts = parts

    @property
    def sums(self) -> list[float]:
        return [sum(values) for values in zip(*self._parts, strict=True)]


class _Ledgers:
    def __init__(self, cores: Sequence[Core]) -> None:
        self._cores = cores

    def collect(self) -> LedgerCounts:
        counts = [core.ledger.collect() for core in self._cores]
        return LedgerCounts(
            requests=_added([one.requests for one in counts]),
            classes=_added([one.classes for one in counts]),
            objectives=_added([one.objectives for one in counts]),
            all_objectives=_added([one.all_objectives for one in counts]),
            generated_tokens=sum(one.generated_tokens for one in counts),
            prompt_tokens=sum(one.prompt_tokens for one in counts),
            cached_prompt_tokens=sum(one.cached_prompt_tokens for one in counts),
        )


def _added(counts: Sequence[Mapping[Key, int]]) -> dict[Key, int]:
    keys = dict.fromkeys(chain.from_iterable(counts))
    return {key: sum(one.get(key, 0) for one in counts) for key in keys}


class _Schedulers:
    def __init__(self, cores: Sequence[Core]) -> None:
        self._all = [core.scheduler for core in cores]

    @property
    def running(self) -> list[Request]:
        return list(chain.from_iterable(one.running for one in self._all))

    @property
    def waiting(self) -> list[Request]:
        return list(chain.from_iterable(one.waiting for one in self._all))

    @property
    def capacity(self) -> int:
        """One engine's."""
        return self._all[0].capacity

    @property
    def preemptions(self) -> int:
        return sum(one.preemptions for one in self._all)

    def held_tokens(self) -> int:
        return sum(one.held_tokens() for one in self._all)

    def used_blocks(self) -> int:
        return sum(one.used_blocks() for one in self._all)
