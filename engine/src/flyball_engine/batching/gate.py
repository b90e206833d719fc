"""The gate: whether a request that comes now can have its first token in time, before anything of it is answered.

A prompt that would be late even if it were served alone from now on is hopeless, and refused at once:

    TTFT = rest of the steps in flight + the prompt at the prefill rate beside the running decodes

Who else waits does not matter here: the on-time order decides who is served first. What cannot be on time any more is
refused while nothing of its answer was sent (`late`, by the same rate). Of a prompt only what the prefix cache lacks is
work: where it is not known what that holds, the share is assumed that it held lately. Of several engine cores the best
one counts, so that no request is refused which some core could serve in time.

Where a whole answer is asked for in time, too, one that is expected to be long must begin the earlier (`answers`).

Without a model that is trusted the gate is silent: everything is let in. Two kinds of hopeless requests are let in:

- An idle engine serves (`IDLE`): nobody is hurt by one that is late, and late is better than never. Several may come
  before the core says that it has one. They may be refused later, too: the core keeps one of those that are late, and
  only if nobody else is there (`late.but_one_alone`). So all but one are refused after one step.
- An engine that only decodes, and was let in nothing for a while, is let in one (`PROBE`). What is wrong with a model
  shows only in steps with a prompt, and a wrong model must not refuse everything for ever. What is let in counts here
  at once, not when the core has it: so many come at a time, one is a probe, each `PROBE_SECONDS`, for each API server.

Pure: imports only the standard library, the contract, the prefill rate and the lengths of answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from flyball_engine.batching.answers import Answers
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.contract import DEFAULT_CLASS, Metric, Setpoint, Shed

#: Weight of one finished request in the share of prompts that the prefix cache holds.
_FINISHED_WEIGHT: Final = 0.02
#: An engine without a prompt to process is let in one that would be late, if it was let in none for so long.
PROBE_SECONDS: Final = 30.0
#: `Retry-After` says from as many seconds as the prediction is late, but no more than this, up to twice as many.
MOST_LATE_SECONDS: Final = 30
#: The same where vLLM's own limit of its queue refuses, and nothing is predicted: some objectives for a first token.
QUEUE_FULL_SECONDS: Final = 5


class AdmissionReason(StrEnum):
    """Why a request was let in or refused; label of the admissions counter."""

    IN_TIME = "in_time"
    """Let in: served alone, its first token comes before the deadline."""
    NO_DEADLINE = "no_deadline"
    """Let in: the setpoint has no deadline, or the request's class has none."""
    NO_MODEL = "no_model"
    """Let in: there is no step-time model, or none that is trusted."""
    IDLE = "idle"
    """Let in though it will be late: no request runs or waits, so nobody else is hurt."""
    PROBE = "probe"
    """Let in though predicted to be late: the engine has no prompt to process, and was let in nothing for long."""
    UNOBSERVED = "unobserved"
    """Let in: what the engine core does could not be read."""
    LATE = "late"
    """Refused: its first token would come after the deadline even if it were served alone. That of an answer that is
    expected to be too long is 0."""
    QUEUE_FULL = "queue_full"
    """Refused: by vLLM's own limits of its queue. Rarely one that the gate let in, and counted, a moment before."""
    EXPIRED = "expired"
    """Refused: let in, and counted, before; its first token cannot come by the deadline any more."""


REFUSALS: Final = frozenset({AdmissionReason.LATE, AdmissionReason.QUEUE_FULL, AdmissionReason.EXPIRED})
#: What was let in so may be refused later: it has a deadline, and the rate that says so is known.
_REFUSABLE: Final = frozenset({AdmissionReason.IN_TIME, AdmissionReason.IDLE})
#: HTTP status of a refusal where no setpoint says another.
REFUSAL_STATUS: Final = 503


class PrefillWork(NamedTuple):
    """What is to be processed of a prompt: `tokens`, and their prefill `attention` (token², see `model`)."""

    tokens: float
    attention: float

    def less_cached(self, share: float) -> PrefillWork:
        """What is left of a whole prompt when the prefix cache holds the first `share` of it."""
        return PrefillWork(self.tokens * (1 - share), self.attention * (1 - share**2))


def prompt_work(tokens: int, cached: int = 0) -> PrefillWork:
    """A prompt of so many tokens, of which the prefix cache holds the first `cached`."""
    left = tokens - cached
    return PrefillWork(left, left * (cached + left / 2))


@dataclass(frozen=True)
class Arrival:
    """A prompt that comes: its tokens, and how many of them each core's prefix cache holds, None if that is unknown.

    `of_class`: the class of its request. `named`: the most tokens that its answer may have, None if it does not say.
    """

    tokens: int
    cached: tuple[int, ...] | None = None
    of_class: str = DEFAULT_CLASS
    named: int | None = None


class CoreLoad(NamedTuple):
    """What an engine core published.

    `rate`: of prompts beside the decodes that run; None where it judges nobody by time. `in_flight_seconds`: until the
    steps in flight end, as far as that is foreseen. `running`, `waiting`: requests. `prefills`: of those that run, the
    ones whose prompt is not yet processed.
    """

    rate: PrefillRate | None = None
    in_flight_seconds: float = 0.0
    running: int = 0
    waiting: int = 0
    prefills: int = 0

    def first_token(self, work: PrefillWork) -> float:
        """Seconds from now to the first token of a prompt that is served alone; 0 without a rate."""
        return self.in_flight_seconds + self.rate.seconds(work.tokens, work.attention) if self.rate is not None else 0.0

    @property
    def is_idle(self) -> bool:
        """Whether there is nobody who could be hurt."""
        return not (self.running or self.waiting)

    @property
    def has_prompts(self) -> bool:
        """Whether prompts are processed, or will be: what these steps take corrects the model."""
        return bool(self.waiting or self.prefills)


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """What the gate says of a request: let in or refused, why, and the seconds predicted, None if none could be.

    `status`: the HTTP status of a refusal. `refusable`: let in, and may be refused before anything of it is answered.
    """

    admitted: bool
    reason: AdmissionReason
    predicted: float | None = None
    deadline: float | None = None
    status: int = REFUSAL_STATUS
    refusable: bool = False

    def retry_after(self, chance: float) -> int:
        """Whole seconds after which it may be tried again.

        `chance`: random, at least 0 and below 1. It spreads those that are refused together over as long again.
        """
        if self.predicted is None or self.deadline is None:
            return 1
        return retry_after(self.predicted - self.deadline, chance)


def retry_after(seconds: float, chance: float) -> int:
    """Whole seconds until a request may be tried again that would be so many late. `chance`: see `spread`."""
    return spread(min(MOST_LATE_SECONDS, max(1, math.ceil(seconds))), chance)


def spread(seconds: int, chance: float) -> int:
    """So many seconds and up to as many again, so that those that are refused together do not return together."""
    return seconds + math.floor(chance * (seconds + 1))


class Gate:
    """Decides on requests, from one thread. `loads` reads what the cores published; None if that cannot be seen.

    The clock is a parameter of each call.
    """

    def __init__(self, loads: Callable[[], list[CoreLoad] | None]) -> None:
        self.counts: dict[AdmissionReason, int] = dict.fromkeys(AdmissionReason, 0)
        self._loads = loads
        self._setpoint: Setpoint | None = None
        self._expires = -math.inf
        self._let_in_at = -math.inf
        self._finished = 0
        self._hit_ratio = 0.0
        self.answers = Answers()

    def set_policy(self, setpoint: Setpoint, *, now: float) -> None:
        """The setpoint to decide by from now on, until it expires."""
        if self._setpoint is None or self._setpoint.shed is None:
            self._let_in_at = now
        self._setpoint = setpoint
        self._expires = now + setpoint.expires_seconds

    def predicts(self, now: float) -> bool:
        """Whether decisions are predictions now, so that it is worth looking what of a prompt is cached."""
        return isinstance(self._policy(now), Shed)

    def decide(self, arrival: Arrival, *, now: float) -> Admitted:
        """Whether a prompt may go to the engine; counts the decision."""
        verdict = self.judge(arrival, now)
        if verdict.admitted:
            self._let_in_at = now
        self.counts[verdict.reason] += 1
        return verdict

    def judge(self, arrival: Arrival, now: float) -> Admitted:
        """Whether a prompt may go to the engine."""
        policy = self._policy(now)
        if isinstance(policy, AdmissionReason):
            return Admitted(admitted=True, reason=policy)
        seconds = None if self._setpoint is None else self._setpoint.refused_after(arrival.of_class)
        if seconds is None:
            return Admitted(admitted=True, reason=AdmissionReason.NO_DEADLINE)
        loads = self._loads()
        if not loads:
            return Admitted(admitted=True, reason=AdmissionReason.UNOBSERVED)
        if any(load.rate is None for load in loads):
            return Admitted(admitted=True, reason=AdmissionReason.NO_MODEL)
        works = self._works(arrival, len(loads))
        predicted = min(load.first_token(work) for load, work in zip(loads, works, strict=True))
        deadline = min(seconds, self._left_by_whole(arrival, policy))
        reason = AdmissionReason.IN_TIME if predicted <= deadline else self._why_late(loads, now)
        return Admitted(
            admitted=reason not in REFUSALS,
            reason=reason,
            predicted=predicted,
            deadline=deadline,
            status=policy.refusal_status,
            refusable=reason in _REFUSABLE,
        )

    def queue_full(self) -> None:
        """Count a request that the engine's own limits refused."""
        self.counts[AdmissionReason.QUEUE_FULL] += 1

    def expired(self) -> int:
        """Count a request that was let in and refused before its first token; the HTTP status of that refusal."""
        self.counts[AdmissionReason.EXPIRED] += 1
        shed = None if self._setpoint is None else self._setpoint.shed
        return REFUSAL_STATUS if shed is None else shed.refusal_status

    def finished(self, *, prompt_tokens: int, cached_tokens: int) -> None:
        """A sequence came to its end: its prompt, and what of it the prefix cache held."""
        self._finished += 1
        weight = max(_FINISHED_WEIGHT, 1 / self._finished)
        self._hit_ratio += weight * (cached_tokens / max(1, prompt_tokens) - self._hit_ratio)

    def _left_by_whole(self, arrival: Arrival, policy: Shed) -> float:
        """Seconds that objectives for whole answers leave to the first token of one that is expected to be long."""
        objectives = () if self._setpoint is None else self._setpoint.objectives
        whole = [
            one.threshold_seconds
            for one in objectives
            if one.metric is Metric.END_TO_END_LATENCY and one.of_class == arrival.of_class
        ]
        return max(0.0, self.answers.left(policy.margin * min(whole), arrival.named)) if whole else math.inf

    def _why_late(self, loads: list[CoreLoad], now: float) -> AdmissionReason:
        """Whether what will be late is let in all the same. vLLM sends it to an idle core where there is one."""
        if any(load.is_idle for load in loads):
            return AdmissionReason.IDLE
        if any(load.has_prompts for load in loads) or now - self._let_in_at < PROBE_SECONDS:
            return AdmissionReason.LATE
        return AdmissionReason.PROBE

    def _policy(self, now: float) -> Shed | AdmissionReason:
        """The deadline to decide by, or why everything is let in."""
        setpoint = self._setpoint if now < self._expires else None
        if setpoint is None or setpoint.shed is None:
            return AdmissionReason.NO_DEADLINE
        return setpoint.shed if setpoint.step is not None and setpoint.step.model.trusted else AdmissionReason.NO_MODEL

    def _works(self, arrival: Arrival, cores: int) -> list[PrefillWork]:
        """What a prompt is for each core; for all of them alike where nobody knows what their caches hold."""
        # A core that came or went meanwhile: what its cache holds was not asked.
        if arrival.cached is not None and len(arrival.cached) == cores:
            return [prompt_work(arrival.tokens, cached) for cached in arrival.cached]
        return [prompt_work(arrival.tokens).less_cached(self._hit_ratio)] * cores
