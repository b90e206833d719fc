"""Capacity: what engines carry at the objectives, and how many of them the load needs.

What one core carries is the rate of arrivals of the largest batch at which the law's own prediction keeps every
objective, with the lengths of now. Of the wait behind other prompts the prediction has only the mean. So a rate is
judged with the queue that one request in a hundred meets: that tail is the headroom, and there is no other. First
tokens are held to the threshold itself, since the margin stands for that same scatter.

The number of replicas is advice: nothing here scales. Pure; seconds, tokens and requests per second, Unix seconds where
a time is meant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from flyball_operator.governor.law import choose
from flyball_operator.governor.long_steps import step_budget
from flyball_operator.governor.predict import largest, predict, steady, use
from flyball_operator.governor.situation import Choice, Situation
from flyball_operator.governor.spec import Envelope, Objective, TuningSpec

#: Of a queue by chance, one request in a hundred meets so many times the mean.
TAIL: Final = 3.0
#: Thresholds that cannot be kept are doubled so often at most.
DOUBLINGS: Final = 20.0
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


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What one core carries: requests per second, and the objective nearest to its threshold there.

    `reachable`: where the objectives cannot be kept even by an idle engine, those that fail, and the thresholds in
    seconds that together with the other objectives can be.
    """

    rate: float
    binding: str = ""
    reachable: tuple[tuple[str, float], ...] = ()


#: What of a spec decides what is carried: objectives, bounds and stages.
Asked = tuple[tuple[Objective, ...], Envelope, int]


def asked(spec: TuningSpec) -> Asked:
    """What of a spec decides what is carried."""
    return spec.objectives, spec.envelope, spec.stages


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


def carried(situation: Situation) -> Carried:
    """What one core carries of the present mix; `situation` needs objectives."""
    # Batch and mean budget are the same at any load.
    choice = choose(steady(situation, 0.0))

    def keeps(decodes: float) -> bool:
        return max(_uses(situation, choice, decodes).values()) <= 1.0

    idle = _uses(situation, choice, 0.0)
    if max(idle.values()) > 1.0:
        return Carried(rate=0.0, reachable=_reachable(situation, idle))
    decodes = largest(choice.seqs, keeps)
    uses = _uses(situation, choice, decodes)
    return Carried(rate=situation.arrivals_of(decodes), binding=max(uses, key=uses.__getitem__))


def _uses(situation: Situation, choice: Choice, decodes: float) -> dict[str, float]:
    """Share of each objective that is used where so many decodes run in the mean; infinite where the law gives it up.

    Token objectives are held to their margin, first tokens to the threshold: their tail is predicted.
    """
    here, margins = steady(situation, decodes), replace(situation.margins, first_token=1.0)
    budget, seqs = choice.budget, choice.seqs
    if budget is not None:
        held = tuple(objective for objective in situation.objectives if objective.name not in choice.given_up)
        mean, _ = replace(situation, objectives=held).mean_budget
        budget = None if mean is None else step_budget(here, seqs, mean)
    predicted = predict(here, seqs, budget, tail=TAIL)
    uses = {o.name: use(o, predicted, margins) for o in situation.objectives}
    # Its steps are held to their time, so what is not kept there is the mean of steps that carry all prompts.
    for objective in situation.objectives:
        mean = here.token_budget(objective)
        if mean is not None:
            uses[objective.name] = max(uses[objective.name], here.balanced_step(decodes) / mean)
    return uses | dict.fromkeys(choice.given_up, math.inf)


def _reachable(situation: Situation, idle: dict[str, float]) -> tuple[tuple[str, float], ...]:
    """The thresholds that an idle engine can keep in place of those that it cannot, together with the others.

    What the law gives up for the others is loosened only where loosening these does not help.
    """
    over = {name for name, share in idle.items() if share > 1.0}

    def loosened(names: set[str], doublings: float) -> tuple[Objective, ...]:
        by = 2.0**doublings
        return tuple(replace(o, seconds=o.seconds * by) if o.name in names else o for o in situation.objectives)

    def fails(names: set[str], doublings: float) -> bool:
        held = replace(situation, objectives=loosened(names, doublings))
        return max(_uses(held, choose(steady(held, 0.0)), 0.0).values()) > 1.0

    finite = {name for name in over if math.isfinite(idle[name])}
    names = finite if finite and not fails(finite, DOUBLINGS) else over
    doublings = largest(DOUBLINGS, lambda number: fails(names, number))
    return tuple((o.name, o.seconds) for o in loosened(names, doublings) if o.name in names)


def due(before: Balance | None, spec: TuningSpec, now: float) -> bool:
    """Whether the load is to be weighed again."""
    return before is None or before.asked != asked(spec) or not 0.0 <= now - before.at < WEIGHED_SECONDS - 0.5


def weighed(  # noqa: PLR0913 - figures of one window, all by name
    before: Balance | None,
    found: Carried,
    *,
    arrivals: float,
    cores: float,
    pods: int,
    spec: TuningSpec,
    now: float,
    advised: int | None = None,
    unseen: int = 0,
) -> Balance:
    """The balance with what was found of one core; `arrivals`, `cores` and `pods` are those of the whole service.

    Where cores are loaded unevenly, `cores` are as many as would carry evenly what they do until the fullest is full.
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
