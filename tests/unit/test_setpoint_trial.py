"""A changed policy that rests on little goes to one pod first: when, what the pod has to show, and what comes then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from flyball_engine.contract import ReadBack, Setpoint
from flyball_lab.harness.service_tuners import AWAY, Engines, Harness
from flyball_lab.harness.tuning import limits, signals, step_window
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.engines.client import Address
from flyball_operator.kube.errors import UnavailableError
from flyball_operator.tuning.actuate.setpoint_trial import SetpointTrial, TrialObservation, TrialResult, is_due
from flyball_operator.tuning.actuate.trial_rollout import TrialRollout
from flyball_operator.tuning.observe.signals import Attainment
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.tunables import TUNABLES

TUNED = ConditionType.TUNED
START = (128, 2048)
TRIED = SetpointTrial(pod="uid", name="chat-0", before=Policy(limits=limits(128, 2048)), since=0.0)


def outcome(*shown: TrialObservation, every: float = 5.0) -> str | None:
    """Why the trial failed, empty if it passed, None if it goes on."""
    trial = TRIED
    for number, seen in enumerate(shown):
        found = trial.after(seen, every * number)
        if isinstance(found, TrialResult):
            return found.why
        trial = found
    return None


def working(number: int) -> TrialObservation:
    return TrialObservation(ready=True, confirmed=True, busy=True, steps=100 + number)


def test_a_window_of_steps_under_it_is_enough() -> None:
    windows = int(TUNABLES.window_seconds / 5)
    assert outcome(*(working(n) for n in range(windows))) is None
    assert outcome(*(working(n) for n in range(windows + 1))) == ""


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (TrialObservation(ready=False), "is not Ready any more"),
        (TrialObservation(ready=True, confirmed=True, tripped=True), "tripped"),
        (TrialObservation(ready=True, confirmed=False), "lost it"),
    ],
)
def test_a_pod_that_goes_trips_or_loses_it_ends_it(last: TrialObservation, why: str) -> None:
    assert why in (outcome(working(0), working(1), last) or "")


def test_who_does_not_confirm_or_makes_no_step_is_waited_for_a_minute() -> None:
    patience = int(TUNABLES.trial_seconds / 5)
    silent, still = TrialObservation(ready=True), TrialObservation(ready=True, confirmed=True, busy=True, steps=100)
    for seen, why in ((silent, "did not confirm it"), (still, "made no step under it")):
        assert outcome(*[seen] * patience) is None
        assert why in (outcome(*[seen] * (patience + 1)) or "")


def test_a_pod_that_nobody_asks_anything_shows_nothing_wrong() -> None:
    idle = TrialObservation(ready=True, confirmed=True, steps=100)
    assert outcome(*[idle] * (int(TUNABLES.trial_seconds / 5) + 1)) == ""


@pytest.mark.parametrize(
    ("trusted", "verified", "pods", "live", "due"),
    [
        (False, False, 2, True, True),
        (True, False, 2, True, True),
        (True, True, 2, True, False),
        (False, False, 1, True, False),
        (False, False, 2, False, False),
    ],
)
def test_it_is_for_what_rests_on_little(*, trusted: bool, verified: bool, pods: int, live: bool, due: bool) -> None:
    assert is_due(live=live, trusted=trusted, verified=verified, pods=pods) is due


# In a service's tuner.


def harness(*, works: bool = True) -> Harness:
    """Three pods, of which the first is asked most, or seems to be."""
    made = Harness(engines=Engines("pod-1", "pod-2", "pod-3"))
    made.engines.working = {"pod-1", "pod-2", "pod-3"} if works else set()
    made.engines.running = 1
    return made


async def seconds(harness: Harness, tuner: Any, count: float, *, slower: float = 1.0, **load: float) -> None:
    for _ in range(int(count / 5)):
        window = step_window(start=now() - 15, end=now(), slower=slower)
        await harness.tick(tuner, signals(now(), window=window, **load))


async def until_one_has_it(harness: Harness, tuner: Any) -> list[str]:
    """Tick until some pod has another policy than the start's, which all have before; the pods that have it."""
    if None in harness.engines.held.values():
        await harness.tick(tuner, AWAY)
    for _ in range(40):
        await harness.tick(tuner, signals(now()))
        changed = [uid for uid in harness.engines.held if harness.engines.limits(uid) != START]
        if changed:
            return changed
    raise AssertionError("nothing was changed")


@in_virtual_time
async def test_the_first_policy_of_a_model_goes_to_one_pod_and_then_to_all() -> None:
    story = harness()
    tuner = story.tuner()
    (first,) = await until_one_has_it(story, tuner)
    tried = story.engines.limits(first)
    assert story.condition(TUNED) == ("Unknown", "OnePodFirst")
    assert f"in {first} alone" in story.message(TUNED)
    assert story.service.status.tuning.applied_pods == "1/3"
    await seconds(story, tuner, TUNABLES.window_seconds + 10)
    assert START not in {story.engines.limits(uid) for uid in story.engines.held}
    assert story.service.status.tuning.applied_pods == "3/3"
    await seconds(story, tuner, 60, slower=2.0)
    assert story.condition(TUNED) == ("True", "Applied")
    assert story.engines.limits(first) != tried, "later ones go to all pods at once"
    assert "SetpointTrialFailed" not in story.events


class Unequal(Engines):
    """Engines that have a number of requests each."""

    def __init__(self, **requests: int) -> None:
        super().__init__(*requests)
        self.requests = requests
        self.silent: set[str] = set()

    async def read(self, address: Address) -> ReadBack:
        if address.key in self.silent:
            await asyncio.Future()
        found = await super().read(address)
        cores = tuple(core.model_copy(update={"running": self.requests[address.key]}) for core in found.cores)
        return found.model_copy(update={"cores": cores})


@in_virtual_time
async def test_the_pod_is_chosen_by_what_it_has_now_not_by_what_it_had_a_minute_ago() -> None:
    engines = Unequal(one=8, two=0, three=1)
    story = Harness(engines=engines)
    tuner = story.tuner()
    story.update_pods(tuner)
    await tuner._engine_pods.survey()
    await asyncio.sleep(60)
    engines.requests |= {"one": 0, "two": 5}
    trial_rollout = TrialRollout(tuner._engine_pods, now, verified=False)
    await trial_rollout.begin(None, Policy(limits=limits(*START)), live=True, trusted=False)
    assert trial_rollout.pod == "two"


@in_virtual_time
async def test_a_pod_that_does_not_answer_now_is_not_chosen_by_what_it_had() -> None:
    engines = Unequal(one=8, two=1)
    story = Harness(engines=engines)
    tuner = story.tuner()
    story.update_pods(tuner)
    await tuner._engine_pods.survey()
    await asyncio.sleep(60)
    engines.silent.add("one")
    trial_rollout = TrialRollout(tuner._engine_pods, now, verified=False)
    await trial_rollout.begin(None, Policy(limits=limits(*START)), live=True, trusted=False)
    assert trial_rollout.pod == "two"
    await tuner._engine_pods.close()


@in_virtual_time
async def test_what_was_tried_before_there_was_a_model_says_nothing_of_the_first_policy_after_it() -> None:
    story = harness()
    tuner = story.tuner()
    story.update_pods(tuner)
    engine_pods = tuner._engine_pods
    await engine_pods.survey()
    trial_rollout = TrialRollout(engine_pods, now, verified=False)
    left = Policy(limits=limits(128, 2048))
    await trial_rollout.begin(None, left, live=True, trusted=False)
    tried = Setpoint(service="s1", epoch=1, generation=1, limits=limits(8, 256))
    await engine_pods.push(tried)
    for _ in range(int(TUNABLES.window_seconds / 5) + 2):
        trial_rollout.check(tried, trusted=True)
        await asyncio.sleep(5)
        await engine_pods.survey()
    assert trial_rollout.pod is None, "it has passed"
    await trial_rollout.begin(tried, left, live=True, trusted=True)
    assert trial_rollout.pod is not None


@in_virtual_time
async def test_where_its_watchdog_trips_it_is_undone_held_and_told() -> None:
    story = harness()
    tuner = story.tuner()
    (first,) = await until_one_has_it(story, tuner)
    story.engines.trip(first)
    await seconds(story, tuner, 20)
    assert {story.engines.limits(uid) for uid in story.engines.held} == {START}
    assert story.service.status.tuning.applied_pods == "3/3"
    newest = story.service.status.tuning.decisions[0]
    assert newest.trigger == f"the watchdog of {first} tripped: what it alone was given is undone, held for 300 s"
    assert story.events.count("SetpointTrialFailed") == 1
    await seconds(story, tuner, TUNABLES.rollback_hold - 40)
    assert {story.engines.limits(uid) for uid in story.engines.held} == {START}
    (again,) = await until_one_has_it(story, tuner)
    assert story.condition(TUNED) == ("Unknown", "OnePodFirst"), again


@in_virtual_time
async def test_where_its_engine_restarts_it_is_undone_and_held() -> None:
    story = harness()
    tuner = story.tuner()
    (first,) = await until_one_has_it(story, tuner)
    story.engines.restart(first)
    await seconds(story, tuner, 10)
    story.engines.starting.clear()
    await seconds(story, tuner, 10)
    assert {story.engines.limits(uid) for uid in story.engines.held} == {START}
    assert story.service.status.tuning.applied_pods == "3/3", "the restarted one was given what the others have"
    assert story.service.status.tuning.decisions[0].trigger.startswith(f"{first} is not Ready any more: ")
    assert story.events.count("SetpointTrialFailed") == 1


@in_virtual_time
async def test_another_engine_that_restarts_meanwhile_gets_what_it_had_and_the_trial_goes_on() -> None:
    story = harness()
    tuner = story.tuner()
    (first,) = await until_one_has_it(story, tuner)
    other = next(uid for uid in story.engines.held if uid != first)
    had = story.held(other).generation
    story.engines.restart(other)
    story.engines.starting.clear()
    await seconds(story, tuner, 5)
    assert story.held(other).generation == had
    assert story.engines.limits(first) != START
    assert story.condition(TUNED) == ("Unknown", "OnePodFirst")
    await seconds(story, tuner, TUNABLES.window_seconds + 10)
    assert story.service.status.tuning.applied_pods == "3/3"
    assert "SetpointTrialFailed" not in story.events


@in_virtual_time
async def test_a_new_leader_holds_as_long_and_tries_the_next_change_in_one_pod_again() -> None:
    story = harness()
    tuner = story.tuner()
    (first,) = await until_one_has_it(story, tuner)
    story.engines.trip(first)
    await seconds(story, tuner, 20)
    story.epoch += 1
    successor = story.tuner()
    await seconds(story, successor, TUNABLES.rollback_hold - 60)
    assert {story.engines.limits(uid) for uid in story.engines.held} == {START}
    await until_one_has_it(story, successor)
    assert story.condition(TUNED) == ("Unknown", "OnePodFirst")


@in_virtual_time
async def test_while_what_failed_cannot_be_taken_back_in_status_it_stays_where_it_is() -> None:
    story = harness()
    tuner = story.tuner()
    (first,) = await until_one_has_it(story, tuner)
    story.engines.trip(first)
    story.api_away = True
    for _ in range(4):
        story.update_pods(tuner)
        with suppress(UnavailableError):
            await tuner.tick(signals(now()), Attainment())
        for _ in range(5):
            await asyncio.sleep(1.0)
            story.update_pods(tuner)
            await tuner.keep()
    assert {story.engines.limits(uid) for uid in story.engines.held if uid != first} == {START}
    story.api_away = False
    await seconds(story, tuner, 10)
    assert {story.engines.limits(uid) for uid in story.engines.held} == {START}
    assert len({story.held(uid).generation for uid in story.engines.held}) == 1
    assert "is undone" in story.service.status.tuning.decisions[0].trigger
    assert story.condition(TUNED)[1] != "OnePodFirst"


@in_virtual_time
async def test_what_a_pod_says_of_a_trip_under_an_older_setpoint_is_none_of_this_one() -> None:
    story = harness()
    tuner = story.tuner()
    (first,) = await until_one_has_it(story, tuner)
    story.engines.trip(first)
    await tuner._engine_pods.survey()
    older = story.held(first)
    assert tuner._engine_pods.observe_trial(first, older).tripped
    assert not tuner._engine_pods.observe_trial(
        first, older.model_copy(update={"generation": older.generation + 1})
    ).tripped


@in_virtual_time
async def test_what_pods_are_to_begin_with_all_have_at_once() -> None:
    story = harness()
    story.sheds()
    tuner = story.tuner()
    await story.tick(tuner, AWAY)
    assert {story.engines.limits(uid) for uid in story.engines.held} == {(128, TUNABLES.first_tokens)}
    assert story.condition(TUNED)[1] != "OnePodFirst"


@in_virtual_time
async def test_a_pod_that_makes_no_step_under_it_keeps_it_from_the_others() -> None:
    story = harness(works=False)
    tuner = story.tuner()
    await until_one_has_it(story, tuner)
    await seconds(story, tuner, TUNABLES.trial_seconds + 20)
    assert {story.engines.limits(uid) for uid in story.engines.held} == {START}
    assert "made no step under it" in story.service.status.tuning.decisions[0].trigger


@in_virtual_time
async def test_a_pod_that_comes_meanwhile_gets_what_the_others_have() -> None:
    story = harness()
    tuner = story.tuner()
    await until_one_has_it(story, tuner)
    story.engines.held["pod-4"] = None
    await seconds(story, tuner, 5)
    assert story.engines.limits("pod-4") == START
    assert story.held("pod-4").generation == story.held("pod-3").generation


@in_virtual_time
async def test_what_a_user_asks_for_waits_for_no_trial() -> None:
    story = harness()
    tuner = story.tuner()
    await until_one_has_it(story, tuner)
    story.edit(tuning={"mode": "Auto", "bounds": {"maxNumActiveSeqs": {"max": 6}}})
    story.update_pods(tuner)
    await tuner.keep()
    assert {story.engines.limits(uid)[0] for uid in story.engines.held} == {6}


@in_virtual_time
async def test_a_user_who_turns_tuning_on_has_all_pods_tuned_at_once() -> None:
    story = harness()
    story.edit(tuning={"mode": "Recommend"})
    tuner = story.tuner()
    await seconds(story, tuner, 60)
    assert {story.engines.limits(uid) for uid in story.engines.held} == {START}
    story.edit(tuning={"mode": "Auto"})
    await seconds(story, tuner, 5)
    assert START not in {story.engines.limits(uid) for uid in story.engines.held}
    for _ in range(20):
        await seconds(story, tuner, 5, slower=2.0)
        assert story.condition(TUNED)[1] != "OnePodFirst"


@in_virtual_time
async def test_paused_in_the_middle_each_pod_keeps_what_it_has() -> None:
    story = harness()
    tuner = story.tuner()
    (first,) = await until_one_has_it(story, tuner)
    held = {uid: story.held(uid).generation for uid in story.engines.held}
    story.annotate(tuning="Paused")
    await seconds(story, tuner, 180)
    assert {uid: story.held(uid).generation for uid in story.engines.held} == held
    assert story.condition(ConditionType.CAPACITY_SUFFICIENT) == ("True", "Sufficient"), "what is seen goes on"
    story.annotate()
    await seconds(story, tuner, 30)
    assert len({story.held(uid).generation for uid in story.engines.held}) == 1, first


@in_virtual_time
async def test_paused_in_the_middle_each_pod_keeps_what_it_has_under_the_next_leader_too() -> None:
    story = harness()
    tuner = story.tuner()
    (first,) = await until_one_has_it(story, tuner)
    story.annotate(tuning="Paused")
    await seconds(story, tuner, 30)
    limited = {uid: story.engines.limits(uid) for uid in story.engines.held}
    story.epoch = 2
    again = story.tuner()
    await seconds(story, again, 180)
    assert {uid: story.engines.limits(uid) for uid in story.engines.held} == limited
    story.engines.held["pod-2"] = None
    await seconds(story, again, 30)
    assert story.engines.limits("pod-2") == limited["pod-2"]
    story.annotate()
    await seconds(story, again, 30)
    assert len({story.held(uid).generation for uid in story.engines.held}) == 1, first


@in_virtual_time
async def test_paused_in_the_middle_the_law_goes_on_as_a_shadow() -> None:
    story = harness()
    tuner = story.tuner()
    await until_one_has_it(story, tuner)
    story.annotate(tuning="Paused")
    await seconds(story, tuner, 30)
    before = story.service.status.tuning.recommended
    await seconds(story, tuner, 240, slower=3.0)
    assert story.service.status.tuning.recommended != before


@in_virtual_time
async def test_who_wants_recommendations_alone_does_not_get_to_all_pods_what_one_was_to_try() -> None:
    story = harness()
    tuner = story.tuner()
    await until_one_has_it(story, tuner)
    story.edit(tuning={"mode": "Recommend"})
    await seconds(story, tuner, 30)
    assert {story.engines.limits(uid) for uid in story.engines.held} == {START}
    assert len({story.held(uid).generation for uid in story.engines.held}) == 1


@in_virtual_time
async def test_one_pod_needs_no_trial() -> None:
    story = Harness()
    tuner = story.tuner()
    await until_one_has_it(story, tuner)
    assert story.condition(TUNED)[1] != "OnePodFirst"


@in_virtual_time
async def test_a_new_leader_that_finds_a_model_and_a_policy_tries_nothing_out() -> None:
    story = harness()
    tuner = story.tuner()
    await seconds(story, tuner, 240)
    assert story.condition(TUNED) == ("True", "Applied")
    story.epoch = 2
    again, held = story.tuner(), story.engines.limits()
    for _ in range(20):
        await seconds(story, again, 5, slower=2.0)
        assert story.condition(TUNED)[1] != "OnePodFirst"
    assert story.engines.limits() != held
