"""What constants of the law guard that moved no run of the ablation: with them, and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flyball_engine.batching.outcomes import MET, VIOLATED
from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_engine.figures import percent
from flyball_lab.benches.law.ablation import LONG_ANSWERS_END, in_force
from flyball_lab.benches.law.closed_loop import ClosedLoop
from flyball_lab.benches.law.contenders import play, the_law
from flyball_lab.benches.law.scenarios import scenario
from flyball_lab.benches.scaling import compare
from flyball_lab.simulator.virtual import run
from flyball_operator.tuning.spec import LatencyObjective
from flyball_operator.tuning.tunables import TUNABLES

Note = Callable[[str], None]

GAPS = LatencyObjective("gaps", Metric.INTER_TOKEN_LATENCY, 0.020, 0.01)


def late_gaps() -> float:
    """The share of gaps between tokens that were longer than the objective, in a busy engine under the law."""
    chat = scenario("h100 chat")
    first, _ = chat.tuning.objectives
    core = chat.core(1)
    closed_loop = ClosedLoop(replace(chat.tuning, objectives=(first, GAPS)), tick=5.0, gated=True)
    run(core, chat.requests(1), until=chat.seconds, events=closed_loop.events(chat.seconds))
    counts = core.ledger.collect().objectives
    identity = ObjectiveSpec(metric=GAPS.metric, threshold_seconds=GAPS.seconds).id
    met, late = counts[identity, MET], counts[identity, VIOLATED]
    return late / (met + late)


def test_without_the_gap_share_single_steps_miss_an_objective_for_gaps(note_figure: Note) -> None:
    as_it_is = late_gaps()
    with in_force(("gap_share", 1.0)):
        without = late_gaps()
    note_figure(f"of gaps {percent(as_it_is, 1)} are too long, {percent(without, 1)} with a gap share of 1")
    assert as_it_is <= GAPS.allowed < without


def test_without_a_least_first_share_long_answers_shut_out_the_short_ones_that_come_after_them(
    note_figure: Note,
) -> None:
    def goodput() -> float:
        return play(LONG_ANSWERS_END, the_law(5.0), 1, gate=True).goodput

    as_it_is = goodput()
    with in_force(("least_first_share", 0.0)):
        without = goodput()
    note_figure(f"goodput {as_it_is:.2f}/s, {without:.2f}/s without a least first share")
    assert without < as_it_is / 2


@pytest.mark.long
def test_what_is_spared_of_the_capacity_is_what_keeps_a_day_in_time(note_figure: Note) -> None:
    days = {}
    for spare in (0.0, TUNABLES.spare, 0.15):
        with in_force(("spare", spare)):
            days[spare] = compare.play(compare.RULES[compare.FLYBALL](compare.DAY.speed))
        note_figure(
            f"{percent(spare)} spared: {percent(days[spare].attained, 1)} of requests in time, for "
            f"{days[spare].hours:.2f} replica-hours"
        )
    assert days[0.0].attained < 0.99 < days[TUNABLES.spare].attained
    assert days[TUNABLES.spare].hours < days[0.15].hours
