"""Counts HTTP requests against latency objectives, exactly. Pure: times are parameters, in seconds of any one clock.

A histogram cannot say how many requests met all objectives at once, and its buckets rarely end at a threshold. So the
engine counts, and these are the rules:

- The unit is the HTTP request. `n`, a batch of prompts and beams are its **sequences**, and it ends with the last one.
- **TimeToFirstToken**: arrival to the first token of any sequence. **EndToEndLatency**: arrival to the last token of
  the last one.
- **TimePerOutputToken**: (last token - first token) / (tokens - 1) of the slowest sequence. A request whose sequences
  all have one token has none: it is not counted for that objective, and for all together it counts by the others.
- **InterTokenLatency** is counted by the gap, as gaps occur, whatever becomes of the request: its share is that of
  gaps. For all objectives together a request meets it if the mean gap of its slowest sequence does. A single late token
  does not fail an answer of hundreds, a slow stream does.
- A client that leaves counts for what is certain by then, and not for the rest. An objective is violated if a deadline
  passed, or the stream was too slow so far, the wait for its next token included. Then the request is `abandoned`, else
  `aborted`. An objective of first tokens is met if that came in time. For all together it is violated if one is, met
  if each is met for certain, and else not counted. Were only violations counted, clients that leave in mid-answer would
  make an engine look bad that serves each of them in time.
- A request counts when it ends. Whether it meets an objective may be certain before (`open_outcomes`).
- Requests are counted against the objectives in force when they end: those of their class. Without a class, or of an
  unknown one, these are the objectives without a class; a class without objectives is counted against nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, assert_never

from flyball_engine.batching.classes import RequestClassifier
from flyball_engine.batching.open_outcomes import OpenOutcomes
from flyball_engine.contract import DEFAULT_CLASS, DEFAULT_CLASS_LABEL, Classes, Metric, ObjectiveSpec

#: Requests that may be open at once; at 1 KiB each this is 64 MiB. The oldest is dropped beyond that.
DEFAULT_CAPACITY: Final = 65_536

MET: Final = "met"
VIOLATED: Final = "violated"


class Outcome(StrEnum):
    """What became of a request. The first three are counted against objectives, the others are not."""

    FINISHED = "finished"
    """Every sequence came to its end."""
    ABANDONED = "abandoned"
    """The client left when an objective was violated already."""
    ABORTED = "aborted"
    """The client left before that. What was met by then for certain counts."""
    REFUSED = "refused"
    """Answered with an error before any sequence started, or refused for overload before any had a token."""
    ERROR = "error"
    """Failed in the engine."""
    UNCOUNTED = "uncounted"
    """Lost to counting: more requests open than the ledger holds, or a fault in what feeds it."""


class End(StrEnum):
    """How the HTTP request ended, as the server saw it."""

    ANSWERED = "answered"
    LEFT = "left"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class OpenSequence:
    """One generated sequence of a request.

    `first` and `last` are times of its tokens on the engine core's clock; `heard` is when the server had the last one.
    `named`: the most tokens that its request wants of it, None if it does not say. `cached`: tokens of its prompt that
    this engine did not process, as its core says; None if it does not.
    """

    request: OpenRequest
    named: int | None = None
    cached: int | None = None
    first: float = 0.0
    last: float = 0.0
    heard: float = 0.0
    tokens: int = 0
    gaps: int = 0
    done: bool = False

    def per_token(self) -> float | None:
        """Mean seconds per token after the first; None with fewer than two tokens."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None

    def per_gap(self) -> float | None:
        """Mean seconds between deliveries, each of which may be several tokens; None without any gap."""
        return (self.last - self.first) / self.gaps if self.gaps else None

    def stalled(self, now: float, units: int) -> float | None:
        """Mean seconds per unit (token or gap after the first) if the next came `now`; None if none is to come."""
        return (self.last - self.first + now - self.heard) / (units + 1) if self.tokens and not self.done else None


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request that has not ended. `arrival`, `first_token` and `last_end` are times on the server's clock.

    `adapter`: name of the LoRA adapter that answers it, empty for the model itself.
    """

    arrival: float
    of_class: str = DEFAULT_CLASS
    adapter: str = ""
    sequences: list[OpenSequence] = field(default_factory=list)
    first_token: float | None = None
    last_end: float = 0.0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    failed: bool = False
    answered: bool = False
    open: bool = True

    def complete(self) -> bool:
        """True if it has sequences and all of them came to their end."""
        return bool(self.sequences) and all(sequence.done for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Cumulative counts. Keys: outcome; (class, outcome); (objective id, met or violated); (ids joined by `,`, same).

    Keys of adapters: (name, outcome), and name, for the output tokens of finished requests.
    `open_objectives` is not cumulative: (objective id, met or violated) of open requests of which that is certain.

    Tokens are those of finished requests; a prompt shared by `n` sequences counts for each, as does what was cached.
    """

    requests: dict[str, int]
    classes: dict[tuple[str, str], int]
    objectives: dict[tuple[str, str], int]
    all_objectives: dict[tuple[str, str], int]
    generated_tokens: int
    prompt_tokens: int
    cached_prompt_tokens: int
    unknown_class: int = 0
    adapters: dict[tuple[str, str], int] = field(default_factory=dict)
    adapter_tokens: dict[str, int] = field(default_factory=dict)
    open_objectives: dict[tuple[str, str], int] = field(default_factory=dict)


class RequestLedger:
    """Counts requests as their events come in, from one thread; any thread may call `set_objectives` and `collect`.

    `classifier` tells the class of a request by its headers or its priority.
    (Under the interpreter lock a dict is copied, and an attribute replaced, in one step.)
    """

    def __init__(self, *, capacity: int = DEFAULT_CAPACITY) -> None:
        self._capacity = capacity
        self._open: dict[OpenRequest, None] = {}
        self._requests: dict[str, int] = {outcome.value: 0 for outcome in Outcome}
        self.classifier = RequestClassifier()
        self._classes: dict[tuple[str, str], int] = {}
        self._adapters: dict[tuple[str, str], int] = {}
        self._adapter_tokens: dict[str, int] = {}
        self._objectives: tuple[ObjectiveSpec, ...] = ()
        self._by_class: dict[str, tuple[ObjectiveSpec, ...]] = {}
        self._gap_thresholds: dict[str, tuple[tuple[str, float], ...]] = {}
        self._open_outcomes = OpenOutcomes[OpenRequest](_certain)
        self._counts: dict[tuple[str, str], int] = {}
        self._together: dict[tuple[str, str], int] = {}
        self._generated = 0
        self._prompt = 0
        self._cached = 0

    def set_objectives(self, objectives: Sequence[ObjectiveSpec]) -> None:
        """What is counted from now on. Counts of objectives that stay are kept, those of others are dropped."""
        wanted = tuple(objectives)
        if wanted == self._objectives:
            return
        keys = [(objective.id, outcome) for objective in wanted for outcome in (MET, VIOLATED)]
        names = dict.fromkeys(objective.of_class for objective in wanted)
        by_class = {name: tuple(one for one in wanted if one.of_class == name) for name in names}
        together = [(_joined(each), outcome) for each in by_class.values() for outcome in (MET, VIOLATED)]
        # New keys are there before they are in force: an event in between finds what it counts on.
        self._counts = {key: self._counts.get(key, 0) for key in keys}
        self._together = {key: self._together.get(key, 0) for key in together}
        gaps = {
            name: tuple((one.id, one.threshold_seconds) for one in each if one.metric is Metric.INTER_TOKEN_LATENCY)
            for name, each in by_class.items()
        }
        self._gap_thresholds = {name: each for name, each in gaps.items() if each}
        # Without a sequence it may be one that generates nothing.
        self._open_outcomes.follow(by_class, [request for request in list(self._open) if request.sequences])
        self._by_class = by_class
        self._objectives = wanted

    def set_classes(self, classes: Classes | None) -> None:
        """The classes that requests are told apart by: those that are gone are counted no more, so labels are few."""
        self.classifier.follow(classes)
        names = () if classes is None else (DEFAULT_CLASS_LABEL, *classes.names)
        self._classes = _of_these(names, self._classes)

    def set_adapters(self, names: Sequence[str]) -> None:
        """The adapters that requests are counted by: those that are gone are counted no more, so labels are few."""
        self._adapter_tokens = {name: self._adapter_tokens.get(name, 0) for name in names}
        self._adapters = _of_these(names, self._adapters)

    def collect(self, now: float = -math.inf) -> LedgerCounts:
        """The counts so far. `now`: what is certain of open requests is as of this time; by default, nothing is."""
        return LedgerCounts(
            requests=self._requests.copy(),
            classes=self._classes.copy(),
            adapters=self._adapters.copy(),
            adapter_tokens=self._adapter_tokens.copy(),
            unknown_class=self.classifier.unknown,
            objectives=self._counts.copy(),
            all_objectives=self._together.copy(),
            generated_tokens=self._generated,
            prompt_tokens=self._prompt,
            cached_prompt_tokens=self._cached,
            open_objectives={
                (identity, MET if meets else VIOLATED): count
                for (identity, meets), count in self._open_outcomes.counts(now).items()
            },
        )

    def opened(self, arrival: float, of_class: str = DEFAULT_CLASS) -> OpenRequest:
        """A request of a class has come in. Beyond the capacity the oldest open one is given up."""
        request = OpenRequest(arrival, of_class)
        self._open[request] = None
        if len(self._open) > self._capacity:
            self._close(next(iter(self._open)), Outcome.UNCOUNTED)
        return request

    def by_priority(self, request: OpenRequest, priority: int) -> str:
        """The class that a request is of by its priority, where its headers named none."""
        request.of_class = self.classifier.of_priority(priority)
        return request.of_class

    def forgotten(self, request: OpenRequest) -> None:
        """It was none that generates (a health check, a list of models): nothing is counted."""
        self._open.pop(request, None)
        self._open_outcomes.ended(request)
        request.open = False

    def lost(self, request: OpenRequest | None) -> None:
        """What feeds the ledger failed for this request, or for one it cannot name."""
        if request is None:
            self._requests[Outcome.UNCOUNTED] += 1
        elif request.open:
            self._close(request, Outcome.UNCOUNTED)

    def started(self, request: OpenRequest) -> OpenSequence:
        """A sequence of the request goes to the engine."""
        sequence = OpenSequence(request)
        request.sequences.append(sequence)
        if request.open and len(request.sequences) == 1:
            self._open_outcomes.came(request)
        return sequence

    def received(self, sequence: OpenSequence, *, tokens: int, at: float, now: float) -> None:
        """The engine core made `tokens` at time `at` of its clock; the server has them at `now` of its own."""
        if tokens < 1:
            return
        if sequence.tokens:
            sequence.gaps += 1
            if self._gap_thresholds:
                self._gap_passed(at - sequence.last, sequence.request.of_class)
        else:
            sequence.first = at
            if sequence.request.first_token is None:
                sequence.request.first_token = now
        sequence.last = at
        sequence.heard = now
        sequence.tokens += tokens

    def _gap_passed(self, seconds: float, of_class: str) -> None:
        for identity, threshold in self._gap_thresholds.get(of_class, ()):
            self._count(identity, met=seconds <= threshold)

    def caught_up(self, sequence: OpenSequence, *, tokens: int, gaps: int, at: float) -> None:
        """Deliveries after the first, so many at once, the last of them `at`; `gaps_passed` counts their gaps."""
        sequence.tokens += tokens
        sequence.gaps += gaps
        sequence.last = sequence.heard = at

    def gaps_passed(self, objective: ObjectiveSpec, *, met: int, violated: int) -> None:
        """So many gaps kept an objective in force, and so many did not."""
        for outcome, count in ((MET, met), (VIOLATED, violated)):
            key = (objective.id, outcome)
            self._counts[key] = self._counts.get(key, 0) + count

    def done(self, sequence: OpenSequence, *, prompt: int, cached: int, now: float, failed: bool = False) -> None:
        """A sequence came to its end at `now`, with so many prompt tokens and cached ones among them."""
        request = sequence.request
        sequence.done = True
        request.last_end = now
        request.prompt_tokens += prompt
        request.cached_prompt_tokens += cached
        request.failed |= failed
        if request.first_token is None:
            request.first_token = now  # an empty answer: the client waited until its end
        if request.answered and request.complete():
            self._settle(request)

    def ended(self, request: OpenRequest, how: End, now: float) -> None:
        """The HTTP exchange is over. One answered with sequences still running ends with the last of them."""
        if not request.open:
            return
        if how is End.REFUSED:
            self._close(request, Outcome.REFUSED)
        elif request.complete():
            self._settle(request)
        elif how is End.LEFT:
            self._leave(request, now)
        elif how is End.ANSWERED and request.sequences:
            request.answered = True
        elif how is End.ANSWERED:
            self.forgotten(request)
        else:
            self._close(request, Outcome.ERROR)

    def _settle(self, request: OpenRequest) -> None:
        """Counts a request whose sequences all ended."""
        if not request.open:
            return
        if request.failed:
            self._close(request, Outcome.ERROR)
            return
        verdicts = {one: _verdict(one, request) for one in self._objectives_of(request)}
        self._judge(verdicts)
        self._judge_together(verdicts)
        tokens = sum(sequence.tokens for sequence in request.sequences)
        self._generated += tokens
        if request.adapter in self._adapter_tokens:
            self._adapter_tokens[request.adapter] += tokens
        self._prompt += request.prompt_tokens
        self._cached += request.cached_prompt_tokens
        self._close(request, Outcome.FINISHED)

    def _leave(self, request: OpenRequest, now: float) -> None:
        """Counts a request whose client left: for what is certain by then."""
        verdicts = {one: _verdict_so_far(one, request, now) for one in self._objectives_of(request)}
        violated = False in verdicts.values()
        self._judge(verdicts)
        if violated or None not in verdicts.values():
            self._judge_together(verdicts)
        self._close(request, Outcome.ABANDONED if violated else Outcome.ABORTED)

    def _objectives_of(self, request: OpenRequest) -> tuple[ObjectiveSpec, ...]:
        return self._by_class.get(request.of_class, ())

    def _judge(self, verdicts: Mapping[ObjectiveSpec, bool | None]) -> None:
        for objective, verdict in verdicts.items():
            if verdict is not None and objective.metric is not Metric.INTER_TOKEN_LATENCY:
                self._count(objective.id, met=verdict)

    def _judge_together(self, verdicts: Mapping[ObjectiveSpec, bool | None]) -> None:
        if verdicts:
            key = (_joined(tuple(verdicts)), VIOLATED if False in verdicts.values() else MET)
            self._together[key] = self._together.get(key, 0) + 1

    def _count(self, identity: str, *, met: bool) -> None:
        key = (identity, MET if met else VIOLATED)
        self._counts[key] = self._counts.get(key, 0) + 1

    def _close(self, request: OpenRequest, outcome: Outcome) -> None:
        self._open.pop(request, None)
        self._open_outcomes.ended(request)
        request.open = False
        self._requests[outcome.value] += 1
        key = (request.of_class or DEFAULT_CLASS_LABEL, outcome.value)
        # One that came before its class was forgotten is of none.
        if key in self._classes:
            self._classes[key] += 1
        if (of_adapter := (request.adapter, outcome.value)) in self._adapters:
            self._adapters[of_adapter] += 1


def _of_these(names: Sequence[str], before: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Counts by name and outcome of these names alone; of new ones they begin at 0."""
    keys = ((name, outcome.value) for name in names for outcome in Outcome)
    return {key: before.get(key, 0) for key in keys}


def _joined(objectives: Sequence[ObjectiveSpec]) -> str:
    return ",".join(objective.id for objective in objectives)


def _verdict(objective: ObjectiveSpec, request: OpenRequest) -> bool | None:
    """Whether a request that came to its end met an objective; None if it has nothing to measure."""
    measured = _measured(objective.metric, request)
    return None if measured is None else measured <= objective.threshold_seconds


def _measured(metric: Metric, request: OpenRequest) -> float | None:
    if metric is Metric.END_TO_END_LATENCY:
        return request.last_end - request.arrival
    if metric is Metric.TIME_TO_FIRST_TOKEN:
        return None if request.first_token is None else request.first_token - request.arrival
    if metric is Metric.TIME_PER_OUTPUT_TOKEN:
        means = [sequence.per_token() for sequence in request.sequences]
    elif metric is Metric.INTER_TOKEN_LATENCY:
        means = [sequence.per_gap() for sequence in request.sequences]
    else:
        assert_never(metric)
    return max((mean for mean in means if mean is not None), default=None)


def _certain(objective: ObjectiveSpec, request: OpenRequest, now: float) -> bool | None:
    """Whether an open request meets an objective, behind its deadline; None for one that has ended meanwhile."""
    if not request.open:
        return None
    # All of it may be there, and its client still read.
    return _verdict(objective, request) if request.complete() else _verdict_so_far(objective, request, now)


def _verdict_so_far(objective: ObjectiveSpec, request: OpenRequest, now: float) -> bool | None:
    """Whether a request whose client left at `now` met an objective for certain; None while that was open."""
    threshold = objective.threshold_seconds
    if objective.metric is Metric.END_TO_END_LATENCY:
        return False if now - request.arrival > threshold else None
    if objective.metric is Metric.TIME_TO_FIRST_TOKEN:
        if request.first_token is None:
            return False if now - request.arrival > threshold else None
        return request.first_token - request.arrival <= threshold
    if objective.metric is Metric.TIME_PER_OUTPUT_TOKEN:
        waits = [one.stalled(now, one.tokens - 1) for one in request.sequences]
    elif objective.metric is Metric.INTER_TOKEN_LATENCY:
        waits = [one.stalled(now, one.gaps) for one in request.sequences]
    else:
        assert_never(objective.metric)
    return False if any(wait > threshold for wait in waits if wait) or _verdict(objective, request) is False else None
