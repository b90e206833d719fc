"""Capacity: what engines carry at the objectives, and how many of them the load needs.

One core carries the arrivals of the largest batch at which the law's own prediction keeps every objective, with the
lengths of now. The prediction has the mean wait behind other prompts; capacity is judged with `tail` times that on top.
That tail is the headroom, and there is no other: first tokens are held to the threshold itself.

The number of replicas is advice: nothing here scales. Pure; seconds, tokens, requests per second, Unix seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from flyball_operator.tuning.control_input import ControlInput, ControlOutput
from flyball_operator.tuning.optimise import choose, step_budget
from flyball_operator.tuning.predict import largest, predict, steady, use
from flyball_operator.tuning.spec import LatencyObjective, TuningSpec
from flyball_operator.tuning.tunables import TUNABLES

#: Thresholds that cannot be kept are doubled so often at most.
DOUBLINGS: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What one core carries: requests per second, and the objective nearest to its threshold there.

    `reachable`: the objectives that even an idle engine misses, each with the lowest threshold in seconds that it can
    meet beside the others.
    """

    rate: float
    binding: str = ""
    reachable: tuple[tuple[str, float], ...] = ()


def asked(spec: TuningSpec) -> tuple[object, ...]:
    """What of a spec decides what is carried."""
    return spec.objectives, spec.envelope, spec.stages


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The load of a service against what its engines carry, over the last minutes; bounded.

    `rate`: requests per second that one replica carries, and `arrivals` of the service, refused ones too; both are
    smoothed. `shown_rate` and `shown_arrivals`: the same for people, moved only when they are no longer right.
    `failing_since`: from when on even an idle engine could not keep the objectives. `advised`: replicas; `recent`: what
    was needed when, in the stabilisation window. `short`: more would be needed. `unseen`: Ready pods that are not
    scraped, whose load is in none of this.
    """

    asked: tuple[object, ...]
    since: float
    at: float
    carried: Carried
    arrivals: float
    replicas: int
    rate: float
    shown_rate: float
    shown_arrivals: float
    advised: int
    recent: tuple[tuple[float, int], ...] = ()
    failing_since: float = math.inf
    overloaded: bool = False
    short: bool = False
    unseen: int = 0

    @property
    def settled(self) -> bool:
        """Whether a minute was seen: before, chance says too much."""
        return self.at - self.since >= TUNABLES.memory_seconds - 0.5

    @property
    def capacity(self) -> float:
        """Requests per second that all replicas carry, as shown."""
        return self.replicas * self.shown_rate


def carried(inputs: ControlInput) -> Carried:
    """What one core carries of the present mix; `inputs` needs objectives."""
    # Batch and objectives that are given up are the same at any load.
    output = choose(steady(inputs, 0.0))
    idle = _uses(inputs, output, 0.0)
    if max(idle.values()) > 1.0:
        return Carried(rate=0.0, reachable=_reachable(inputs, idle))
    decodes = largest(output.batch, lambda decodes: max(_uses(inputs, output, decodes).values()) <= 1.0)
    uses = _uses(inputs, output, decodes)
    return Carried(rate=inputs.arrivals_of(decodes), binding=max(uses, key=uses.__getitem__))


def _uses(inputs: ControlInput, output: ControlOutput, decodes: float) -> dict[str, float]:
    """Share of each objective that is used where so many decodes run in the mean; infinite where the law gives it up.

    Token objectives are held to their margin, first tokens to the threshold: their tail is predicted.
    """
    here = steady(inputs, decodes)
    held = tuple(objective for objective in inputs.objectives if objective.name not in output.given_up)
    predicted = predict(here, output.seqs, step_budget(replace(here, objectives=held), output.seqs), tail=TUNABLES.tail)
    margins = replace(inputs.margins, first_token=1.0)
    uses = {objective.name: use(objective, predicted, margins) for objective in held}
    return uses | dict.fromkeys(output.given_up, math.inf)


def _reachable(inputs: ControlInput, idle: dict[str, float]) -> tuple[tuple[str, float], ...]:
    """The thresholds that an idle engine can keep in place of those that it cannot, together with the others.

    What the law gives up for the others is loosened only where loosening these does not help.
    """
    over = {name for name, share in idle.items() if share > 1.0}

    def loosened(names: set[str], doublings: float) -> tuple[LatencyObjective, ...]:
        by = 2.0**doublings
        return tuple(replace(o, seconds=o.seconds * by) if o.name in names else o for o in inputs.objectives)

    def fails(names: set[str], doublings: float) -> bool:
        held = replace(inputs, objectives=loosened(names, doublings))
        return max(_uses(held, choose(steady(held, 0.0)), 0.0).values()) > 1.0

    finite = {name for name in over if math.isfinite(idle[name])}
    names = finite if finite and not fails(finite, DOUBLINGS) else over
    doublings = largest(DOUBLINGS, lambda number: fails(names, number))
    return tuple((o.name, o.seconds) for o in loosened(names, doublings) if o.name in names)


def due(before: Balance | None, spec: TuningSpec, now: float) -> bool:
    """Whether the load is to be weighed again."""
    return before is None or before.asked != asked(spec) or not 0.0 <= now - before.at < TUNABLES.window_seconds - 0.5


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
    `advised`: what was advised last.
    """
    replicas = max(1, pods)
    rate = found.rate * cores / replicas
    if before is None or before.asked != asked(spec) or now < before.at:
        before = Balance(
            asked=asked(spec),
            since=now,
            at=now,
            carried=found,
            arrivals=arrivals,
            replicas=replicas,
            rate=rate,
            shown_rate=rate,
            shown_arrivals=arrivals,
            advised=advised or replicas + unseen,
        )
    share = -math.expm1(-(now - before.at) / TUNABLES.memory_seconds)
    arrivals = before.arrivals + share * (arrivals - before.arrivals)
    # A minute of long prompts by chance is no verdict on the objectives, and nothing to take a mean with.
    failing_since = min(now, before.failing_since) if found.reachable else math.inf
    if found.reachable:
        lasts = now - failing_since >= TUNABLES.memory_seconds - 0.5
        found, rate = (found, 0.0) if lasts else (before.carried, before.rate)
    elif before.rate > 0.0:
        rate = before.rate + share * (rate - before.rate)
    over = arrivals > replicas * rate * (1.0 - TUNABLES.alike if before.overloaded else 1.0)
    moved = replace(
        before,
        at=now,
        carried=found,
        arrivals=arrivals,
        replicas=replicas,
        rate=rate,
        failing_since=failing_since,
        overloaded=over,
        unseen=unseen,
    )
    shown = ((moved.shown_rate, rate), (moved.shown_arrivals, arrivals))
    # Figures that were right within a tenth may not say why it turned.
    if over != before.overloaded or any(abs(new - old) > TUNABLES.alike * old for old, new in shown):
        moved = replace(moved, shown_rate=rate, shown_arrivals=arrivals)
    return _advised(moved)


def _advised(balance: Balance) -> Balance:
    """The advice: up at once, down to the most that was needed, with room, in the stabilisation window.

    Never down while some pods are not seen: half of a load may be that of half of the pods. What one window says, the
    first after a start or an edit, is no advice to a scaler.
    """
    if balance.rate <= 0.0 or not balance.settled:
        return replace(balance, recent=((balance.at, balance.advised),), short=False)
    most = TUNABLES.most_growth * (balance.replicas + balance.unseen)
    load = min(balance.arrivals / balance.rate, max(most, balance.advised) + 1.0)
    needed, roomy = (max(1, math.ceil(share)) for share in (load, load / (1.0 - TUNABLES.alike)))
    kept = (one for one in balance.recent if one[0] > balance.at - TUNABLES.fewer_seconds)
    recent = (*kept, (balance.at, balance.advised if balance.unseen else roomy))
    fewer = min(balance.advised, max(count for _, count in recent))
    advised = max(fewer, min(most, needed))
    return replace(balance, advised=advised, recent=recent, short=needed > advised)
