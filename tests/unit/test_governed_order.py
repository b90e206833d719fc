"""A governed scheduler that serves prompts in the on-time order, step by step."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_engine.batching.shares import SHARED_AFTER
from flyball_engine.contract import OnTime, OrderKnob
from flyball_engine.knobs import Batching, NoEvict, SchedulingPolicy, Static
from flyball_engine.model import StepModel
from flyball_engine.vllm.plugin import governed_class
from flyball_engine.vllm.queue import WaitingQueues
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainConfig, PlainQueue, PlainRequest, PlainScheduler, transferring
from support.plain_scheduler import SchedulingPolicy as PlainPolicy
from support.reflexes import a_budget
from support.simulated import two_classes

#: A step of so long has 100 tokens.
MODEL = StepModel(t0=0.010, h=0.0, c1=0.001, c2=0.001, beta=0.0, g=0.0, kappa=1)
STEP_SECONDS = 0.1101


def ordered(generation: int = 1, *, seconds: float = 5.0, late_share: float = 0.0, **fields: Any) -> Any:
    """Prompts have so many seconds; a step has 100 tokens."""
    on_time = OnTime(first_token_deadline_seconds=seconds, margin=1.0, late_share=late_share)
    return setpoint(generation, step=a_budget(STEP_SECONDS, MODEL), on_time=on_time, **fields)


def a_scheduler(**config: Any) -> PlainScheduler:
    return PlainScheduler(PlainConfig(max_num_seqs=64, max_num_batched_tokens=512, **config))


def with_connector(scheduler: PlainScheduler, name: str = "NixlConnector", *, consumer: bool) -> PlainScheduler:
    """Of an engine that loads prompts for sure, or one that processes them for others."""
    vars(scheduler)["connector"] = object()
    scheduler.vllm_config = transferring(name, consumer=consumer)
    return scheduler


def a_core(folder: Path, **config: Any) -> GovernedCore:
    return GovernedCore(folder, a_scheduler(**config))


@pytest.fixture
def core(tmp_path: Path) -> GovernedCore:
    core = a_core(tmp_path)
    core.hooks.apply(ordered())
    return core


def step(core: GovernedCore) -> dict[str, int]:
    """One step that takes what the model says; the tokens of each request."""
    core.hooks.before_schedule()
    output = core.scheduler.schedule()
    core.hooks.after_schedule(output)
    core.now += MODEL.t0 + MODEL.c1 * output.total_num_scheduled_tokens
    core.scheduler.update_from_output(output)
    core.hooks.after_update(output)
    return output.num_scheduled_tokens


def running(core: GovernedCore) -> list[str]:
    return [request.request_id for request in core.scheduler.running]


def test_who_cannot_be_on_time_is_served_behind(core: GovernedCore) -> None:
    core.add("long", prompt=6000)
    core.add("short", prompt=60)
    core.add("other", prompt=60)
    assert step(core) == {"short": 60, "other": 40}
    assert step(core) == {"short": 1, "other": 20, "long": 79}
    order = core.report().state.order
    assert (order.moved_behind, order.behind) == (1, 1)
    assert order.longest_wait_seconds == pytest.approx(2 * STEP_SECONDS, abs=0.12)


def test_beside_a_large_batch_those_behind_join_by_their_share_alone(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    # Sixty decodes leave a step 40 of its 100 tokens.
    core.hooks.apply(ordered())
    for number in range(60):
        core.add(f"decode{number}", prompt=1, output=50)
    for _ in range(4):
        step(core)
    for name in ("late", "later"):
        core.add(name, prompt=6000)
    core.add("short", prompt=20)
    served = [step(core) for _ in range(3)]
    assert "short" in served[0]
    assert not any(name in tokens for tokens in served for name in ("late", "later")), "their decodes would slow others"
    assert len(core.scheduler.waiting) == 2
    core.scheduler.finish_requests(*(f"decode{number}" for number in range(55)))
    assert {"late", "later"} & step(core).keys(), "beside a small one they join"


def test_beside_a_large_batch_it_is_all_the_same_on_a_vllm_without_a_second_queue(tmp_path: Path) -> None:
    """vLLM before 0.32 keeps requests that hold KV cache in the one queue."""
    core = a_core(tmp_path)
    del core.scheduler.kv_holding_waiting, core.scheduler.deferred_waiting
    core.hooks.apply(ordered())
    for number in range(60):
        core.add(f"decode{number}", prompt=1, output=50)
    for _ in range(4):
        step(core)
    core.add("late", prompt=6000)
    assert "late" not in step(core)
    assert core.hooks.governing


def test_who_is_kept_from_joining_does_not_take_the_slot_of_one_that_is_parked(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    core.hooks.apply(ordered())
    core.add("begun", prompt=6000)
    step(core)
    for number in range(15):
        core.add(f"decode{number}", prompt=1, output=5000)
    step(core)
    for name in ("late", "later"):
        core.add(name, prompt=6000)
    assert "late" not in step(core), "its decodes would slow others"
    core.add("short", prompt=60)
    served = step(core)
    assert "short" in served
    assert not {"late", "later"} & served.keys(), "vLLM counts the slot of who is parked as free"
    assert len(core.scheduler.waiting) == 2


def test_nobody_stands_twice_in_what_runs_however_many_wait_before_those_that_have_begun(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    core.hooks.apply(ordered(2, classes=two_classes(5.0)))
    for number in range(15):
        core.add(f"decode{number}", prompt=1, output=5000, of_class="chat")
    for _ in range(4):
        step(core)
    # More than are looked at for some that have begun.
    for number in range(70):
        core.add(f"late{number}", prompt=6000, of_class="chat")
    for _ in range(6):
        step(core)
    core.add("chat", prompt=3000, of_class="chat")
    for _ in range(10):
        step(core)
    for number in range(6):
        core.add(f"short{number}", prompt=400, output=2, of_class="chat")
    core.add("batch", prompt=3000, of_class="batch")
    for _ in range(200):
        step(core)
        assert len(set(running(core))) == len(running(core))


def test_a_prompt_that_was_aborted_costs_those_behind_it_no_step(core: GovernedCore) -> None:
    core.hooks.apply(ordered(2, seconds=50.0, classes=two_classes(50.0)))
    core.add("batch", prompt=1000, of_class="batch")
    step(core)
    core.add("chat", prompt=1000, of_class="chat")
    for _ in range(2):
        step(core)
    core.scheduler.finish_requests("chat")
    core.hooks.after_finish()
    assert step(core) == {"batch": 100}


def test_a_request_of_a_class_overtakes_batch_work_that_waits(core: GovernedCore) -> None:
    core.hooks.apply(ordered(2, classes=two_classes(5.0)))
    core.add("batch", prompt=250, of_class="batch")
    core.add("more", prompt=250, of_class="batch")
    assert step(core) == {"batch": 100}
    core.add("chat", prompt=60, of_class="chat")
    assert step(core)["chat"] == 60
    order = core.report().state.order
    assert (order.moved_behind, order.behind) == (0, 2)
    # An edit: the batch work has the deadline of all, and comes first, since it came first.
    core.add("chat2", prompt=60, of_class="chat")
    core.hooks.apply(ordered(3))
    assert next(iter(step(core))) != "chat2"
    assert core.report().state.order.behind == 0


def test_without_an_order_prompts_are_served_as_they_came(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(2, step=a_budget(STEP_SECONDS, MODEL)))
    core.add("long", prompt=6000)
    core.add("short", prompt=60)
    assert step(core) == {"long": 100}
    assert core.report().state.order.moved_behind == 0


def test_a_model_nobody_trusts_orders_nothing(core: GovernedCore) -> None:
    on_time = OnTime(first_token_deadline_seconds=5.0)
    core.hooks.apply(setpoint(2, step=a_budget(STEP_SECONDS, MODEL, trusted=False), on_time=on_time))
    core.add("long", prompt=6000)
    core.add("short", prompt=60)
    assert step(core) == {"long": 512}


def test_one_that_has_begun_waits_for_those_before_it_and_keeps_what_it_has(core: GovernedCore) -> None:
    core.add("long", prompt=6000)
    assert step(core) == {"long": 100}
    core.add("short", prompt=100)
    assert step(core) == {"short": 100}
    assert core.hooks.parks
    assert running(core) == ["short", "long"], "nobody else knows that it waited"
    assert core.scheduler.requests["long"].num_computed_tokens == 100
    assert step(core) == {"short": 1, "long": 99}
    assert not core.hooks.parks


def test_what_those_before_leave_goes_to_the_one_that_has_begun(core: GovernedCore) -> None:
    core.add("long", prompt=6000)
    step(core)
    core.add("short", prompt=30)
    assert step(core) == {"long": 70, "short": 30}
    assert core.scheduler.scheduler_config.long_prefill_token_threshold == 70
    assert step(core) == {"short": 1, "long": 99}
    assert core.scheduler.scheduler_config.long_prefill_token_threshold == 0


def test_a_slot_of_one_that_waits_is_nobodys(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    core.hooks.apply(ordered(limits={"max_num_active_seqs": 2}))
    core.add("long", prompt=6000)
    step(core)
    for number in range(3):
        core.add(f"short {number}", prompt=100)
    assert step(core) == {"short 0": 100}
    assert len(core.scheduler.running) == 2


def test_decodes_come_before_all_prompts(core: GovernedCore) -> None:
    core.add("short", prompt=60, output=50)
    step(core)
    core.add("long", prompt=6000)
    core.add("next", prompt=100)
    for _ in range(5):
        assert next(iter(step(core))) == "short"


def test_who_was_preempted_after_its_first_token_comes_before_all(core: GovernedCore) -> None:
    core.add("victim", prompt=150, output=50)
    step(core)
    step(core)
    core.add("long", prompt=6000)
    step(core)
    core.scheduler.preempt("victim")
    core.add("short", prompt=20)
    assert step(core) == {"victim": 100}, "and its first tokens again"
    tokens = step(core)
    assert tokens["victim"] == 52
    assert tokens["short"] == 20


def test_who_was_preempted_before_its_first_token_is_ordered_as_it_was(core: GovernedCore) -> None:
    core.add("long", prompt=6000)
    step(core)
    core.scheduler.preempt("long")
    core.add("short", prompt=100)
    assert step(core) == {"short": 100}
    assert step(core) == {"short": 1, "long": 99}


def test_the_oldest_of_those_behind_gets_its_share(core: GovernedCore) -> None:
    core.hooks.apply(ordered(2, late_share=0.1))
    core.add("long", prompt=6000)
    core.now += SHARED_AFTER
    served = 0
    for number in range(100):
        core.add(f"short {number}", prompt=100, output=1)
        served += step(core).get("long", 0)
    assert served == pytest.approx(0.1 * 100 * 100, rel=0.15)


def test_who_was_moved_behind_and_is_in_time_after_all_is_counted(core: GovernedCore) -> None:
    core.add("long", prompt=3000)
    for number in range(30):
        core.add(f"short {number}", prompt=100, output=1)
    step(core)
    for number in range(1, 30):
        core.scheduler.finish_requests(f"short {number}")
    for _ in range(31):
        step(core)
    order = core.report().state.order
    assert (order.moved_behind, order.in_time_after_all, order.behind) == (1, 1, 0)


def arrive(core: GovernedCore, name: str, at: float, *, prompt: int = 60) -> None:
    """One more request, which the API server had at that time of its clock."""
    core.scheduler.add(name, prompt=prompt)
    request = core.scheduler.requests[name]
    request.arrival_time = at
    core.hooks.received(request)


def test_a_request_waits_since_the_api_server_had_it(core: GovernedCore) -> None:
    core.add("old", prompt=300)
    core.add("new", prompt=300)
    core.scheduler.finish_requests("new")
    arrive(core, "newer", time.time() - 3.0, prompt=300)
    assert step(core) == {"newer": 100}, "its deadline is before that of the other"


def test_whoever_is_held_up_between_two_clocks_lets_nobody_overtake(
    core: GovernedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_at = iter((100.0, 100.02, 100.003))
    monkeypatch.setattr(core.hooks._order, "_wall", lambda: next(read_at))
    for number, name in enumerate(("first", "second", "third")):
        arrive(core, name, 100.0 + number / 1000)
    assert step(core) == {"first": 60, "second": 40}
    assert step(core) == {"first": 1, "second": 20, "third": 60}


@pytest.mark.parametrize("seconds", [-3600.0, -1.0, 1.0, 3600.0])
def test_a_clock_that_is_set_dates_those_that_come_after_it_as_before(
    core: GovernedCore, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    wall = [100.0]
    monkeypatch.setattr(core.hooks._order, "_wall", lambda: wall[0])
    for name, age in (("before", 0.0), ("younger", 1.0), ("older", 2.0)):
        arrive(core, name, wall[0] - age)
        wall[0] = 100.0 + seconds
    assert step(core) == {"older": 60, "younger": 40}


def test_another_deadline_moves_those_that_wait(core: GovernedCore) -> None:
    core.add("long", prompt=3000)
    core.add("short", prompt=60)
    assert step(core) == {"long": 100}, "both are in time"
    core.hooks.apply(ordered(2, seconds=1.0))
    assert step(core)["short"] == 60
    assert core.report().state.order.behind == 1


def test_those_that_wait_when_the_order_begins_are_in_it(core: GovernedCore) -> None:
    core.hooks.apply(setpoint(2, step=a_budget(STEP_SECONDS, MODEL)))
    core.add("long", prompt=6000)
    core.add("longer", prompt=9000)
    core.add("short", prompt=60)
    step(core)
    core.hooks.apply(ordered(3))
    assert step(core)["short"] == 60
    assert core.report().state.order.behind == 2


@pytest.mark.parametrize("ends", ["a setpoint without it", "an expiry"])
def test_where_the_order_ends_the_queue_is_as_they_came(core: GovernedCore, ends: str) -> None:
    for name in ("a", "b", "c"):
        core.add(name, prompt=6000)
    core.add("short", prompt=250)
    core.add("other", prompt=250)
    step(core)
    core.scheduler.preempt("short")
    if ends == "an expiry":
        core.now += 10 * 3600
    else:
        core.hooks.apply(setpoint(2))
    core.hooks.touch()
    assert [request.request_id for request in core.scheduler.waiting] == ["short", "a", "b", "c", "other"]
    assert core.report().state.order.behind == 0


def test_a_step_that_fails_puts_back_who_was_taken_out(core: GovernedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        assert running(core) == [], "it waits"
        raise RuntimeError("no step")

    core.add("long", prompt=6000)
    step(core)
    core.add("short", prompt=100)
    scheduler: Any = core.scheduler
    monkeypatch.setattr(PlainScheduler, "schedule", fails)
    scheduler.flyball = core.hooks
    with pytest.raises(RuntimeError, match="no step"):
        governed_class(PlainScheduler).schedule(scheduler)
    assert running(core) == ["long"]


def test_a_fault_of_ours_leaves_vllm_its_lists(core: GovernedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    core.add("long", prompt=6000)
    step(core)
    core.add("short", prompt=100)

    write = core.hooks._adapter.write

    def fault(*limits: Any, **more: Any) -> None:
        monkeypatch.setattr(core.hooks._adapter, "write", write)
        raise RuntimeError("ours")

    monkeypatch.setattr(core.hooks._adapter, "write", fault)
    step(core)
    assert not core.hooks.governing
    assert running(core) == ["long"]
    assert [request.request_id for request in core.scheduler.waiting] == ["short"]


def test_one_that_could_not_join_keeps_nobody_waiting(core: GovernedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    core.add("long", prompt=6000)
    core.add("decode", prompt=8, output=500)
    step(core)
    core.add("adapted", prompt=100)
    stuck = core.scheduler.requests["adapted"]
    schedule = core.scheduler.schedule

    def passes_over() -> Any:
        core.scheduler.waiting.remove(stuck)
        output = schedule()
        core.scheduler.waiting.appendleft(stuck)
        return output

    monkeypatch.setattr(core.scheduler, "schedule", passes_over)
    served = [step(core).get("long", 0) for _ in range(34)]
    assert served.count(0) == 2, "a step of each try"


def test_what_might_not_join_parks_nobody_where_nothing_else_runs(core: GovernedCore) -> None:
    core.add("long", prompt=6000)
    step(core)
    core.add("adapted", prompt=100)
    core.scheduler.requests["adapted"].lora_request = object()
    assert step(core) == {"long": 100}


def test_one_that_waits_for_others_is_not_taken_to_stand_still(core: GovernedCore) -> None:
    core.add("long", prompt=6000)
    step(core)
    core.add("short", prompt=300, output=5)
    waited = 0
    while core.scheduler.requests["short"].num_output_tokens < 2:
        served, due = step(core), core.hooks._stalls.due()
        waited += "long" not in served
        assert ("long" in due) <= ("long" in served)
    assert waited >= 2


@pytest.mark.parametrize(
    ("told", "first"), [({"do_remote_decode": True}, "short"), ({"do_remote_prefill": True}, "long")]
)
def test_a_late_prompt_on_a_producer_waits_for_those_on_time_but_not_for_one_that_is_to_be_loaded(
    tmp_path: Path, told: dict[str, bool], first: str
) -> None:
    core = GovernedCore(tmp_path, with_connector(a_scheduler(), consumer=False))
    core.hooks.apply(ordered())
    core.add("long", prompt=6000, output=1)
    step(core)
    core.add("short", prompt=100, output=1)
    core.scheduler.requests["short"].kv_transfer_params = told
    assert step(core) == {first: 100}


def test_nobody_is_parked_while_the_engine_is_paused(core: GovernedCore) -> None:
    core.add("long", prompt=6000)
    step(core)
    core.add("short", prompt=100)
    vars(core.scheduler)["_pause_state"] = 1
    assert step(core) == {"long": 100}


def test_who_waits_for_a_grammar_is_passed_over(core: GovernedCore) -> None:
    core.add("grammar", prompt=60)
    core.scheduler.requests["grammar"].ready = False
    core.scheduler.deferred_waiting.add(core.scheduler.requests["grammar"])
    core.add("long", prompt=3000)
    step(core)
    core.scheduler.finish_requests("grammar")
    assert step(core) == {"long": 100}


def test_what_does_not_fit_into_the_memory_left_is_passed_over(core: GovernedCore) -> None:
    core.scheduler.kv_cache_manager.usage = 0.95
    core.hooks.apply(ordered(2, seconds=50.0))
    core.add("large", prompt=600)
    core.add("small", prompt=90)
    assert next(iter(step(core))) == "small"


def test_of_those_that_wait_as_many_are_looked_at_as_the_step_has_time_for(core: GovernedCore) -> None:
    core.hooks.apply(ordered(2, seconds=50.0))
    for number in range(40):
        core.add(f"r{number}", prompt=30, output=1)
    assert list(step(core)) == ["r0", "r1", "r2", "r3"]
    assert len(core.hooks._order._next) == 4


def test_what_was_passed_over_for_its_share_comes_first_in_the_end(core: GovernedCore) -> None:
    core.hooks.apply(ordered(2, seconds=2.0, late_share=0.5))
    core.scheduler.kv_cache_manager.usage = 0.9
    core.add("large", prompt=4000)
    core.now += SHARED_AFTER
    firsts = []
    for number in range(6):
        core.add(f"small {number}", prompt=90, output=1)
        core.add(f"other {number}", prompt=10, output=1)
        firsts.append(next(iter(step(core))))
    assert firsts[:2] == ["small 0", "small 1"]
    assert "large" in firsts, "nobody else is put before it"


def test_a_session_that_goes_on_is_no_new_prompt(core: GovernedCore) -> None:
    core.add("session", prompt=60, output=50)
    step(core)
    core.hooks.received(PlainRequest("session", num_tokens=60, left=4, max_tokens=4, arrival_time=0))
    assert step(core) == {"session": 1}
    assert core.hooks.governing


def test_nothing_is_kept_of_those_that_left(core: GovernedCore) -> None:
    for number in range(20):
        core.add(f"r{number}", prompt=600)
    step(core)
    for number in range(20):
        core.scheduler.finish_requests(f"r{number}")
    core.add("last", prompt=10, output=1)
    step(core)
    step(core)
    order = core.hooks._order
    kept = order._candidates
    assert (len(order._order), order._starting) == (0, {})
    assert not kept.resuming
    assert not kept._passed_over


def test_decodes_are_first_without_a_setpoint_too(tmp_path: Path) -> None:
    core = a_core(tmp_path, long_prefill_token_threshold=64)
    core.add("long", prompt=3000)
    core.add("short", prompt=8, output=50)
    step(core)
    core.add("next", prompt=8)
    assert list(step(core)) == ["short", "long", "next"]
    assert running(core) == ["short", "long", "next"]
    step(core)
    assert running(core) == ["short", "next", "long"]


class Unturned(PlainQueue):
    """A queue by arrival that nobody can turn."""

    def __getattribute__(self, name: str) -> Any:
        if name == "rotate":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("vllm_config", transferring(consumer=True), "KV connector"),
        ("ec_connector", object(), "encoder cache connector"),
        ("policy", PlainPolicy.PRIORITY, "--scheduling-policy=priority"),
        ("parallel_config", SimpleNamespace(distributed_executor_backend="external_launcher"), "external launcher"),
        ("waiting", [], "FCFSRequestQueue has no extendleft, popleft, rotate"),
        ("waiting", Unturned(), "FCFSRequestQueue has no rotate"),
    ],
)
def test_what_cannot_be_ordered_is_refused_by_name(tmp_path: Path, attribute: str, value: Any, reason: str) -> None:
    scheduler = PlainScheduler()
    core = GovernedCore(tmp_path, scheduler)
    vars(scheduler)[attribute] = value
    core.hooks = type(core.hooks)(scheduler, folder=tmp_path, clock=lambda: core.now)
    unsupported = type(core._reader)(next(tmp_path.glob("core-*.state"))).unsupported
    assert reason in unsupported[OrderKnob.ON_TIME]


@pytest.mark.parametrize(
    ("connector", "consumer", "ordered"),
    [
        ("NixlConnector", False, True),
        ("NixlConnector", True, False),
        # They look for what any engine has left, producers too.
        ("OffloadingConnector", False, False),
        ("LMCacheConnectorV1", False, False),
    ],
)
def test_prompts_are_ordered_where_none_is_loaded(
    tmp_path: Path, connector: str, consumer: bool, ordered: bool
) -> None:
    core = GovernedCore(tmp_path, with_connector(PlainScheduler(), connector, consumer=consumer))
    assert (OrderKnob.ON_TIME not in core._reader.unsupported) is ordered


def test_a_scheduler_that_can_be_ordered_refuses_nothing(core: GovernedCore) -> None:
    assert OrderKnob.ON_TIME not in core._reader.unsupported


@pytest.mark.parametrize(
    "batching",
    [
        Batching(strategy=Static(batch_size=4)),
        Batching(admission_delay_seconds=1.0),
        Batching(no_evict=NoEvict()),
        Batching(policy=SchedulingPolicy.PRIORITY),
    ],
)
def test_two_who_choose_who_is_next_are_refused(batching: Batching) -> None:
    with pytest.raises(ValueError, match=r"on_time: accepted beside it.*got batching\."):
        ordered(batching=batching)


def test_a_limit_on_prompts_lives_with_the_order(tmp_path: Path) -> None:
    core = a_core(tmp_path)
    core.hooks.apply(ordered(batching=Batching(max_concurrent_prefills=1)))
    core.add("long", prompt=6000)
    step(core)
    core.add("short", prompt=60)
    core.add("other", prompt=60)
    while core.scheduler.requests["short"].num_output_tokens == 0:
        step(core)
        assert sum(request.is_prefill_chunk for request in core.scheduler.running) <= 1


@pytest.mark.parametrize(
    ("first", "then"),
    [(["d", "b"], "dbace"), (["a", "b"], "abcde"), (["x", "c"], "cabde"), (["x"], "abcde"), ([], "abcde")],
)
def test_who_is_put_first_passes_the_others_in_their_order(first: list[str], then: str) -> None:
    scheduler = PlainScheduler()
    for name in "abcdex":
        scheduler.add(name, prompt=8)
    elsewhere = scheduler.waiting.pop()
    by_name = {request.request_id: request for request in (*scheduler.waiting, elsewhere)}
    WaitingQueues(scheduler).put_first([by_name[name] for name in first])
    assert "".join(request.request_id for request in scheduler.waiting) == then
