"""What constants of the law guard, with them and without: no goodput of the ablation's scenarios hangs on these."""

from __future__ import annotations

from dataclasses import replace

from flyball_engine.batching.outcomes import MET, VIOLATED
from flyball_engine.contract import Metric
from flyball_lab.benches.law.ablation import LONG_ANSWERS_END, in_force
from flyball_lab.benches.law.closed_loop import ClosedLoop
from flyball_lab.benches.law.contenders import play, the_law
from flyball_lab.benches.law.scenarios import SCENARIOS
from flyball_lab.simulator.virtual import run
from flyball_operator.tuning.spec import LatencyObjective

GAPS = LatencyObjective("gaps", Metric.INTER_TOKEN_LATENCY, 0.020, 0.01)


def late_gaps() -> float:
    """The share of gaps between tokens that were longer than the objective, in a busy engine under the law."""
    chat = next(case for case in SCENARIOS if case.name == "h100 chat")
    first, _ = chat.tuning.objectives
    core = chat.core(1)
    closed_loop = ClosedLoop(replace(chat.tuning, objectives=(first, GAPS)), tick=5.0, gated=True)
    run(core, chat.requests(1), until=chat.seconds, events=closed_loop.events(chat.seconds))
    counts = core.ledger.collect().objectives
    met, late = (sum(number for (_, name), number in counts.items() if name == outcome) for outcome in (MET, VIOLATED))
    return late / (met + late)


def test_without_the_gap_share_single_steps_miss_an_objective_for_gaps() -> None:
    assert late_gaps() <= GAPS.allowed
    with in_force(("gap_share", 1.0)):
        assert late_gaps() > GAPS.allowed


def test_without_a_least_first_share_long_answers_shut_out_the_short_ones_that_come_after_them() -> None:
    def goodput() -> float:
        return play(LONG_ANSWERS_END, the_law(5.0), 1, gate=True).goodput

    as_it_is = goodput()
    with in_force(("least_first_share", 0.0)):
        assert goodput() < as_it_is / 2
