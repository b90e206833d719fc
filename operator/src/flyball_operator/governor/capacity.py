"""Capacity: what engines carry at the objectives, and how many of them the load needs.

What one core carries is the largest rate of arrivals at which the law itself predicts every objective to be kept, with
the lengths of now. The tail of the wait for a place is in that prediction; of the wait behind other prompts only the
mean is. So a rate is judged with the queue that one request in a hundred meets: that tail is the headroom, and there is
no other. First tokens are held to the threshold itself, since the margin stands for that same scatter.

The number of replicas is advice: nothing here scales. Pure; seconds, tokens and requests per second, Unix seconds where
a time is meant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from flyball_operator.governor.law import choose, grid_points, token_budget, use
from flyball_operator.governor.policy import difference
from flyball_operator.governor.queueing import TAIL, mean_backlog
from flyball_operator.governor.shed import choose_gated
from flyball_operator.governor.situation import Choice, Demand, Margins, Prediction, Regime, Situation
from flyball_operator.governor.spec import Envelope, Objective, TuningSpec

#: A rate is found to this share.
EXACT: Final = 0.02
#: It is looked for again once lengths, margins or steps differ by this share, and after so many seconds in any case.
MOVED: Final = 0.1
FOUND_SECONDS: Final = 60.0
#: Requests per second that no core carries, whatever a model says.
FASTEST: Final = 1e6
#: Thresholds that cannot be kept are loosened by this until they can.
LOOSENED: Final = 1.02
#: The load is weighed once per window of signals, and remembered over this time constant: lengths scatter.
WEIGHED_SECONDS: Final = 15.0
MEMORY_SECONDS: Final = 60.0
#: Windows in a row in which even an idle engine fails the objectives, before that is said.
FAILING_WINDOWS: Final = 4
#: An overload ends below this share of the capacity.
RELIEVED: Final = 0.9
#: One replica fewer must carry the load with this much to spare, for so long.
SPARE: Final = 1.2
FEWER_SECONDS: Final = 300.0
#: What people are shown stays while it is right within this share, so that noise writes no status.
SHOWN_WITHIN: Final = 0.1
#: More replicas are never advised, nor more than so many times those that run: where hardly any rate keeps the
#: objectives more replicas do not make them feasible, and an autoscaler would follow any number.
MOST_REPLICAS: Final = 10_000
MOST_GROWTH: Final = 4
#: A decode that lasts beyond any batch.
_ENDLESS: Final = 1e6


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What one core carries: requests per second, and the objective nearest to its threshold there.

    `reachable`: where the objectives cannot be kept even by an idle engine, those that fail, and the thresholds in
    seconds that together with the other objectives can be.
    """

    rate: float
    binding: str = ""
    reachable: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Search:
    """What was found to be carried, `gated` or not, in a situation, `at` a time in Unix seconds."""

    at: float
    situation: Situation
    gated: bool
    found: Carried

    def holds(self, situation: Situation, *, gated: bool, now: float) -> bool:
        """Whether it says enough of another situation. That objectives cannot be kept is found anew in each window."""
        asked_for = (self.situation.objectives, self.situation.envelope, self.gated)
        return (
            not self.found.reachable
            and 0.0 <= now - self.at < FOUND_SECONDS - 0.5
            and asked_for == (situation.objectives, situation.envelope, gated)
            and all(abs(b - a) <= MOVED * a for a, b in zip(_mix(self.situation), _mix(situation), strict=True))
            and difference(self.situation.model, situation.model) <= MOVED
        )


#: What of a spec decides what is carried: objectives, bounds, and whether requests are refused.
Asked = tuple[tuple[Objective, ...], Envelope, bool, int]


def asked(spec: TuningSpec) -> Asked:
    """What of a spec decides what is carried."""
    return spec.objectives, spec.envelope, spec.refuses, spec.stages


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The load of a service against what its engines carry, over the last minutes; bounded.

    `rate`: what one replica carries, and `arrivals` of the service, in requests per second, refused ones too; both are
    smoothed. `shown_rate` and `shown_arrivals` are the same for people, moved only when they are no longer right.
    `failing`: windows in a row in which even an idle engine could not keep the objectives. `advised`: replicas.
    `roomy`: most of what a fall of that would have needed since `fewer_since`. `short`: more would be needed. `unseen`:
    pods that are Ready and not scraped, whose load is in none of this.
    """

    asked: Asked
    since: float
    at: float
    carried: Carried
    arrivals: float
    replicas: int
    rate: float
    shown_rate: float
    shown_arrivals: float
    failing: int = 0
    overloaded: bool = False
    advised: int = 1
    fewer_since: float = math.inf
    roomy: int = 1
    short: bool = False
    unseen: int = 0

    @property
    def settled(self) -> bool:
        """Whether a minute was seen: before, chance says too much."""
        return self.at - self.since >= MEMORY_SECONDS - 0.5

    @property
    def capacity(self) -> float:
        """Requests per second that all replicas carry, as shown."""
        return self.replicas * self.shown_rate


def searched(before: Search | None, situation: Situation, *, gated: bool, now: float) -> Search:
    """What one core carries, as it was found last where that still holds: the search is dear, the load is not in it."""
    if before is not None and before.holds(situation, gated=gated, now=now):
        return before
    near = before.found.rate if before is not None else 0.0
    return Search(at=now, situation=situation, gated=gated, found=carried(situation, gated=gated, near=near))


def _mix(situation: Situation) -> tuple[float, ...]:
    """What a core carries depends on this, besides what is asked and the model. Of memory little comes, and slowly."""
    demand, margins = situation.demand, situation.margins
    lengths = (demand.prompt, demand.uncached, demand.output, demand.attention)
    return (*lengths, demand.drafted, demand.made, margins.token, margins.first_token)


def carried(situation: Situation, *, gated: bool, near: float = 0.0) -> Carried:
    """What one core carries of the present mix; `situation` needs objectives. `gated`: requests are refused.

    `near`: requests per second that it is expected to be, as it was the last time: the search begins there.
    """
    kept: dict[float, _Held] = {}

    def keeps(rate: float) -> bool:
        held = _Held.at(situation, rate, gated=gated)
        if held.kept:
            kept[rate] = held
        return held.kept

    low = near or max(situation.demand.arrivals, EXACT)
    step = EXACT * near or low
    if keeps(low):
        high = low + step
        while high < FASTEST and keeps(high):
            step *= 2
            low, high = high, high + step
    else:
        low, high = max(0.0, low - step), low
        while low > 0 and not keeps(low):
            step *= 2
            low, high = max(0.0, low - step), low
    if low == 0.0 and not keeps(low):
        return Carried(rate=0.0, reachable=_reachable(situation, gated=gated))
    while high - low > EXACT * high:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return Carried(rate=low, binding=kept[low].binding)


@dataclass(frozen=True)
class _Held:
    """Whether every objective is kept at a rate, and the one nearest to its threshold."""

    kept: bool
    binding: str = ""

    @classmethod
    def at(cls, situation: Situation, arrivals: float, *, gated: bool) -> _Held:
        steady = _steady(situation, arrivals)
        calm = _chosen(steady, gated=gated)
        if calm.predicted.capacity < arrivals or steady.demand.running > calm.seqs:
            return cls(False)
        waiting = TAIL * mean_backlog(steady.demand, calm.predicted.rate)
        # Without a gate a queue by chance sets off a drain, which costs token objectives: it must end with that queue.
        tail = replace(steady, demand=replace(steady.demand, waiting=waiting), draining=not gated)
        choice = _chosen(tail, gated=gated)
        uses = {o.name: _most_use(o, choice.predicted, tail) for o in situation.objectives}
        binding = max(uses, key=uses.__getitem__)
        return cls(uses[binding] <= 1.0 and choice.regime is not Regime.DRAINING, binding)


def _chosen(situation: Situation, *, gated: bool) -> Choice:
    return choose_gated(situation) if gated else choose(situation)


def _thresholds(margins: Margins) -> Margins:
    """Token objectives at their margin, first tokens at the threshold: their tail is predicted."""
    return replace(margins, first_token=1.0)


def _most_use(objective: Objective, predicted: Prediction, steady: Situation) -> float:
    """Share of what an objective allows that is used: by what is predicted, or by the mean step of the batch."""
    at_threshold = replace(steady, margins=_thresholds(steady.margins))
    budget = token_budget(objective, at_threshold)
    mean = 0.0 if budget is None else steady.balanced_step(steady.demand.running) / budget
    return max(mean, use(objective, predicted, at_threshold.margins))


def _steady(situation: Situation, arrivals: float) -> Situation:
    """The same mix at another rate, with nobody waiting and the batch that the rate implies."""
    running = _batch(situation, arrivals)
    demand: Demand = replace(situation.demand, arrivals=arrivals, waiting=0.0, running=running, decodes=running)
    return replace(situation, demand=demand, draining=False)


def _batch(situation: Situation, arrivals: float) -> float:
    """Decodes in the mean: Little's law, arrivals · output · a token's time; endless past what is sustained."""
    tokens, decodes = arrivals * situation.demand.output, 0.0
    for _ in range(100):
        more = tokens * situation.token_seconds(decodes)
        if more > _ENDLESS:
            break
        if more - decodes <= EXACT * more:
            return more
        decodes = more
    return _ENDLESS


def _reachable(situation: Situation, *, gated: bool) -> tuple[tuple[str, float], ...]:
    """The thresholds that an idle engine can keep in place of those that it cannot, together with the others.

    First those of the limits that come nearest to all objectives. Behind a gate each step is held to its time, which
    leaves first tokens less: then these are loosened until the law keeps them.
    """
    idle, margins = _steady(situation, 0.0), _thresholds(situation.margins)
    points = [{o.name: use(o, point.predicted, margins) for o in situation.objectives} for point in grid_points(idle)]
    nearest = min(points, key=lambda uses: max(uses.values()))
    failing = {name: share for name, share in nearest.items() if share > 1.0}
    failing = failing or {max(nearest, key=nearest.__getitem__): 1.0}
    for by in (LOOSENED**number for number in range(100)):
        held = tuple(replace(o, seconds=o.seconds * by * failing.get(o.name, 1.0 / by)) for o in situation.objectives)
        if _Held.at(replace(situation, objectives=held), 0.0, gated=gated).kept:
            break
    return tuple((o.name, o.seconds) for o in held if o.name in failing)


def due(before: Balance | None, spec: TuningSpec, now: float) -> bool:
    """Whether the load is to be weighed again."""
    return before is None or before.asked != asked(spec) or not 0.0 <= now - before.at < WEIGHED_SECONDS - 0.5


def weighed(  # noqa: PLR0913 - figures of one window, all by name
    before: Balance | None,
    found: Carried,
    *,
    arrivals: float,
    cores: int,
    pods: int,
    spec: TuningSpec,
    now: float,
    advised: int | None = None,
    unseen: int = 0,
) -> Balance:
    """The balance with what was found of one core; `arrivals`, `cores` and `pods` are those of the whole service.

    `advised`: what was advised last, if no balance tells.
    """
    replicas = max(1, pods)
    rate = found.rate * cores / replicas
    if before is None or before.asked != asked(spec) or now < before.at:
        last = before.advised if before is not None else advised
        return Balance(
            asked=asked(spec),
            since=now,
            at=now,
            carried=found,
            failing=1 if found.reachable else 0,
            arrivals=arrivals,
            replicas=replicas,
            rate=rate,
            shown_rate=rate,
            shown_arrivals=arrivals,
            overloaded=arrivals > replicas * rate,
            advised=last or replicas + unseen,
            unseen=unseen,
        )
    share = -math.expm1(-(now - before.at) / MEMORY_SECONDS)
    arrivals = before.arrivals + share * (arrivals - before.arrivals)
    failing = before.failing + 1 if found.reachable else 0
    # A window of long prompts by chance is no verdict on the objectives, and nothing to take a mean with.
    if found.reachable:
        found, rate = (before.carried, before.rate) if failing < FAILING_WINDOWS else (found, 0.0)
    elif before.rate > 0.0:
        rate = before.rate + share * (rate - before.rate)
    over = arrivals > replicas * rate * (RELIEVED if before.overloaded else 1.0)
    # Figures that were right within a tenth may not say why it turned.
    turned = over != before.overloaded
    moved = replace(
        before,
        at=now,
        carried=found,
        failing=failing,
        arrivals=arrivals,
        replicas=replicas,
        rate=rate,
        shown_rate=rate if turned else _shown(before.shown_rate, rate),
        shown_arrivals=arrivals if turned else _shown(before.shown_arrivals, arrivals),
        overloaded=over,
        unseen=unseen,
    )
    return _advised(moved)


def _advised(balance: Balance) -> Balance:
    """The advice: up at once, down when fewer would have carried the load with room for all of some minutes.

    Never down while some pods are not seen: half of a load may be that of half of the pods. What one window says, the
    first after a start or an edit, is no advice to a scaler.
    """
    if balance.rate <= 0.0 or not balance.settled:
        return replace(balance, fewer_since=math.inf, short=False)
    most = min(MOST_REPLICAS, MOST_GROWTH * (balance.replicas + balance.unseen))
    asked_for = _needed(balance.arrivals, balance.rate)
    needed, roomy = min(most, asked_for), _needed(SPARE * balance.arrivals, balance.rate)
    balance = replace(balance, short=asked_for > max(needed, balance.advised))
    if balance.unseen or needed > balance.advised or roomy >= balance.advised:
        return replace(balance, advised=max(needed, balance.advised), fewer_since=math.inf)
    if balance.fewer_since > balance.at:
        return replace(balance, fewer_since=balance.at, roomy=roomy)
    roomy = max(roomy, balance.roomy)
    if balance.at - balance.fewer_since < FEWER_SECONDS - 0.5:
        return replace(balance, roomy=roomy)
    return replace(balance, advised=roomy, fewer_since=math.inf)


def _needed(arrivals: float, rate: float) -> int:
    """Replicas that carry so many arrivals; one where none would."""
    return max(1, math.ceil(min(arrivals / rate, MOST_REPLICAS + 1.0))) if rate > 0.0 else 1


def _shown(before: float, now: float) -> float:
    return before if abs(now - before) <= SHOWN_WITHIN * before else now
