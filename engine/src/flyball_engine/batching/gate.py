"""The gate: whether a request that comes now would get its first token in time, before anything of it is answered.

Past capacity a queue without a gate loses every objective, whatever the limits are: all wait too long. So a request
whose predicted time to first token passes the deadline is refused at once, and those let in keep their objectives. The
prediction is made of what the engine core published last, of what was sent to it since, and of the step-time model:

    TTFT = rest of the steps in flight + max(steps for backlog and prompt, wait for a place + steps for the prompt)

with steps as full as budget and limits allow beside the running decodes, each token of a prompt at its share of the
prompts' attention, and places that become free as answers of mean length end. Of a prompt only what the prefix cache
lacks is work: where it is not known what that holds, the share is assumed that it held lately.
Without a model that is trusted the gate is silent: everything is let in. An idle engine serves: where no request runs,
waits or is on its way, nobody is hurt by one that is late, and late is better than never. And an engine that only
decodes and has been let nothing for a while is let one request, whatever is predicted: what is wrong with a prediction
shows only in steps with a prompt.

Pure: imports only the standard library, the contract, the step-time model and the reflex.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flyball_engine.contract import Setpoint, Shed, StepBudget
from flyball_engine.model import StepModel

#: Weight of one finished request in the mean output length and in the share of prompts that the prefix cache holds.
_FINISHED_WEIGHT: Final = 0.02
#: Requests that must have finished before their means are used.
_LEAST_FINISHED: Final = 5
#: Requests sent that no core has received yet; older ones are not looked at.
_MOST_ON_WAY: Final = 4096
#: An engine without a prompt to process is let one that is predicted to be late, if it was let none for so long.
PROBE_SECONDS: Final = 30.0
#: `Retry-After` says from as many seconds as the prediction is late, but no more than this, up to twice as many.
MOST_LATE_SECONDS: Final = 30
#: The same where vLLM's own limit of its queue refuses, and nothing is predicted: some objectives for a first token.
QUEUE_FULL_SECONDS: Final = 5
#: A reservation that neither reached the engine nor was given back by then is forgotten.
RESERVATION_SECONDS: Final = 10.0


class Reason(StrEnum):
    """Why a request was let in or refused; label of the admissions counter."""

    IN_TIME = "in_time"
    """Let in: its first token is predicted to come before the deadline."""
    NO_DEADLINE = "no_deadline"
    """Let in: the setpoint has no deadline."""
    NO_MODEL = "no_model"
    """Let in: there is no step-time model, or none that is trusted."""
    IDLE = "idle"
    """Let in though predicted to be late: no request runs, waits or is on its way, so nobody else is hurt."""
    PROBE = "probe"
    """Let in though predicted to be late: the engine has no prompt to process, and was let nothing for long."""
    UNOBSERVED = "unobserved"
    """Let in: what the engine core does could not be read."""
    LATE = "late"
    """Refused: its first token is predicted to come after the deadline."""
    QUEUE_FULL = "queue_full"
    """Refused: by vLLM's own limits of its queue. Rarely one that the gate let in, and counted, a moment before."""
    EXPIRED = "expired"
    """Refused: let in, and counted, as in time; its first token cannot come by the deadline any more."""


REFUSALS: Final = frozenset({Reason.LATE, Reason.QUEUE_FULL, Reason.EXPIRED})
#: HTTP status of a refusal where no setpoint says another.
REFUSAL_STATUS: Final = 503


@dataclass(frozen=True)
class Work:
    """Prompts to be processed: how many, their `tokens`, and their prefill `attention` (token², see `model`)."""

    requests: int = 0
    tokens: float = 0
    attention: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.requests + other.requests, self.tokens + other.tokens, self.attention + other.attention)

    def less_cached(self, share: float) -> Work:
        """What is left of it when the prefix cache holds the first `share` of each prompt."""
        return Work(self.requests, self.tokens * (1 - share), self.attention * (1 - share**2))

    def spread(self, cores: int) -> Work:
        """What each of some cores has of it."""
        return Work(math.ceil(self.requests / cores), self.tokens / cores, self.attention / cores)


def prompt_work(tokens: int, cached: int = 0) -> Work:
    """A prompt of so many tokens, of which the prefix cache holds the first `cached`."""
    left = tokens - cached
    return Work(1, left, left * (cached + left / 2))


@dataclass(frozen=True)
class Arrival:
    """A prompt that comes: its tokens, and how many of them each core's prefix cache holds, None if that is unknown."""

    tokens: int
    cached: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CoreLoad:
    """What an engine core published: its work, and what it had received by then.

    `backlog`: what is still to be processed of prompts that wait or have begun; its requests are those that wait. It
    leaves out what the prefix cache holds of those that wait only if `knows_prefixes`.
    `received`: requests, cumulative. `decodes`: running requests that decode. `places`: requests that may join at once.
    `tokens`: limit on a step's tokens. `pipeline_depth`: steps in flight at once. `stages` of its pipeline: so many of
    them have different requests, each a part of those that run. `kv_tokens`: those of the KV cache that decodes read.
    """

    backlog: Work
    knows_prefixes: bool
    received: int
    decodes: int
    running: int
    places: int
    tokens: int
    tokens_per_decode: int
    pipeline_depth: int
    stages: int
    bias: float
    kv_tokens: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the gate says of a request: let in or refused, why, and the seconds predicted, None if none could be.

    `status`: the HTTP status of a refusal.
    """

    admitted: bool
    reason: Reason
    predicted: float | None = None
    deadline: float | None = None
    status: int = REFUSAL_STATUS

    def retry_after(self, chance: float) -> int:
        """Whole seconds after which the queue may be short enough.

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


@dataclass(eq=False)
class Reservation:
    """A request that was let in and has not reached the engine: what it will add to the backlog."""

    work: Work
    since: float


class Gate:
    """Decides on requests, from one thread. `loads` reads what the cores published; None if that cannot be seen.

    The clock is a parameter of each call. Its own memory is bounded: reservations expire.
    """

    def __init__(self, loads: Callable[[], list[CoreLoad] | None]) -> None:
        self.counts: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self._loads = loads
        self._setpoint: Setpoint | None = None
        self._pace: _Pace | None = None
        self._expires = -math.inf
        self._let_in_at = -math.inf
        self._reserved: dict[Reservation, None] = {}
        self._sent = 0
        self._on_way: deque[Work] = deque(maxlen=_MOST_ON_WAY)
        self._finished = 0
        self._mean_output = 0.0
        self._hit_ratio = 0.0

    def set_policy(self, setpoint: Setpoint, *, now: float) -> None:
        """The setpoint to decide by from now on, until it expires."""
        if self._setpoint is None or self._setpoint.shed is None:
            self._let_in_at = now
        self._setpoint = setpoint
        step = setpoint.step
        self._pace = _Pace(step, step.model.step_model()) if step is not None and step.model.trusted else None
        self._expires = now + setpoint.expires_seconds

    def predicts(self, now: float) -> bool:
        """Whether decisions are predictions now, so that it is worth looking what of a prompt is cached."""
        return isinstance(self._policy(now), _Policy)

    def decide(self, arrival: Arrival, *, now: float) -> Verdict:
        """Whether a prompt may go to the engine; counts the decision."""
        verdict = self._verdict(arrival, now)
        if verdict.admitted:
            self._let_in_at = now
        self.counts[verdict.reason] += 1
        return verdict

    def queue_full(self) -> None:
        """Count a request that the engine's own limits refused."""
        self.counts[Reason.QUEUE_FULL] += 1

    def expired(self) -> int:
        """Count a request that was let in and refused before its first token; the HTTP status of that refusal."""
        self.counts[Reason.EXPIRED] += 1
        shed = None if self._setpoint is None else self._setpoint.shed
        return REFUSAL_STATUS if shed is None else shed.refusal_status

    def reserve(self, arrival: Arrival, *, now: float) -> Reservation:
        """Add to the backlog what was let in, until it is sent or given back."""
        for old in [each for each in self._reserved if now - each.since > RESERVATION_SECONDS]:
            del self._reserved[old]
        reservation = Reservation(self.weigh(arrival), now)
        self._reserved[reservation] = None
        return reservation

    def release(self, reservation: Reservation) -> None:
        """The request reached the engine, or will not."""
        self._reserved.pop(reservation, None)

    def weigh(self, arrival: Arrival) -> Work:
        """What a prompt will add to the backlog: on the average of the cores, where they hold different parts of it."""
        works = self._works(arrival)
        whole = sum(works, Work())
        return Work(1, whole.tokens / len(works), whole.attention / len(works))

    def sent(self, work: Work) -> None:
        """A sequence was sent to an engine core."""
        self._sent += 1
        self._on_way.append(work)

    def rebase(self) -> None:
        """Nothing is unfinished: whatever was sent was received, so that an error of counting does not last."""
        loads = self._loads()
        if loads:
            self._sent = sum(load.received for load in loads)
            self._on_way.clear()

    def finished(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """A sequence came to its end: its length, and what of its prompt the prefix cache held."""
        self._finished += 1
        weight = max(_FINISHED_WEIGHT, 1 / self._finished)
        self._mean_output += weight * (output_tokens - self._mean_output)
        self._hit_ratio += weight * (cached_tokens / max(1, prompt_tokens) - self._hit_ratio)

    def _verdict(self, arrival: Arrival, now: float) -> Verdict:
        policy = self._policy(now)
        if isinstance(policy, Reason):
            return Verdict(admitted=True, reason=policy)
        loads = self._loads()
        if not loads:
            return Verdict(admitted=True, reason=Reason.UNOBSERVED)
        predicted = self._predict(arrival, policy.pace, loads)
        deadline = policy.shed.ttft_deadline_seconds * policy.shed.margin
        reason = Reason.IN_TIME
        if predicted > deadline:
            reason = self._why_late(loads, now)
        return Verdict(
            admitted=reason not in REFUSALS,
            reason=reason,
            predicted=predicted,
            deadline=deadline,
            status=policy.shed.refusal_status,
        )

    def _why_late(self, loads: list[CoreLoad], now: float) -> Reason:
        """Whether what will be late is let in all the same. vLLM sends it to an idle core where there is one."""
        on_way = self._reserved or self._not_received(loads).requests
        if not on_way and any(load.running == 0 and _takes_one(load) for load in loads):
            return Reason.IDLE
        return Reason.PROBE if self._is_starved(loads, now) else Reason.LATE

    def _is_starved(self, loads: list[CoreLoad], now: float) -> bool:
        """Whether no prompt is processed nor comes, because nothing was let in for long, though there is a place.

        A bias from a stall, or a model from other steps, would refuse everything for ever: only steps with a prompt
        correct them, and decodes that run on are none.
        """
        return not self._reserved and all(map(_takes_one, loads)) and now - self._let_in_at >= PROBE_SECONDS

    def _policy(self, now: float) -> _Policy | Reason:
        """What to predict by, or why everything is let in."""
        setpoint = self._setpoint if now < self._expires else None
        if setpoint is None or setpoint.shed is None:
            return Reason.NO_DEADLINE
        return Reason.NO_MODEL if self._pace is None else _Policy(setpoint.shed, self._pace)

    def _predict(self, arrival: Arrival, pace: _Pace, loads: list[CoreLoad]) -> float:
        """Seconds to the first token on the core that vLLM will choose; what is on its way is spread over the cores.

        VLLM's balancer goes by the requests that wait, four times over, and run (`DPLBAsyncMPClient`), and not by what
        the cores' caches hold.
        """
        on_way = sum((reservation.work for reservation in self._reserved), self._not_received(loads)).spread(len(loads))
        chosen = min(range(len(loads)), key=lambda core: 4 * loads[core].backlog.requests + loads[core].running)
        works = self._works(arrival)
        return _ttft(
            pace,
            loads[chosen],
            prompt=works[chosen] if len(works) == len(loads) else works[0],
            ahead=self._backlog(loads[chosen]) + on_way,
            mean_output=self._mean_output if self._finished >= _LEAST_FINISHED else None,
        )

    def _works(self, arrival: Arrival) -> tuple[Work, ...]:
        """What a prompt is for each core; for all of them alike where nobody knows what their caches hold."""
        if arrival.cached:
            return tuple(prompt_work(arrival.tokens, cached) for cached in arrival.cached)
        return (prompt_work(arrival.tokens).less_cached(self._hit_ratio),)

    def _not_received(self, loads: list[CoreLoad]) -> Work:
        """What was sent last, as far as the cores do not know of it."""
        number = self._sent - sum(load.received for load in loads)
        while len(self._on_way) > max(0, number):
            self._on_way.popleft()
        return sum(self._on_way, Work())

    def _backlog(self, load: CoreLoad) -> Work:
        return load.backlog if load.knows_prefixes else load.backlog.less_cached(self._hit_ratio)


@dataclass(frozen=True)
class _Pace:
    """A setpoint's step budget, with its model made ready: a request shall cost no more than it must."""

    step: StepBudget
    model: StepModel


@dataclass(frozen=True)
class _Policy:
    """A deadline, and what predicts."""

    shed: Shed
    pace: _Pace


def _takes_one(load: CoreLoad) -> bool:
    """Whether nobody waits before the core, and it has a place."""
    return load.backlog.requests == 0 and load.places > 0


def _ttft(pace: _Pace, load: CoreLoad, *, prompt: Work, ahead: Work, mean_output: float | None) -> float:
    """Seconds from now to the first token of a prompt with some work `ahead` of it.

    `mean_output`: tokens of an answer, None while that is not known: then no wait for a place is reckoned.
    """
    step, model, decodes = pace.step, pace.model, load.decodes / load.stages
    kv_tokens = load.kv_tokens / load.stages
    decode_tokens = decodes * load.tokens_per_decode

    def steps(work: Work) -> float:
        """Seconds of the steps that do some work: full ones, or one that is not."""
        context = work.attention / max(1.0, work.tokens)
        fits = model.largest_chunk(
            seconds=step.seconds / load.bias,
            tokens=decode_tokens,
            decodes=decodes,
            kv_tokens=kv_tokens,
            context=context,
        )
        chunk = max(float(step.least_prefill_chunk), min(fits, float(load.tokens - decode_tokens)))
        served = min(work.tokens, chunk)
        seconds = model.step_seconds(
            tokens=decode_tokens + served,
            decodes=decodes,
            prefills=served > 0,
            attention=served * context,
            kv_tokens=kv_tokens,
        )
        return load.bias * seconds * max(1.0, work.tokens / chunk)

    running = load.bias * model.step_seconds(
        tokens=decode_tokens, decodes=decodes, prefills=False, attention=0.0, kv_tokens=kv_tokens
    )
    if ahead.tokens > 0:
        running = max(running, min(step.seconds, steps(ahead)))
    if load.running:
        rest = (load.pipeline_depth - 0.5) * running
    else:
        # The last of its own steps passes the other stages, too.
        rest = (load.stages - 1) * min(step.seconds, steps(prompt))
    place = _wait_for_place(load, ahead.requests, running * load.stages, mean_output)
    return rest + max(steps(ahead + prompt), place + steps(prompt))


def _wait_for_place(load: CoreLoad, ahead: int, seconds: float, mean_output: float | None) -> float:
    """Seconds until enough running requests ended, a token taking so many."""
    needed = ahead + 1 - load.places
    if needed <= 0 or mean_output is None or load.running == 0:
        return 0.0
    return needed * mean_output * seconds / load.running
