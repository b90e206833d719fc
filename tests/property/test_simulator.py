"""The simulated engine: jumping over a stretch is stepping through it, and nothing is ever lost or made twice."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import Phase as Part
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_engine.contract import Metric, ObjectiveSpec, OnTime, SchedulingPolicy, Shed, StepKind
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.core_config import Speculation
from flyball_lab.simulator.lengths import Lognormal, Shape
from flyball_lab.simulator.plant import CALM, Disturbances
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.virtual import SimulationResult, TimedAct, crash, retune, run, slow_down
from flyball_lab.simulator.workload import ArrivalPhase, workload
from support.simulated import a_budget, a_core, a_setpoint

SECONDS = 60.0
OBJECTIVES = (
    ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5),
    ObjectiveSpec(metric=Metric.TIME_PER_OUTPUT_TOKEN, threshold_seconds=0.02),
    ObjectiveSpec(metric=Metric.INTER_TOKEN_LATENCY, threshold_seconds=0.01130051),
)


@dataclass(frozen=True)
class Story:
    """A load on a core of some size, and what happens to it."""

    seed: int
    rate: float
    output: int
    seqs: int
    kv_tokens: int
    patience: float
    shared: int
    policy: SchedulingPolicy
    speculation: Speculation | None
    active: int
    tokens: int
    threshold: int
    crashes: bool
    budget: float | None
    on_time: OnTime | None

    def requests(self) -> list[Request]:
        random = Random(self.seed)
        shape = Shape(
            Lognormal(median=150, sigma=1.0, most=1000),
            Lognormal(median=self.output, sigma=0.8, most=1000),
            shared=self.shared,
            prefixes=3 if self.shared else 0,
        )
        found = workload([ArrivalPhase(seconds=SECONDS, rate=self.rate, shape=shape, patience=self.patience)], random)
        for request in found:
            request.priority = random.randrange(3)
        return found

    def events(self) -> list[TimedAct]:
        step = a_budget(self.budget) if self.budget else None
        found = [
            retune(5.03, a_setpoint(1, objectives=OBJECTIVES)),
            retune(
                17.7,
                a_setpoint(
                    2,
                    active=self.active,
                    tokens=self.tokens,
                    threshold=self.threshold,
                    objectives=OBJECTIVES,
                    step=step,
                    shed=Shed(ttft_deadline_seconds=1.0) if self.crashes else None,
                    on_time=self.on_time,
                    expires=60,
                ),
            ),
            slow_down(31.1, 1.7),
        ]
        return [*found, crash(40.4, start_seconds=3.0)] if self.crashes else found

    def play(self, *, jumps: bool, disturbances: Disturbances = CALM) -> tuple[Core, SimulationResult]:
        core = a_core(
            seqs=self.seqs,
            tokens=128,
            kv_tokens=self.kv_tokens,
            model_len=2000,
            policy=self.policy,
            speculation=self.speculation,
            disturbances=disturbances,
            jumps=jumps,
            seed=self.seed,
        )
        return core, run(core, self.requests(), until=60 * SECONDS, events=self.events())


stories = st.builds(
    Story,
    seed=st.integers(0, 2**20),
    rate=st.sampled_from([0.2, 1.0, 3.0]),
    output=st.sampled_from([1, 20, 200]),
    seqs=st.sampled_from([1, 4, 16]),
    kv_tokens=st.sampled_from([2000, 3000, 65_536]),
    patience=st.sampled_from([0.3, 2.0, float("inf")]),
    shared=st.sampled_from([0, 0, 40, 96]),
    policy=st.sampled_from(SchedulingPolicy),
    speculation=st.sampled_from([None, None, Speculation(drafts=3, acceptance=0.6)]),
    active=st.integers(1, 16),
    tokens=st.integers(1, 200),
    threshold=st.sampled_from([0, 1, 32, 100]),
    crashes=st.booleans(),
    budget=st.sampled_from([None, 0.02, 0.05]),
    on_time=st.sampled_from([None, OnTime(first_token_deadline_seconds=1.0)]),
)


def close_to(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@settings(max_examples=20, phases=[Part.generate])
@given(stories)
def test_jumping_over_a_stretch_is_stepping_through_it(story: Story) -> None:
    (leaper, jumped), (walker, stepped) = story.play(jumps=True), story.play(jumps=False)
    assert leaper.scheduler.steps == walker.scheduler.steps
    assert jumped.counts == stepped.counts
    assert jumped.preemptions == stepped.preemptions
    for one, other in zip(jumped.requests, stepped.requests, strict=True):
        assert (one.fate, one.made, one.cached) == (other.fate, other.made, other.cached)
        assert one.ended == close_to(other.ended)
        assert (one.first_token is None) == (other.first_token is None)
        assert (one.first_token or 0.0) == close_to(other.first_token or 0.0)
    assert [(sums.bucket, sums.kind) for sums in jumped.steps] == [(sums.bucket, sums.kind) for sums in stepped.steps]
    for one_bucket, other_bucket in zip(jumped.steps, stepped.steps, strict=True):
        for (_, value), (_, expected) in zip(one_bucket, other_bucket, strict=True):
            assert value == (close_to(expected) if isinstance(expected, float) else expected)
    assert leaper.statistics.longest_seconds == close_to(walker.statistics.longest_seconds)
    assert leaper.batches.sums == pytest.approx(walker.batches.sums, rel=1e-9, abs=1e-9)


@settings(max_examples=20, phases=[Part.generate])
@given(stories)
def test_every_request_has_an_end_and_leaves_nothing_behind(story: Story) -> None:
    core, played = story.play(jumps=True, disturbances=Disturbances())
    assert not core.scheduler.running
    assert len(core.scheduler.waiting) == 0
    assert core.scheduler.used_blocks() == 0
    assert core.scheduler.held_tokens() == 0
    for request in played.requests:
        assert request.fate is not Fate.OPEN
        if request.fate is Fate.FINISHED:
            assert request.made == request.output
            assert request.first_token is not None
            assert request.arrival < request.first_token <= request.ended
    expect_batches_of(core, played)
    outcomes = played.counts.requests
    assert sum(outcomes.values()) == len(played.requests)
    assert outcomes["finished"] == sum(request.fate is Fate.FINISHED for request in played.requests)


def expect_batches_of(core: Core, played: SimulationResult) -> None:
    """What was counted of batches is what the requests and the steps say, drafts apart."""
    counts, requests = played.batches, played.requests
    ran = [request for request in requests if request.cached is not None]
    assert counts.admitted == counts.cohort_requests == len(ran)
    # Who is refused when he comes has no number; who is refused later has left the queue.
    queued = [request for request in requests if request.number]
    assert counts.left == len(queued) - len(ran)
    assert counts.preemptions == played.preemptions
    assert counts.cohort_prompts == sum(request.prompt for request in ran)
    assert counts.cohort_outputs == sum(request.made for request in ran)
    assert counts.prefill_tokens == sum(sums.prefill_tokens for sums in played.steps)
    assert sum(counts.steps) == sum(sums.steps for sums in played.steps)
    seconds = sum(sums.seconds for sums in played.steps)
    slots = core.governed.sizes.max_num_seqs
    assert counts.slots_used + counts.slots_free + counts.slots_withheld == close_to(slots * seconds)
    assert counts.room_used == sum(sums.tokens for sums in played.steps if sums.kind is StepKind.MIXED)
    for share in (counts.slot_utilisation, counts.token_utilisation, counts.batch_efficiency, counts.padding_ratio):
        assert share is None or 0 <= share <= 1


@settings(max_examples=20)
@given(stories, st.floats(0.5, SECONDS))
def test_the_cache_never_holds_more_than_it_can(story: Story, pause: float) -> None:
    core = a_core(seqs=story.seqs, kv_tokens=story.kv_tokens, model_len=2000, policy=story.policy, seed=story.seed)
    at = pause
    for request in story.requests():
        while at < request.arrival:
            core.run(at)
            scheduler = core.scheduler
            assert scheduler.used_blocks() + scheduler.prefixes.spare <= scheduler.capacity
            at += pause
        core.run(request.arrival)
        core.submit([request])
