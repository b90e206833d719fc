"""The queue of services: each once, one worker per service, failures further and further apart."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from flyball_lab.harness.virtual_time import run
from flyball_operator.reconcile.queue import FIRST_RETRY_SECONDS, JITTER, LONGEST_RETRY_SECONDS, KeyQueue, Schedule


def schedule(jitter: float = 0.5) -> Schedule[str]:
    return Schedule(lambda: jitter)


def test_many_changes_of_one_service_are_one_look() -> None:
    waiting = schedule()
    for _ in range(100):
        waiting.add("chat", 0.0)
    assert waiting.take(0.0) == "chat"
    assert waiting.take(0.0) is None


def test_a_service_is_never_worked_on_twice_at_once_and_no_change_is_lost() -> None:
    waiting = schedule()
    waiting.add("chat", 0.0)
    assert waiting.take(0.0) == "chat"
    waiting.add("chat", 1.0)
    assert waiting.take(1.0) is None
    waiting.done("chat")
    assert waiting.take(1.0) == "chat"


def test_the_longest_due_comes_first() -> None:
    waiting = schedule()
    for number, key in enumerate("abc"):
        waiting.add(key, 0.0, delay=3.0 - number)
    assert [waiting.take(10.0) for _ in range(3)] == ["c", "b", "a"]


def test_failures_are_tried_further_and_further_apart_up_to_a_limit() -> None:
    waiting = schedule()
    delays = [waiting.failed("chat", 0.0) for _ in range(20)]
    assert delays[:3] == [FIRST_RETRY_SECONDS, 2 * FIRST_RETRY_SECONDS, 4 * FIRST_RETRY_SECONDS]
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_RETRY_SECONDS
    assert schedule(jitter=0.0).failed("chat", 0.0) == FIRST_RETRY_SECONDS * (1 - JITTER)


def test_events_do_not_shorten_the_wait_after_a_failure_but_a_new_generation_does() -> None:
    waiting = schedule()
    waiting.failed("chat", 0.0)
    waiting.add("chat", 0.1)
    assert waiting.take(0.1) is None
    waiting.urge("chat", 0.1)
    assert waiting.take(0.1) == "chat"
    assert waiting.failed("chat", 0.1) == FIRST_RETRY_SECONDS


def test_success_forgets_failures() -> None:
    waiting = schedule()
    for _ in range(5):
        waiting.failed("chat", 0.0)
    waiting.succeeded("chat")
    assert waiting.failed("chat", 0.0) == FIRST_RETRY_SECONDS


def test_a_worker_waits_until_something_is_due_and_ends_are_noticed() -> None:
    async def story() -> None:
        clock = asyncio.get_running_loop().time
        queue: KeyQueue[str] = KeyQueue(clock=clock, jitter=lambda: 0.5)
        began = clock()
        queue.add("later", 30.0)
        taken = asyncio.create_task(queue.get())
        await asyncio.sleep(1)
        queue.add("now")
        assert await taken == "now"
        assert clock() - began < 2
        idle = asyncio.create_task(queue.idle())
        await asyncio.sleep(1)
        assert not idle.done()
        queue.done("now")
        await idle
        assert await queue.get() == "later"
        assert clock() - began >= 30

    run(story())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "urge", "failed", "take"])), max_size=60))
def test_whatever_happens_no_key_is_taken_twice_and_none_that_was_added_is_forgotten(
    steps: list[tuple[str, str]],
) -> None:
    waiting = schedule()
    active: set[str] = set()
    owed: set[str] = set()
    for now, (key, step) in enumerate(steps):
        if step == "take":
            taken = waiting.take(float(now))
            if taken is not None:
                assert taken not in active
                active.add(taken)
                owed.discard(taken)
        elif step == "failed":
            if key in active:
                waiting.failed(key, float(now))
                waiting.done(key)
                active.discard(key)
                owed.add(key)
        else:
            getattr(waiting, step)(key, float(now))
            owed.add(key)
    for key in active:
        waiting.done(key)
    left = {waiting.take(1e6) for _ in range(4)}
    assert owed <= left


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "urge", "take", "done", "failed"]), st.sampled_from("abcd"), st.integers(0, 400)
        ),
        max_size=300,
    )
)
def test_what_is_taken_is_what_a_look_at_all_keys_would_take(steps: list[tuple[str, str, int]]) -> None:
    waiting, now = schedule(), 0.0
    due: dict[str, float] = {}
    active: set[str] = set()
    failed: set[str] = set()
    for number, (step, key, delay) in enumerate(steps):
        # No two keys are ever due at the same time.
        now += 1.0 + number / 1000
        if step == "add":
            waiting.add(key, now, delay)
            if not (key in failed and key in due):
                due[key] = min(due.get(key, float("inf")), now + delay)
        elif step == "urge":
            waiting.urge(key, now)
            failed.discard(key)
            due[key] = now
        elif step == "done":
            waiting.done(key)
            active.discard(key)
        elif step == "failed":
            due[key] = now + waiting.failed(key, now)
            failed.add(key)
        else:
            ready = [one for one in due if due[one] <= now and one not in active]
            expected = min(ready, key=due.__getitem__, default=None)
            assert waiting.take(now) == expected
            if expected is not None:
                del due[expected]
                active.add(expected)
        idle = [due[one] for one in due if one not in active]
        assert waiting.wait(now) == (max(0.0, min(idle) - now) if idle else None)
        assert (len(waiting), waiting.active) == (len(due), len(active))
