"""How deep is drafted: what drafts bring is counted by position, and the batch decides what of it pays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flyball_engine.batching.draft_statistics import (
    PROBE_SECONDS,
    DraftStatistics,
    draft_positions,
)
from flyball_engine.batching.setpoint_enforcer import RequestedLimits, RunningBatch, SetpointEnforcer, Sizes
from flyball_engine.contract import MOST_DRAFTS, Knob, Limits, Shed
from flyball_engine.draft_schedule import draft_schedule
from flyball_engine.model import StepModel
from flyball_lab.harness.engine import setpoint
from flyball_lab.harness.manifests import good
from flyball_lab.harness.tuning import GAP, TPOT, TTFT, inputs, workload
from flyball_lab.simulator.core_config import Speculation
from flyball_operator.api.parse import parse_service
from flyball_operator.tuning.control_input import ControlInput, margins, scattered
from flyball_operator.tuning.estimate.workload import Recent, WorkloadEstimator
from flyball_operator.tuning.filters.filters import restrained
from flyball_operator.tuning.observe.signals import DraftSums, RequestLoad, StepWindow
from flyball_operator.tuning.policy import clipped, depth_given, replace_depth
from flyball_operator.tuning.spec import Envelope, LatencyObjective, Span, tuning_spec
from flyball_operator.tuning.speculation import DraftShare, at_depth, best_depth, depths
from support.plain_scheduler import GovernedCore, PlainConfig, PlainScheduler
from support.reflexes import a_budget
from support.simulated import a_core, a_request, submitted

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
        enforcer.note_drafts(3, 100.0)
        enforcer.apply(setpoint(1, limits={"num_speculative_tokens": 1}), 100.0)
        held = enforcer.held(RunningBatch(decodes=4)).limits
        found = {}
        for seconds in (0.1, 4.9, PROBE_SECONDS, 5.1, 9.9, 10.1):
            found[seconds] = enforcer.next_depth(held, 100.0 + seconds)
            enforcer.note_drafts(found[seconds], 100.0 + seconds)
        assert found == {0.1: 1, 4.9: 1, PROBE_SECONDS: 3, 5.1: 1, 9.9: 1, 10.1: 3}

    def test_at_the_full_depth_each_step_does(self) -> None:
        enforcer = SetpointEnforcer(self.SIZES, RequestedLimits(8, 512, 0, depth=3))
        held = enforcer.held(RunningBatch(decodes=4)).limits
        assert {enforcer.next_depth(held, at) for at in (0.0, 1.0, 100.0)} == {3}


class TestACoreThatDrafts:
    """A step of 100 ms fits 90 tokens."""

    BUDGET = a_budget(0.1, StepModel(t0=0.010, h=0.0, c1=0.001, c2=0.001, beta=0.0, g=0.0, kappa=1))

    def core(self, folder: Path, by_batch: list[int], *, stages: int = 1) -> GovernedCore:
        """Its slots are those of the schedule."""
        scheduler: Any = PlainScheduler(PlainConfig(max_num_seqs=len(by_batch) - 1, max_num_batched_tokens=512))
        scheduler.num_spec_tokens, scheduler.dynamic_sd_lookup = max(by_batch), by_batch
        scheduler.parallel_config.pipeline_parallel_size = stages
        return GovernedCore(folder, scheduler)

    def schedule(self, most: int, slots: int) -> list[int]:
        """The schedule that pods are started with, as vLLM looks it up."""
        found = [0] * (slots + 1)
        for first, last, depth in draft_schedule(most, slots):
            found[first : last + 1] = [depth] * (last + 1 - first)
        return found

    def test_what_one_step_alone_drafts_is_no_part_of_a_forecast(self, tmp_path: Path) -> None:
        core = self.core(tmp_path, self.schedule(3, 24))
        for number in range(16):
            core.add(f"r{number}", prompt=4, output=1000)
        core.hooks.apply(
            setpoint(1, limits={"num_speculative_tokens": 0}, step=self.BUDGET, shed=Shed(ttft_deadline_seconds=1.0))
        )
        scheduler: Any = core.scheduler
        core.step(seconds=0.074)
        rates, drafted = set(), []
        while core.now < 112.0:
            core.hooks.before_schedule()
            drafted.append(scheduler.dynamic_sd_lookup[16])
            output = scheduler.schedule()
            core.hooks.after_schedule(output)
            rates.add(round(core.prefill_seconds(), 6))
            # As long as the model says.
            core.now += 0.026
            scheduler.update_from_output(output)
            core.hooks.refuse_late({})
            core.hooks.after_update(output)
            core.hooks.touch()
            rates.add(round(core.prefill_seconds(), 6))
        assert drafted.count(3) == 3
        # 26 ms for 16 decodes are beside 74 prompt tokens, each of which takes 1 ms by itself.
        assert rates == {round(0.1 / 74, 6)}

    @pytest.mark.parametrize("depth", [0, 1, 2])
    def test_a_batch_of_any_size_drafts_what_is_asked_for(self, tmp_path: Path, depth: int) -> None:
        core: Any = self.core(tmp_path, self.schedule(3, 4))
        assert core.scheduler.dynamic_sd_lookup[1:] == [3] * 4
        core.hooks.apply(setpoint(1, limits={"num_speculative_tokens": depth}))
        assert core.scheduler.dynamic_sd_lookup[1:] == [depth] * 4

    def test_a_schedule_of_the_users_own_is_a_ceiling(self, tmp_path: Path) -> None:
        core: Any = self.core(tmp_path, [0, 4, 4, 2, 2, 0, 0])
        core.hooks.apply(setpoint(1, limits={"num_speculative_tokens": 2}))
        assert core.scheduler.dynamic_sd_lookup == [0, 2, 2, 2, 2, 0, 0]

    def test_a_step_without_decodes_is_not_the_one_that_drafts_in_full(self, tmp_path: Path) -> None:
        core: Any = self.core(tmp_path, self.schedule(3, 8))
        core.hooks.apply(setpoint(1, limits={"num_speculative_tokens": 1, "max_num_scheduled_tokens": 64}))
        core.add("r", prompt=640, output=100)
        drafted = []
        for _ in range(13):
            core.hooks.before_schedule()
            drafted.append(core.scheduler.dynamic_sd_lookup[1])
            core.step(seconds=0.01)
        # Ten steps process the prompt. The first one behind it has a decode.
        assert drafted == [*[3] * 11, 1, 1]

    def test_nothing_is_kept_of_requests_that_ended(self, tmp_path: Path) -> None:
        core = self.core(tmp_path, self.schedule(3, 8))
        for number in range(5):
            core.add(f"r{number}", prompt=4, output=3)
            while core.scheduler.requests:
                core.step()
            # vLLM tells of the last ones that ended in a step without tokens.
            assert not core.step().num_scheduled_tokens
        assert draft_positions(core.hooks._drafts._statistics.sums)[0].offered == 10
        assert core.hooks._drafts._made == {}

    def test_with_pipeline_stages_the_depth_stays_and_nothing_is_counted(self, tmp_path: Path) -> None:
        core: Any = self.core(tmp_path, [0, 3, 3, 2, 1], stages=2)
        assert "pipeline stages" in core.unsupported[Knob.NUM_SPECULATIVE_TOKENS]
        core.hooks.apply(setpoint(1, limits={"num_speculative_tokens": 1}))
        core.add("r", prompt=4, output=200)
        for _ in range(100):
            core.step()
            assert core.scheduler.dynamic_sd_lookup == [0, 3, 3, 2, 1]
        assert core.report().drafts == ()


class TestWhatASimulatedEngineDrafts:
    def test_the_deeper_positions_are_counted_of_the_steps_that_draft_them(self) -> None:
        core = a_core(seqs=8, speculation=Speculation(drafts=3, acceptance=0.5))
        submitted(core, *[a_request(8, 3_000) for _ in range(4)])
        core.run(1.0)
        core.run(core.next_change)
        core.apply(setpoint(1, limits={"num_speculative_tokens": 1}, expires_seconds=3600.0))
        before = draft_positions(core.drafts.sums)
        core.run(12.0)
        first, second, third = (
            after.offered - old.offered for after, old in zip(draft_positions(core.drafts.sums), before, strict=True)
        )
        # Two steps of four decodes.
        assert second == third == 8
        assert first > 100


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

    @pytest.mark.parametrize(("parallelism", "drafts"), [({}, 3), ({"data": 2}, 0), ({"pipeline": 2}, 0)])
    def test_a_depth_is_chosen_of_one_engine_core_without_stages(
        self, parallelism: dict[str, int], drafts: int
    ) -> None:
        asked = good(
            metadata__namespace="ns",
            metadata__uid="u1",
            spec__batching={"speculative": {"method": "ngram", "numSpeculativeTokens": 3}},
            spec__parallelism=parallelism,
            spec__accelerator={"resourceName": "nvidia.com/gpu"},
        )
        assert tuning_spec(parse_service(asked).spec).envelope.drafts == drafts

    def test_a_service_that_speculates_no_more_is_sent_no_depth(self) -> None:
        lower = replace_depth(self.LIMITS, 1, WIDE)
        assert clipped(lower, replace(WIDE, drafts=0)) == self.LIMITS
        assert clipped(replace_depth(self.LIMITS, 2, WIDE), replace(WIDE, drafts=1)) == self.LIMITS
