"""Capacity: what engines carry at the objectives, and how many of them the load needs.

One core carries the arrivals of the largest batch at which the law's own prediction keeps every objective, with the
lengths of now. The prediction has the mean wait behind other prompts; capacity is judged with `tail` times that on top.
That tail is the headroom, and there is no other: first tokens are held to the threshold itself.

How many replicas that comes to is decided in `replicas.py`. Pure; seconds, tokens, requests per second, Unix seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

from flyball_operator.tuning.control_input import ControlInput, ControlOutput, Margins
from flyball_operator.tuning.optimise import choose, step_budget
from flyball_operator.tuning.predict import largest, predict, steady, use
from flyball_operator.tuning.replicas import TOLD_AFTER_SECONDS, Bounds, Replicas, decided
from flyball_operator.tuning.spec import LatencyObjective, TuningSpec
from flyball_operator.tuning.tunables import TUNABLES

#: Requests per second of which fewer are shown as none: a mean that decays never ends.
LEAST_ARRIVALS: Final = 0.001
#: Thresholds that cannot be kept are doubled so often at most.
DOUBLINGS: Final = 20


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
    return spec.objectives, spec.envelope, spec.stages, spec.prefill_only


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The load of a service against what its engines carry, over the last minutes; bounded.

    `rate`: requests per second that one replica carries, and `arrivals` of the service, refused ones too; both are
    smoothed. `latest`: the arrivals of the last window alone, and `queued`, what those that wait ask for (see
    `draining`). `queue_asked_at`: when that last asked for more replicas than there would be without it.
    `shown_rate` and `shown_arrivals`: rate and arrivals for people, moved only when they are no longer right.
    `failing_since`: from when on even an idle engine could not keep the objectives. `desired`: replicas, with what was
    needed in the stabilisation windows. `unseen`: Ready pods that are not scraped, whose load is in none of this.
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
    desired: Replicas
    latest: float = 0.0
    queued: float = 0.0
    queue_asked_at: float = -math.inf
    failing_since: float = math.inf
    overloaded: bool = False
    unseen: int = 0

    @property
    def settled(self) -> bool:
        """Whether a minute was seen: before, chance says too much."""
        return self.at - self.since >= TUNABLES.memory_seconds - 0.5

    @property
    def queue_asks(self) -> bool:
        """Whether those that wait decide the replicas, or did so in the last minute: noise says nothing."""
        return self.at - self.queue_asked_at < TOLD_AFTER_SECONDS

    @property
    def advised(self) -> int:
        """Replicas that the load needs."""
        return self.desired.replicas

    @property
    def capacity(self) -> float:
        """Requests per second that all replicas carry, as shown."""
        return self.replicas * self.shown_rate

    @property
    def reported_arrivals(self) -> float:
        """Requests per second that arrive at all replicas, as shown."""
        return self.shown_arrivals if self.shown_arrivals >= LEAST_ARRIVALS else 0.0


def carried(inputs: ControlInput) -> Carried:
    """What one core carries of the present mix; `inputs` needs objectives."""
    # Batch and objectives that are given up are the same at any load.
    output = choose(steady(inputs, 0.0))
    idle = _uses(inputs, output, 0.0)
    if max(idle.values()) > 1.0:
        return Carried(rate=0.0, reachable=_reachable(inputs, idle))
    at = cache(partial(_uses, inputs, output))
    decodes = largest(output.batch, lambda decodes: max(at(decodes).values()) <= 1.0)
    uses = at(decodes)
    return Carried(rate=inputs.arrivals_of(decodes), binding=max(uses, key=uses.__getitem__))


def _uses(inputs: ControlInput, output: ControlOutput, decodes: float) -> dict[str, float]:
    """Share of each objective that is used where so many decodes run in the mean; infinite where the law gives it up.

    Token objectives are held to their margin, first tokens to the threshold: their tail is predicted.
    """
    held = tuple(objective for objective in inputs.objectives if objective.name not in output.given_up)
    here = steady(replace(inputs, objectives=held) if output.given_up else inputs, decodes)
    predicted = predict(here, output.seqs, step_budget(here, output.seqs), tail=TUNABLES.tail)
    margins = Margins(token=inputs.margins.token, first_token=1.0)
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

    def least(names: set[str]) -> float | None:
        """The fewest doublings that help, None if none do. More may not: they let steps grow, and first tokens wait."""
        whole = next((number for number in range(1, DOUBLINGS + 1) if not fails(names, number)), None)
        return None if whole is None else whole - 1 + largest(1.0, lambda part: fails(names, whole - 1 + part))

    finite = {name for name in over if math.isfinite(idle[name])}
    names, doublings = finite, least(finite) if finite else None
    if doublings is None:
        names, doublings = over, least(over)
    doublings = DOUBLINGS if doublings is None else doublings
    return tuple((o.name, o.seconds) for o in loosened(names, doublings) if o.name in names)


def replica_rate(found: Carried, *, cores: float, pods: int) -> float:
    """Requests per second that one replica carries; `cores` are those of all `pods`."""
    return found.rate * cores / max(1, pods)


def replicas_for(arrivals: float, rate: float, spec: TuningSpec) -> float:
    """Replicas that a load needs, not rounded. Where the operator scales, a pod more is due before the last is full."""
    return (arrivals if spec.scaling is None else arrivals / (1.0 - TUNABLES.spare)) / rate


def draining(waiting: float, spec: TuningSpec) -> float:
    """Requests per second that are served besides the arrivals, so that those that wait are soon gone.

    A queue that keeps a longer deadline may last for that. Requests without a deadline wait by design: 0 where some may
    be among them.
    """
    longest = spec.longest_deadline
    return 0.0 if longest is None else waiting / max(TUNABLES.drain_seconds, longest)


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
    desired: Replicas | None = None,
    waiting: float = 0.0,
    unseen: int = 0,
) -> Balance:
    """The balance with what was found of one core; all other figures are those of the whole service.

    Where cores are loaded unevenly, `cores` are as many as would carry evenly what they do until the fullest is full.
    `desired`: what was decided last.
    """
    replicas = max(1, pods)
    rate = replica_rate(found, cores=cores, pods=pods)
    if before is None or before.asked != asked(spec) or now < before.at:
        before = Balance(
            asked=asked(spec),
            since=now,
            at=now,
            carried=found,
            arrivals=arrivals,
            latest=arrivals,
            replicas=replicas,
            rate=rate,
            shown_rate=rate,
            shown_arrivals=arrivals,
            desired=desired or Replicas(replicas=replicas + unseen),
        )
    share = -math.expm1(-(now - before.at) / TUNABLES.memory_seconds)
    queued = draining(waiting, spec)
    latest = arrivals + queued
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
        latest=latest,
        queued=queued,
        replicas=replicas,
        rate=rate,
        failing_since=failing_since,
        desired=desired or before.desired,
        overloaded=over,
        unseen=unseen,
    )
    shown = ((moved.shown_rate, rate), (moved.shown_arrivals, arrivals))
    # Figures that were right within a tenth may not say why it turned.
    if over != before.overloaded or any(abs(new - old) > TUNABLES.alike * old for old, new in shown):
        moved = replace(moved, shown_rate=rate, shown_arrivals=arrivals)
    return _decided(moved, spec)


def idle(desired: Replicas | None, bounds: Bounds, *, pods: int, unseen: int, now: float) -> Replicas:
    """The replicas where nothing arrives. Never down while some pods are not seen, nor within a minute."""
    desired = desired or Replicas(replicas=pods + unseen)
    bounds = replace(bounds, down_seconds=max(bounds.down_seconds, TUNABLES.memory_seconds))
    roomy = desired.replicas if unseen else 1
    return decided(desired, needed=1, roomy=roomy, growth=TUNABLES.most_growth * pods, bounds=bounds, now=now)


def _decided(balance: Balance, spec: TuningSpec) -> Balance:
    """The replicas that the load needs.

    Never down while some pods are not seen: half of a load may be that of half of the pods. What one window says, the
    first after a start or an edit, decides nothing. What the replicas carry is no verdict where nothing can be carried.
    """
    bounds, desired = spec.scaling or Bounds(), balance.desired
    if balance.rate <= 0.0 or not balance.settled:
        # What was needed before holds while a minute is seen, but not where nothing is known for longer.
        known = desired if balance.rate > 0.0 else desired.forgotten()
        return replace(balance, desired=known.moved(bounds.clip(known.replicas), balance.at))
    growth = TUNABLES.most_growth * (balance.replicas + balance.unseen)
    # Where the operator scales a burst counts as it comes, with the queue that it leaves, and its pods stay for the
    # down window. Room beyond them is for the mean alone: the most of some twenty windows is far above it by chance.
    coming = balance.arrivals if spec.scaling is None else balance.latest
    queued = 0.0 if spec.scaling is None else balance.queued
    believed = max(growth, desired.replicas) + 1.0
    load, alone, lasting = (
        min(replicas_for(arrivals, balance.rate, spec), believed)
        for arrivals in (coming, coming - queued, balance.arrivals)
    )
    needed, unqueued, roomy = (max(1, math.ceil(share)) for share in (load, alone, lasting / (1.0 - TUNABLES.alike)))
    if balance.unseen:
        roomy = max(roomy, desired.replicas)
    desired = decided(desired, needed=needed, roomy=roomy, growth=growth, bounds=bounds, now=balance.at)
    asked_at = balance.at if needed > unqueued and needed >= desired.replicas else balance.queue_asked_at
    return replace(balance, desired=desired, queue_asked_at=asked_at)
