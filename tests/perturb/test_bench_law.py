"""`hack/bench law`: the tuner's law around a simulated engine, and what its figures are made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.contract import Knob, Limits, Metric, Setpoint
from flyball_lab.benches.law.closed_loop import ClosedLoop, Constant
from flyball_lab.benches.law.contenders import COARSE, COARSE_BUDGETS, Contender, contenders, gated_contenders, play
from flyball_lab.benches.law.measures import most_within
from flyball_lab.benches.law.scenarios import SCENARIOS, UNEVEN, Scenario, scenario
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.fleet import cores_of
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.virtual import TimedAct, build, retune, run
from flyball_operator.tuning.control_input import margins
from flyball_operator.tuning.observe.signals import RequestLoad
from flyball_operator.tuning.spec import LatencyObjective

#: A minute within what the engine carries; and one more, far beyond it.
CALM = replace(SCENARIOS[0], phases=((8.0, "conversation"),))
OVERLOAD = replace(SCENARIOS[0], phases=((8.0, "conversation"), (40.0, "conversation")))
LAW = Contender(name="the law", tick=5.0)
WIDE = Contender(name="vLLM's", limits=(256, 8192))


class Overheard(ClosedLoop):
    """A tuner whose setpoints are kept."""

    def heard(self, scenario: Scenario, requests: list[Request], *, until: float) -> list[tuple[float, Setpoint]]:
        """What it says in a run, and when."""
        said: list[tuple[float, Setpoint]] = []
        core = build(PRESETS[scenario.preset])
        follow = core.follow

        def heard(setpoint: Setpoint) -> None:
            said.append((core.now, setpoint))
            follow(setpoint)

        core.follow = heard  # type: ignore[method-assign] # to listen
        run(core, requests, until=until, events=self.events(until))
        return said

    def told_in_calm(self) -> list[Setpoint]:
        """What it says in the calm minute."""
        return [setpoint for _, setpoint in self.heard(CALM, CALM.requests(1), until=60.0)]


def test_the_same_seed_is_the_same_run() -> None:
    once, again, another = (play(CALM, LAW, seed, gate=True) for seed in (1, 1, 2))
    assert once == again
    assert once != another


def test_a_load_that_is_carried_is_kept_by_the_law() -> None:
    for gate in (False, True):
        outcome = play(CALM, LAW, 1, gate=gate)
        assert outcome.kept > 0.98
        assert 0 < outcome.changes <= 6


def test_an_overload_leaves_as_much_in_the_on_time_order_as_behind_a_gate() -> None:
    free, gated = ([play(OVERLOAD, LAW, seed, gate=gate) for seed in (1, 2)] for gate in (False, True))
    assert sum(one.goodput for one in free) > 0.95 * sum(one.goodput for one in gated)
    assert all(one.kept < 0.9 for one in free), "all are served, and some late"
    assert all(one.kept > 0.985 for one in gated), "of those let in"


def test_a_slow_down_befalls_every_policy() -> None:
    slow = replace(CALM, slow=20.0)
    assert play(slow, WIDE, 1, gate=False).goodput < 0.8 * play(CALM, WIDE, 1, gate=False).goodput


def test_in_bursts_of_short_answers_those_whom_the_gate_lets_in_keep_their_objectives() -> None:
    bursts = next(one for one in SCENARIOS if one.burst > 1)
    closed_loop, requests = Overheard(bursts.tuning, tick=5.0, gated=True), bursts.requests(1)
    said = closed_loop.heard(bursts, requests, until=bursts.seconds + 60.0)
    gated_since = next(at for at, setpoint in said if setpoint.shed is not None)
    let_in = [one for one in requests if one.arrival > gated_since and one.fate is not Fate.SHED]
    assert len(let_in) > 1000
    assert sum(map(bursts.good, let_in)) / len(let_in) > 0.985


def test_without_a_gate_the_law_sends_limits_and_the_time_of_a_step() -> None:
    said = Overheard(CALM.tuning, tick=5.0, gated=False).told_in_calm()
    assert len(said) > 1
    assert all(setpoint.shed is None for setpoint in said)
    assert said[-1].step is not None
    assert said[-1].step.seconds == pytest.approx(margins().token * CALM.tpot)
    assert said[-1].limits.given().keys() == {Knob.MAX_NUM_ACTIVE_SEQS, Knob.MAX_NUM_SCHEDULED_TOKENS}


def test_behind_a_gate_it_waits_for_a_model_and_leaves_the_tokens_to_the_budget() -> None:
    said = Overheard(CALM.tuning, tick=5.0, gated=True).told_in_calm()
    assert said[0].step is None
    last = said[-1]
    assert last.step is not None
    assert last.shed is not None
    assert last.step.seconds == pytest.approx(margins().token * CALM.tpot)
    assert last.shed.ttft_deadline_seconds == CALM.ttft
    assert (last.limits.max_num_scheduled_tokens or 0) < CALM.tuning.envelope.tokens.most


@pytest.mark.parametrize("gate", [False, True], ids=["open", "gated"])
def test_an_end_to_end_objective_is_not_chased_with_every_window_s_lengths(gate: bool) -> None:
    chats = scenario("a100 chat")
    whole = LatencyObjective("whole", Metric.END_TO_END_LATENCY, 14.0, 0.01)
    tuning = replace(chats.tuning, objectives=(chats.tuning.objectives[0], whole))
    closed_loop = ClosedLoop(tuning, tick=5.0, gated=gate)
    run(chats.core(1), chats.requests(1), until=chats.seconds, events=closed_loop.events(chats.seconds))
    assert most_within(closed_loop.changes, 60.0) <= 6


def test_short_first_steps_keep_the_tokens_of_long_prompts_that_come_before_a_model() -> None:
    retrieval = scenario("h100 retrieval")
    assert play(retrieval, LAW, 1, gate=True).kept == 1.0


def test_of_swarms_that_come_before_a_model_those_let_in_keep_their_objectives() -> None:
    assert play(scenario("h100 bursts before a model"), LAW, 3, gate=True).kept > 0.985


def test_answers_too_long_for_their_objective_leave_the_law_level_with_wide_limits() -> None:
    whole = replace(scenario("h100 whole answers"), phases=((16.0, "conversation"),) * 2)
    assert play(whole, LAW, 1, gate=True).goodput > 0.97 * play(whole, WIDE, 1, gate=True).goodput


def test_the_capacity_of_uneven_cores_is_that_of_the_fullest() -> None:
    def carried(shares: tuple[float, ...]) -> float:
        uneven = scenario("4 × a100, uneven shares")
        here = replace(uneven, shares=shares, phases=uneven.phases[:1])
        closed_loop = ClosedLoop(here.tuning, tick=5.0, gated=True, cores=4)
        run(here.core(1), here.requests(1), until=here.seconds, events=closed_loop.events(here.seconds))
        assert closed_loop.balance is not None
        return closed_loop.balance.carried.rate / closed_loop.balance.rate

    assert carried(()) < 1.1
    assert carried(UNEVEN) > 1.3, "the fullest core has 1.6 times the mean one's share"


def test_it_sees_what_the_engine_did() -> None:
    seen: list[float] = []

    def look(_: Core) -> None:
        assert closed_loop.signals is not None
        load = closed_loop.signals.load
        seen.append(getattr(load, "arrivals", 0.0))

    closed_loop = ClosedLoop(CALM.tuning, tick=5.0, gated=False)
    core = build(PRESETS[CALM.preset])
    run(
        core,
        CALM.requests(1),
        until=60.0,
        events=[*closed_loop.events(60.0), *(TimedAct(at, look) for at in (30.0, 45.0, 60.0))],
    )
    assert seen == pytest.approx([8.0] * 3, rel=0.4)


def test_of_the_constant_setpoint_the_model_alone_is_learnt() -> None:
    class Told(Overheard, Constant):
        """Kept, too."""

    said = Told(CALM.tuning, tick=5.0, gated=True).told_in_calm()
    learnt = [setpoint for setpoint in said if setpoint.step is not None]
    assert {setpoint.limits.max_num_active_seqs for setpoint in learnt} == {CALM.tuning.envelope.seqs.most}
    assert [setpoint.step.seconds for setpoint in learnt if setpoint.step] == pytest.approx(
        [margins().token * CALM.tpot] * len(learnt)
    )


def test_limits_that_never_move_can_have_the_law_s_budget_and_another_margin() -> None:
    setpoint = CALM.setpoint(Limits(max_num_active_seqs=64), gate=True, budget=1.5, margin=0.7)
    assert setpoint.step is not None
    assert setpoint.shed is not None
    assert setpoint.step.seconds == pytest.approx(1.5 * CALM.tpot)
    assert setpoint.shed.margin == 0.7


def test_who_moves_s_alone_can_have_a_smaller_c() -> None:
    named = {policy.name: policy for policy in contenders() if policy.baseline is not None}
    assert {named[f"AIMD, C {step}"].tokens for step in (512, 1024)} == {512, 1024}
    assert play(CALM, named["AIMD, C 512"], 1, gate=True).kept > 0.95


def test_every_scenario_has_the_same_policies() -> None:
    every = (*contenders(), *gated_contenders())
    assert len({policy.name for policy in every}) == len(every)
    assert set(contenders(*COARSE)) < set(contenders())
    assert set(gated_contenders(*COARSE_BUDGETS)) < set(gated_contenders())


def test_there_are_a_dozen_of_scenarios_and_no_two_alike() -> None:
    assert len({one.name for one in SCENARIOS}) == len(SCENARIOS) >= 12


def test_clients_that_give_up_are_in_a_scenario() -> None:
    impatient = next(one for one in SCENARIOS if one.patience < 60)
    requests = impatient.requests(1)
    run(impatient.core(1), requests, until=impatient.seconds)
    left = sum(request.fate is Fate.LEFT for request in requests)
    assert 0.05 < left / len(requests) < 0.9


def test_a_limit_of_the_queue_refuses_what_no_gate_does() -> None:
    overload = replace(CALM, phases=((60.0, "conversation"),))
    queue = next(policy for policy in contenders() if policy.queued_tokens is not None)
    assert play(overload, queue, 1, gate=False).kept > 2 * play(overload, WIDE, 1, gate=False).kept


class TestAFleet:
    FLEET = replace(CALM, phases=((24.0, "conversation"),), pods=3, slow_pod=3.0)

    def test_every_request_is_somebodys_and_turns_are_taken(self) -> None:
        requests, core = self.FLEET.requests(1), self.FLEET.core(1)
        came = run(core, requests, until=200.0)
        assert all(request.fate is Fate.FINISHED for request in requests)
        assert came.counts.requests["finished"] == len(requests)
        shares = [one.ledger.collect().requests["finished"] / len(requests) for one in cores_of(core)]
        assert shares == pytest.approx([1 / 3] * 3, abs=0.01)

    def test_one_pod_is_slow(self) -> None:
        core = self.FLEET.core(1)
        run(core, self.FLEET.requests(1), until=200.0)
        slow, *others = [one.statistics.longest_seconds for one in cores_of(core)]
        assert slow > 2 * max(others)

    def test_the_tuner_sees_all_of_it_as_one_service(self) -> None:
        closed_loop, core = ClosedLoop(self.FLEET.tuning, tick=5.0, gated=False, cores=3), self.FLEET.core(1)
        run(core, self.FLEET.requests(1), until=60.0, events=closed_loop.events(60.0))
        signals = closed_loop.signals
        assert signals is not None
        assert signals.cores == 3
        assert isinstance(signals.load, RequestLoad)
        assert signals.load.arrivals == pytest.approx(24, rel=0.3)

    def test_shares_of_the_requests_may_differ(self) -> None:
        uneven = replace(self.FLEET, shares=(0.5, 0.3, 0.2))
        core, requests = uneven.core(1), uneven.requests(1)
        run(core, requests, until=200.0)
        shares = [one.ledger.collect().requests["finished"] / len(requests) for one in cores_of(core)]
        assert shares == pytest.approx(uneven.shares, abs=0.01)

    def test_a_setpoint_goes_to_every_engine(self) -> None:
        core = self.FLEET.core(1)
        limits = Limits(max_num_active_seqs=8, max_num_scheduled_tokens=512)
        run(core, [], until=1.0, events=[retune(0.0, self.FLEET.setpoint(limits, gate=True))])
        for one in cores_of(core):
            assert one.governed.shown(one.scheduler.batch())[Knob.MAX_NUM_ACTIVE_SEQS].effective == 8
