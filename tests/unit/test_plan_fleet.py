"""`flyball plan`: what it says of fleets with too many replicas, too few, a full KV cache, no traffic and no plugin."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from flyball_engine.contract import Metric
from flyball_operator.cli.plan.fleet_answers import by_group, share
from flyball_operator.cli.plan.limits import Limit
from flyball_operator.cli.plan.objectives import OptionError, look_back, objectives
from flyball_operator.cli.plan.planned import ServicePlan, planned
from flyball_operator.cli.plan.report import FleetPlan, as_json, as_text
from flyball_operator.cli.plan.windows import Capacity, Held, Kind, Share
from flyball_operator.prometheus.vector import Sample, Vector
from flyball_operator.tuning.spec import LatencyObjective
from support.plans import ALL_MET, HOUR, MOST_LATE, TPOT, TTFT, fleet_of, governed, hour


def said(plan: ServicePlan) -> str:
    """The text, in one line."""
    text = as_text(FleetPlan(services=[plan], start=0.0, end=24 * HOUR, window=HOUR))
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def test_a_fleet_with_too_many_replicas_saves_what_the_model_says_is_not_needed() -> None:
    plan = governed(hour(1.0), hour(2.0), hour(1.5), rate=5.0)
    assert (plan.limit, plan.past.now, plan.replicas.advised, plan.saved) == (Limit.NOTHING, 4, 2, 2)
    assert plan.alone["tpot"].advised == 1, "8/s at 10/s per replica"
    assert "saves 2 replicas, 4 GPUs" in said(plan)
    assert "nothing: nobody waited, no objective was missed; ttft would be missed first" in said(plan)
    assert "1 service: 4 replicas now, 2 would do; 8 GPUs now, 4" in said(plan)


def test_what_was_seen_to_do_is_believed_before_a_model_that_asks_for_more() -> None:
    plan = governed(hour(1.0), hour(2.0), hour(1.5), rate=1.0)
    assert (plan.replicas.advised, plan.replicas.most, plan.saved) == (4, 8, 0)
    assert "the windows held up to 2/s per replica; more was not tried. 8 by the step-time model" in said(plan)


def test_the_models_error_widens_the_interval() -> None:
    plan = governed(hour(1.0), hour(2.0), hour(1.5), rate=5.0, error=0.5)
    assert (plan.replicas.least, plan.replicas.advised, plan.replicas.most) == (2, 2, 4)


def test_hours_of_another_mix_widen_the_interval() -> None:
    long_prompts = governed(hour(0.5), rate=2.0).past.windows
    past = governed(*[hour(2.0)] * 9, rate=5.0).past
    plan = planned(replace(past, windows=past.windows + long_prompts))
    assert plan.replicas.advised == 2, "each hour by its own mix"
    plan = planned(replace(past, windows=past.windows + 3 * long_prompts))
    assert plan.replicas.advised == 2
    assert plan.replicas.most == 4, "the busiest hour's load with the longer prompts"


def test_a_fleet_with_too_few_replicas_costs_what_proven_loads_need() -> None:
    late = hour(6.0, met={"ttft": MOST_LATE, "tpot": ALL_MET}, waiting=40.0)
    plan = fleet_of(hour(2.0), hour(3.0), hour(2.9), late)
    assert (plan.limit, plan.replicas.advised, plan.saved) == (Limit.QUEUE, 8, -4)
    assert plan.replicas.most == 9, "3/s was held once, 2.9/s twice"
    assert plan.replicas.least == 4, "the load at which it was late was too much, or just so"
    assert plan.alone["tpot"].advised == 4, "tokens were in time"
    assert "costs 4 replicas (0 to 5), 8 GPUs" in said(plan)


def test_a_load_that_was_held_once_but_missed_at_less_proves_nothing() -> None:
    missed = {"ttft": MOST_LATE, "tpot": ALL_MET}
    plan = fleet_of(hour(2.0), hour(3.0, met=missed), hour(4.0), hour(2.5))
    assert plan.replicas.advised == 7, "16/s at 2.5/s per replica"


def test_where_the_load_does_not_decide_there_is_no_number() -> None:
    missed = {"ttft": MOST_LATE, "tpot": ALL_MET}
    plan = fleet_of(hour(3.0), hour(2.0, met=missed), hour(4.0))
    assert plan.replicas.advised is None
    assert "some windows held them at up to 4/s per replica, others missed them at 2/s" in said(plan)
    plan = fleet_of(*[hour(2.0, met=missed)] * 3)
    assert "no load was seen at which they were held" in said(plan)


def test_a_fleet_without_the_plugin_is_not_told_that_fewer_do_before_fewer_were_seen() -> None:
    plan = fleet_of(hour(1.0), hour(2.0), hour(1.5))
    assert (plan.replicas.least, plan.replicas.advised, plan.saved) == (1, 4, 0)
    assert "do not say what a replica carries beyond the loads that were seen" in said(plan)
    assert "run 3 for a busy window: each then gets 33 % more load" in said(plan)


def test_an_hour_with_fewer_replicas_proves_that_they_do() -> None:
    plan = fleet_of(hour(2.0), hour(4.0, replicas=2), hour(1.5))
    assert (plan.replicas.advised, plan.saved) == (2, 2)


def test_a_load_of_which_half_was_refused_was_not_held() -> None:
    """`overload: Shed`: who was let in was in time, and nobody waited."""
    half = hour(50.0, replicas=2, refused=50.0)
    plan = governed(half, half, half, rate=25.0)
    assert (plan.limit, plan.replicas.advised, plan.saved) == (Limit.REFUSALS, 4, -2)
    assert "100/s in the busiest window (50 % refused): 50/s per replica" in said(plan)
    assert "99.0 to 100.0 % of those let in met it" in said(plan)
    assert "no load was seen at which they were held" in said(fleet_of(half, half, half))


def test_as_many_may_be_refused_as_may_be_late() -> None:
    some = hour(50.0, replicas=2, refused=4.0)
    plan = fleet_of(some, some, some)
    assert (plan.limit, plan.replicas.advised) == (Limit.NOTHING, 2)


@pytest.mark.parametrize(
    ("seen", "limit"),
    [
        ({"waiting": 8.0, "kv_peak": 0.99}, Limit.KV_CACHE),
        ({"waiting": 8.0, "running_peak": 64.0}, Limit.MAX_NUM_SEQS),
        ({"waiting": 8.0, "running_peak": 30.0}, Limit.QUEUE),
        ({"met": {"ttft": MOST_LATE, "tpot": ALL_MET}}, Limit.FIRST_TOKEN),
        ({"met": {"ttft": ALL_MET, "tpot": MOST_LATE}}, Limit.TOKENS),
        ({"refused": 1.0}, Limit.REFUSALS),
        ({"waiting": 1.0}, Limit.NOTHING),
    ],
)
def test_what_limits(seen: dict[str, Any], limit: Limit) -> None:
    plan = fleet_of(hour(1.0), hour(2.0, **seen), hour(1.0), ceiling=64.0)
    assert plan.limit is limit
    assert plan.counts[limit] == (3 if limit is Limit.NOTHING else 1)


def test_a_ceiling_that_nobody_tells_shows_where_others_wait() -> None:
    full = hour(2.0, waiting=8.0, running_peak=48.0)
    assert fleet_of(hour(1.0), full, full, hour(1.0)).limit is Limit.MAX_NUM_SEQS
    assert fleet_of(hour(1.0), full, hour(1.0)).limit is Limit.QUEUE, "once may be chance"


def test_an_idle_service_gets_no_number() -> None:
    plan = fleet_of(hour(0.0), hour(0.0), hour(0.0))
    assert (plan.limit, plan.replicas.advised) == (Limit.IDLE, None)
    assert "idle: no request came replicas 4 now" in said(plan)


def test_a_service_that_does_not_run_any_more_saves_nothing() -> None:
    plan = fleet_of(hour(2.0), hour(2.0), hour(2.0), now=0)
    assert (plan.replicas.advised, plan.saved) == (4, None)
    assert "0 of 1 services have a number" in said(plan)


def test_too_little_data_gives_no_number() -> None:
    plan = fleet_of(hour(2.0), hour(2.0), hour(0.001))
    assert plan.replicas.advised is None
    assert "too little data: 2 windows with 30 requests or more, needed are 3" in said(plan)


def test_objectives_between_two_buckets_are_not_judged() -> None:
    between = {"ttft": Share(0.7, 0.99, 1000.0), "tpot": ALL_MET}
    plan = fleet_of(*[hour(2.0, met=between)] * 3, edges={"ttft": (0.25, 0.5)})
    assert plan.replicas.advised is None
    assert "nothing tells whether the objectives were held" in said(plan)
    assert "vLLM counts ttft at 250ms and 500ms, not between" in said(plan)
    assert "70.0 to 99.0 % met it" in said(plan)


def test_an_objective_above_vllms_last_bucket_is_not_judged() -> None:
    above = {"ttft": Share(0.7, 1.0, 1000.0), "tpot": ALL_MET}
    plan = fleet_of(*[hour(2.0, met=above)] * 3, edges={"ttft": (80.0, math.inf)})
    assert "vLLM counts ttft at 80s at the most: an objective there is told exactly" in said(plan)


def test_windows_that_were_left_out_are_told() -> None:
    plan = fleet_of(hour(1.0), hour(2.0), hour(1.5), left_out=3)
    assert "Without 3 windows in which pods or figures were not seen all the time." in said(plan)
    plan = planned(replace(plan.past, windows=()))
    assert (plan.limit, plan.replicas.advised) == (Limit.UNKNOWN, None)
    assert "unknown: pods were there through no whole window" in said(plan)
    assert "Without 3 windows" in said(plan)


def test_objectives_that_an_idle_engine_misses_get_no_number() -> None:
    hopeless = Capacity(rate=0.0, asked=8.0, alone={"ttft": 0.0, "tpot": 5.0}, reachable={"ttft": 0.81})
    late = {"ttft": MOST_LATE, "tpot": ALL_MET}
    plan = fleet_of(*[hour(2.0, capacity=hopeless, met=late)] * 3, kind=Kind.PLUGIN, error=0.02)
    assert plan.replicas.advised is None
    assert "even an idle engine misses: ttft can be 810ms at the least" in said(plan)
    assert plan.alone["tpot"].advised == 2


def test_a_model_that_counts_contradict_is_named() -> None:
    late = {"ttft": MOST_LATE, "tpot": ALL_MET}
    plan = governed(hour(1.0, met=late), hour(2.0), hour(1.5), rate=5.0)
    assert "In 1 window objectives were missed, or requests refused, at a load that the model says is" in said(plan)


def test_without_a_model_the_plugins_counts_are_used_and_why_is_said() -> None:
    plan = fleet_of(hour(1.0), hour(2.0), hour(1.5), kind=Kind.PLUGIN, doubt="too few requests have ended")
    assert plan.replicas.advised == 4
    assert "There is no step-time model: too few requests have ended." in said(plan)


def test_without_objectives_limits_are_told_and_no_number() -> None:
    plan = fleet_of(hour(1.0), hour(2.0), hour(1.5), objectives=())
    assert (plan.limit, plan.replicas.advised) == (Limit.NOTHING, None)
    assert "no objectives are known: give --ttft" in said(plan)


def test_the_json_says_the_same_with_each_window() -> None:
    plan = governed(hour(1.0), hour(2.0), hour(1.5), rate=5.0)
    document = json.loads(json.dumps(as_json(FleetPlan(services=[plan], start=0.0, end=3 * HOUR, window=HOUR))))
    (service,) = document["services"]
    assert (service["limit"], service["replicas"]["advised"], service["saved_gpus"]) == ("nothing", 2, 4)
    assert [window["requests_per_second"] for window in service["windows"]] == [4.0, 8.0, 6.0]
    assert service["objectives"][0]["met_ratio"] == [0.99, 1.0]


def answer(*rows: tuple[dict[str, str], str]) -> Vector:
    return [Sample(labels, (0.0, value)) for labels, value in rows]


def test_buckets_bound_the_share_on_both_sides() -> None:
    of = {"namespace": "team", "job": "vllm"}
    rows = [(of | {"field": "TimeToFirstToken", "le": le}, value) for le, value in
            (("0.25", "700"), ("0.5", "990"), ("1.0", "1000"), ("+Inf", "1000"))]  # fmt: skip
    figures = by_group(answer(*rows, (of | {"field": "kv"}, "NaN")), ("namespace",))["team",]
    on_a_bound, between = replace(TTFT, seconds=0.5), replace(TTFT, seconds=0.3)
    assert share(figures, on_a_bound) == (Share(0.99, 0.99, 1000.0), (0.5, 0.5))
    assert share(figures, between) == (Share(0.7, 0.99, 1000.0), (0.25, 0.5))
    assert share(figures, TPOT) is None
    assert Share(0.7, 0.99, 1000.0).held(0.05) is Held.UNCLEAR


def test_of_two_jobs_the_one_that_sees_most_pods_is_believed() -> None:
    rows = [({"job": job, "field": "replicas"}, pods) for job, pods in (("a", "1"), ("b", "3"), ("c", "2"))]
    assert by_group(answer(*rows), ("namespace",)) == {("",): {("replicas", ""): 3.0}}


def test_a_day_has_windows_of_an_hour_and_none_is_shorter_than_a_minute() -> None:
    day, short = look_back(None, 1e9), look_back("10m", 1e9)
    assert (day.count, day.seconds, day.ends()[-1]) == (24, 3600, int(1e9))
    assert (short.count, short.seconds) == (10, 60)
    assert look_back("168h", 1e9).count == 168


def test_options_make_objectives() -> None:
    given = dict.fromkeys(("ttft", "tpot", "itl", "e2e")) | {"tpot": "50ms", "e2e": "20s"}
    assert objectives(given, "99") == (
        LatencyObjective("tpot", Metric.TIME_PER_OUTPUT_TOKEN, 0.05, 0.01),
        LatencyObjective("e2e", Metric.END_TO_END_LATENCY, 20.0, 0.01),
    )
    with pytest.raises(OptionError, match="--target says of no objective"):
        objectives(dict.fromkeys(given), "99")
