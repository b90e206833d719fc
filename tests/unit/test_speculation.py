"""How deep is drafted: what drafts bring is counted by position, and the batch decides what of it pays."""

from __future__ import annotations

from dataclasses import replace

from flyball_engine.batching.draft_statistics import (
    PROBE_SECONDS,
    DraftStatistics,
    draft_positions,
)
from flyball_engine.batching.setpoint_enforcer import RequestedLimits, RunningBatch, SetpointEnforcer, Sizes
from flyball_engine.contract import MOST_DRAFTS, Limits
from flyball_lab.harness.engine import setpoint
from flyball_lab.harness.tuning import GAP, TPOT, TTFT, inputs, workload
from flyball_operator.tuning.control_input import ControlInput, margins, scattered
from flyball_operator.tuning.estimate.workload import Recent, WorkloadEstimator
from flyball_operator.tuning.filters.filters import restrained
from flyball_operator.tuning.observe.signals import DraftSums, RequestLoad, StepWindow
from flyball_operator.tuning.policy import clipped, depth_given, replace_depth
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span
from flyball_operator.tuning.speculation import DraftShare, at_depth, best_depth, depths

#: Each draft is accepted in seven, or two, of ten cases where those before it were.
GOOD = tuple(DraftShare(1.0, 0.7**position) for position in (1, 2, 3))
POOR = tuple(DraftShare(1.0, 0.2**position) for position in (1, 2, 3))
WIDE = Envelope(Span(4, 128), Span(128, 2048), drafts=3)


def chosen(drafts: tuple[DraftShare, ...], decodes: float, *objectives: LatencyObjective, present: int = 3) -> int:
    def at(depth: int) -> ControlInput:
        load = at_depth(workload(decodes=decodes), drafts, depth)
        here = replace(inputs(*objectives, envelope=WIDE), workload=load)
        return replace(here, margins=scattered(margins(), objectives, load))

    return best_depth(at, depths(drafts, 3), present)


class TestWhatPays:
    def test_one_request_has_all_drafts_that_are_accepted(self) -> None:
        assert chosen(GOOD, 1.0, TPOT, present=0) == 3

    def test_the_larger_the_batch_the_fewer_drafts(self) -> None:
        found = [chosen(POOR, decodes, TPOT, present=0) for decodes in (1.0, 8.0, 32.0, 128.0)]
        assert found == sorted(found, reverse=True)
        assert found[0] > found[-1] == 0

    def test_drafts_that_are_never_accepted_are_not_made(self) -> None:
        assert chosen((DraftShare(1.0, 0.0),) * 3, 4.0, TTFT) == 0

    def test_steps_that_would_be_longer_than_a_gap_may_be_draft_less(self) -> None:
        step = inputs(envelope=WIDE)
        short = replace(step, workload=at_depth(workload(decodes=64.0), GOOD, 0)).balanced_step(64.0)
        tight = replace(GAP, seconds=1.01 * short / (0.92 * 0.85))
        assert chosen(GOOD, 64.0, tight) < chosen(GOOD, 64.0)

    def test_the_present_depth_stays_where_another_is_hardly_better(self) -> None:
        alike = (DraftShare(1.0, 0.5), DraftShare(0.0, 0.0), DraftShare(0.0, 0.0))
        assert [chosen(alike, 4.0, TPOT, present=depth) for depth in (1, 2, 3)] == [1, 2, 3]

    def test_of_depths_that_were_never_seen_nothing_is_chosen(self) -> None:
        assert not depths((), 3)
        assert list(depths(GOOD[:1], 3)) == [0, 1]
        assert list(depths(GOOD, 2)) == [0, 1, 2]


class TestWhatIsKnown:
    LOAD = RequestLoad(
        arrivals=1.0,
        finished=10.0,
        prompt_tokens=1000.0,
        cached_tokens=0.0,
        generated_tokens=400.0,
        running=4.0,
        waiting=0.0,
        kv_tokens=1e5,
        held_tokens=0.0,
    )

    def after(self, before: Recent, *drafts: DraftSums) -> Recent:
        return before.after(self.LOAD, StepWindow(start=0.0, end=15.0, cells={}, drafts=drafts))

    def shares(self, recent: Recent) -> tuple[DraftShare, ...]:
        return WorkloadEstimator(recent=recent).drafts

    def test_a_position_is_believed_once_enough_decodes_were_offered_it(self) -> None:
        few = self.after(Recent(), DraftSums(100.0, 100.0, 50.0), DraftSums(100.0, 100.0, 20.0))
        assert self.shares(few) == ()
        more = self.after(few, DraftSums(200.0, 200.0, 100.0), DraftSums(20.0, 20.0, 4.0))
        assert self.shares(more) == (DraftShare(1.0, 0.5),)

    def test_what_is_not_offered_any_more_stays_as_it_was_seen(self) -> None:
        recent = self.after(Recent(), DraftSums(1000.0, 900.0, 500.0))
        for _ in range(50):
            recent = self.after(recent)
        assert self.shares(recent) == (DraftShare(0.9, 0.5),)

    def test_steps_that_draft_deeper_now_and_then_tell_of_another_workload_within_minutes(self) -> None:
        recent = self.after(Recent(), DraftSums(1e6, 1e6, 8e5))
        for _ in range(20):
            recent = self.after(recent, DraftSums(100.0, 100.0, 10.0))
        (share,) = self.shares(recent)
        assert share.accepted < 0.25

    def test_a_few_decodes_at_a_time_are_enough_in_the_end(self) -> None:
        recent = Recent()
        for _ in range(40):
            recent = self.after(recent, DraftSums(9.0, 9.0, 6.0))
        (share,) = self.shares(recent)
        assert round(share.accepted, 3) == 0.667

    def test_no_position_has_more_than_the_one_before(self) -> None:
        recent = self.after(Recent(), DraftSums(1000.0, 500.0, 100.0), DraftSums(1000.0, 900.0, 800.0))
        assert self.shares(recent) == (DraftShare(0.5, 0.1), DraftShare(0.5, 0.1))


class TestWhatIsCounted:
    def test_decodes_by_position(self) -> None:
        counts = DraftStatistics()
        counts.stepped(3, [(3, 2), (3, 0), (0, 0)])
        counts.stepped(1, [(1, 1)])
        assert draft_positions(counts.sums) == ((4, 3, 2), (3, 2, 1), (3, 2, 0))

    def test_nothing_without_drafts_and_no_more_than_there_is_room_for(self) -> None:
        counts = DraftStatistics()
        counts.stepped(0, [(0, 0)])
        assert draft_positions(counts.sums) == ()
        counts.stepped(MOST_DRAFTS + 4, [(MOST_DRAFTS + 4, MOST_DRAFTS + 4)])
        assert len(draft_positions(counts.sums)) == MOST_DRAFTS


class TestWhatAnEngineDrafts:
    SIZES = Sizes(
        max_num_seqs=8, max_num_batched_tokens=512, max_model_len=1024, tokens_per_decode=4, depths=(0, 1, 2, 3)
    )

    def test_under_a_lower_depth_one_step_in_a_while_drafts_in_full(self) -> None:
        enforcer = SetpointEnforcer(self.SIZES, RequestedLimits(8, 512, 0, depth=3))
        enforcer.apply(setpoint(1, limits={"num_speculative_tokens": 1}), 100.0)
        held = enforcer.held(RunningBatch(decodes=4)).limits
        found = {
            seconds: enforcer.depth(held, 100.0 + seconds) for seconds in (0.0, 4.9, PROBE_SECONDS, 5.1, 9.9, 10.1)
        }
        assert found == {0.0: 1, 4.9: 1, PROBE_SECONDS: 3, 5.1: 1, 9.9: 1, 10.1: 3}

    def test_at_the_full_depth_each_step_does(self) -> None:
        enforcer = SetpointEnforcer(self.SIZES, RequestedLimits(8, 512, 0, depth=3))
        held = enforcer.held(RunningBatch(decodes=4)).limits
        assert {enforcer.depth(held, at) for at in (0.0, 1.0, 100.0)} == {3}


class TestWhatIsSent:
    LIMITS = Limits(max_num_active_seqs=64, max_num_scheduled_tokens=1024)

    def test_the_most_is_what_engines_start_with(self) -> None:
        lower = replace_depth(self.LIMITS, 1, WIDE)
        assert (lower.num_speculative_tokens, depth_given(lower, WIDE)) == (1, 1)
        assert replace_depth(lower, 3, WIDE) == self.LIMITS
        assert depth_given(self.LIMITS, WIDE) == 3

    def test_a_depth_passes_the_hysteresis_of_the_other_limits(self) -> None:
        wanted = replace_depth(self.LIMITS.model_copy(update={"max_num_active_seqs": 66}), 0, WIDE)
        assert restrained(self.LIMITS, wanted, WIDE) == replace_depth(self.LIMITS, 0, WIDE)
        assert restrained(wanted, wanted, WIDE) is wanted

    def test_a_service_that_speculates_no_more_is_sent_no_depth(self) -> None:
        lower = replace_depth(self.LIMITS, 1, WIDE)
        assert clipped(lower, replace(WIDE, drafts=0)) == self.LIMITS
        assert clipped(replace_depth(self.LIMITS, 2, WIDE), replace(WIDE, drafts=1)) == self.LIMITS
