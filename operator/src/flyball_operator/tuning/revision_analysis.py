"""Whether a new revision keeps the objectives that the earlier one keeps, by what came of the requests of their pods.

The new revision runs on a share of the pods behind the same Service (`reconcile.plan.revision_analysis`), so both have
the same load. What is compared is the share of requests that met each objective since its pods were Ready, and the
share that ended without an error: those that end with one are counted by no objective. A request that is late misses at
once, while it waits: behind those that are on time it may wait for longer than the judgement takes. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.contract import Metric
from flyball_engine.figures import format_duration
from flyball_operator.api.v1alpha1 import AnalysisPhase
from flyball_operator.tuning.observe.signals import ObjectiveCounts, PodOutcomes, Unobserved
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.spec import LatencyObjective

#: Standard errors to each side of the interval around the new revision's share, at looks before the end and at the last
#: one: the rule of Haybittle and Peto, for 95 %. With 1.96 at each of the 40 looks of 10 min, 10 to 25 % of revisions
#: that just keep a target would be aborted before the end; with 3 it is 1 to 6 % (simulated).
INTERIM_ERRORS: Final = 3.0
FINAL_ERRORS: Final = 1.96
#: Requests of the new revision below which nothing is said of an objective: its first ones find no cached prefix.
LEAST_REQUESTS: Final = 50
#: Errors of the new revision that are taken for chance. Near a share of 1 Wilson's interval is too narrow: beside 100
#: earlier pods, one error among the first 80 requests would abort a revision that has one in 1,000, as they have. With
#: this, under 2 % of revisions that are as good are aborted in 40 looks of 10 min (simulated).
CHANCE_ERRORS: Final = 1
#: Gaps between tokens that count as one request. Those of an answer, some hundred, are late together.
GAPS_PER_REQUEST: Final = 100
_MOST_NAMED: Final = 3


@dataclass(frozen=True)
class Verdict:
    """What is known of the new revision."""

    phase: AnalysisPhase
    message: str


@dataclass(frozen=True)
class Compared:
    """Pods of both revisions by name, and since when (Unix seconds) as many new ones as are judged are Ready.

    `since`: None while they are not.
    """

    new: frozenset[str]
    earlier: frozenset[str]
    since: float | None


def compared(pods: Sequence[EnginePod], revision: str, baseline: str, count: int) -> Compared:
    """The pods that are compared. `count`: so many run the new revision while it is judged."""
    ready = sorted(
        (pod.ready_since, pod.name) for pod in pods if pod.spec_hash == revision and pod.ready_since is not None
    )
    earlier = frozenset(pod.name for pod in pods if pod.spec_hash == baseline)
    since = ready[count - 1][0] if 0 < count <= len(ready) else None
    return Compared(frozenset(name for _, name in ready), earlier, since)


def judge(
    pods: Compared,
    outcomes: PodOutcomes | Unobserved,
    objectives: Sequence[LatencyObjective],
    *,
    passed: float,
    duration: float,
) -> Verdict:
    """What the requests so far say. `passed`: seconds since `Compared.since`; `duration`: how long it is judged."""
    if isinstance(outcomes, Unobserved):
        return _held(f"{outcomes.reason.value}: {outcomes.detail}")
    if unseen := _unseen(pods, outcomes):
        return _held(f"Prometheus has no series of {unseen}")
    shares = [
        _Shares(objective, _sum(outcomes, pods.new, objective.id), _sum(outcomes, pods.earlier, objective.id))
        for objective in objectives
    ]
    errors = _ErrorShares(_requests(outcomes, pods.new), _requests(outcomes, pods.earlier))
    said: list[_Shares | _ErrorShares] = [*shares, errors]
    over = passed >= duration
    sure = FINAL_ERRORS if over else INTERIM_ERRORS
    faults = []
    if missed := [one for one in shares if one.misses(sure)]:
        faults.append(f"the new revision missed {_listed(missed)}")
    if errors.are_more(sure):
        faults.append(f"more requests to the new revision end with an error: {errors}")
    if faults:
        advice = (
            "compare the logs and metrics of pods of both revisions, or remove spec.rollout.canary to roll it out all"
            " the same"
        )
        return Verdict(AnalysisPhase.FAILED, "; ".join([*faults, advice]))
    ratio = len(pods.new) / len(pods.earlier & outcomes.keys())
    if over and (behind := [one for one in shares if one.is_behind(ratio)]):
        return _held(f"too few of its requests have finished, by what each earlier pod has: {_listed(behind)}")
    if over:
        return Verdict(AnalysisPhase.SUCCESSFUL, f"{_passed(shares)}: {_listed(said)}")
    left = format_duration(math.ceil(duration - passed))
    has = "1 pod has" if len(pods.new) == 1 else f"{len(pods.new)} pods have"
    return Verdict(AnalysisPhase.RUNNING, f"{has} the new revision, judged for {left} more: {_listed(said)}")


def _unseen(pods: Compared, outcomes: PodOutcomes) -> str:
    """Pods without which nothing can be said; empty where there are none."""
    if missing := sorted(pods.new - outcomes.keys()):
        return ", ".join(missing[:_MOST_NAMED])
    return "" if pods.earlier & outcomes.keys() else "the earlier pods"


def _passed(shares: Sequence[_Shares]) -> str:
    if any(one.known for one in shares):
        return "the new revision misses no objective that the earlier one keeps"
    return f"nothing speaks against the new revision, which had fewer than {LEAST_REQUESTS} requests for each objective"


def wilson_upper(met: float, total: float, errors: float) -> float:
    """The upper end of Wilson's interval around a share, `errors` standard errors wide to each side.

    Wilson (1927), Probable inference, the law of succession, and statistical inference. It holds for small counts and
    shares near 1, where the usual interval does not.
    """
    if total <= 0:
        return 1.0
    share, square = met / total, errors * errors
    middle = share + square / (2 * total)
    half = errors * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return min(1.0, (middle + half) / (1 + square / total))


def wilson_lower(met: float, total: float, errors: float) -> float:
    """The lower end of the same interval."""
    return 1.0 - wilson_upper(total - met, total, errors)


@dataclass(frozen=True)
class _ErrorShares:
    """Requests that ended without an error (`met`), and with one, at both revisions."""

    new: ObjectiveCounts
    earlier: ObjectiveCounts

    def are_more(self, errors: float) -> bool:
        """Whether surely a smaller share ends without an error at the new revision."""
        met = min(self.new.total, self.new.met + CHANCE_ERRORS)
        earlier = wilson_lower(self.earlier.met, self.earlier.total, errors)
        return wilson_upper(met, self.new.total, errors) < earlier

    def __str__(self) -> str:
        return f"without an error {_share(self.new, 'requests')}, earlier {_share(self.earlier, 'requests')}"


@dataclass(frozen=True)
class _Shares:
    """What came of requests by one objective, at both revisions."""

    objective: LatencyObjective
    new: ObjectiveCounts
    earlier: ObjectiveCounts

    @property
    def target(self) -> float:
        return 1.0 - self.objective.allowed

    @property
    def known(self) -> bool:
        """Whether there is enough to judge by."""
        return self._requests(self.new) >= LEAST_REQUESTS

    def misses(self, errors: float) -> bool:
        """Whether the new revision is surely below the target, and the earlier one is not."""
        upper = wilson_upper(self.new.met * self._weight, self._requests(self.new), errors)
        return self.known and upper < self.target and self._kept_earlier

    def is_behind(self, ratio: float) -> bool:
        """Whether it has too few to judge by, and twice enough had each pod finished what an earlier one has.

        A revision that is so slow would be promoted for it. `ratio`: new pods by earlier ones.
        """
        return not self.known and self._requests(self.earlier) * ratio >= 2 * LEAST_REQUESTS

    @property
    def _kept_earlier(self) -> bool:
        return self.earlier.total >= 1 and self.earlier.met / self.earlier.total >= self.target

    @property
    def _weight(self) -> float:
        return 1 / GAPS_PER_REQUEST if self.objective.metric is Metric.INTER_TOKEN_LATENCY else 1.0

    def _requests(self, counts: ObjectiveCounts) -> float:
        return counts.total * self._weight

    def __str__(self) -> str:
        what = "gaps" if self.objective.metric is Metric.INTER_TOKEN_LATENCY else "requests"
        target = f"{100 * self.target:.6g} %"
        return (
            f"{self.objective.name} ({target} wanted): {_share(self.new, what)}, earlier {_share(self.earlier, what)}"
        )


def _share(counts: ObjectiveCounts, what: str) -> str:
    if counts.total < 1:
        return f"no {what}"
    return f"{100 * counts.met / counts.total:.2f} % of {counts.total:.0f} {what}"


def _listed(shares: Iterable[_Shares | _ErrorShares]) -> str:
    return "; ".join(map(str, shares))


def _sum(outcomes: PodOutcomes, pods: Collection[str], objective: str) -> ObjectiveCounts:
    found = [one for pod in pods if pod in outcomes and (one := outcomes[pod].objectives.get(objective)) is not None]
    return ObjectiveCounts(sum(one.met for one in found), sum(one.violated for one in found))


def _requests(outcomes: PodOutcomes, pods: Collection[str]) -> ObjectiveCounts:
    found = [outcomes[pod] for pod in pods if pod in outcomes]
    return ObjectiveCounts(sum(one.answered for one in found), sum(one.failed for one in found))


def _held(why: str) -> Verdict:
    held = "no more pods are replaced before each has been Ready for spec.rollout.canary.duration plus startupTimeout"
    return Verdict(AnalysisPhase.INCONCLUSIVE, f"the new revision cannot be judged ({why}); {held}")
