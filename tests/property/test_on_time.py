"""Of any queue: as many are on time as can be, nobody is lost, nobody starves."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flyball_engine.batching.on_time import OnTimeOrder
from flyball_engine.batching.pending import Pending
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.batching.shares import SHARED_AFTER
from flyball_engine.batching.step_order import step_order

RATE = PrefillRate(per_token=1.0)
#: Deadline and tokens: whole numbers, so that sums are exact.
JOBS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), max_size=8)


def order_of(jobs: list[tuple[int, int]], **shared: Any) -> OnTimeOrder[int]:
    order: OnTimeOrder[int] = OnTimeOrder(late_share=0.1)
    for number, (deadline, tokens) in enumerate(jobs):
        order.add(number, arrived=0.0, deadline=float(deadline), tokens=float(tokens), **shared)
    return order


def is_on_time(jobs: list[tuple[int, int]]) -> bool:
    """Whether all are, taken by deadline."""
    busy = 0
    for deadline, tokens in sorted(jobs):
        busy += tokens
        if busy > deadline:
            return False
    return True


@given(JOBS, st.integers(1, 5))
def test_no_larger_set_is_on_time(jobs: list[tuple[int, int]], part: int) -> None:
    order = order_of(jobs)
    for _ in range(len(jobs) // part + 1):
        order.judge(RATE, 0.0, most=part)
    taken = len(jobs) - order.behind()
    kept = [jobs[pending.request] for pending in order.in_order() if pending.on_time]
    assert is_on_time(kept)
    assert not any(is_on_time(list(more)) for more in combinations(jobs, taken + 1))


@given(JOBS)
def test_those_on_time_come_by_deadline_and_the_others_as_they_came(jobs: list[tuple[int, int]]) -> None:
    order = order_of(jobs)
    order.judge(RATE, 0.0)
    shown = list(order.in_order())
    assert sorted(pending.request for pending in shown) == list(range(len(jobs))), "each once"
    assert [pending.rank() for pending in shown] == sorted(pending.rank() for pending in shown)


@given(JOBS)
def test_to_look_again_changes_nothing(jobs: list[tuple[int, int]]) -> None:
    order = order_of(jobs)
    order.judge(RATE, 0.0)
    before = [pending.request for pending in order.in_order()]
    order.judge(RATE, 0.0)
    assert [pending.request for pending in order.in_order()] == before


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=6),
    st.integers(5, 60),
    st.sampled_from([0.05, 0.1, 0.5]),
)
@settings(deadline=None)
def test_nobody_starves_however_many_come_that_can_be_on_time(sizes: list[int], step: int, share: float) -> None:
    order: OnTimeOrder[str] = OnTimeOrder(late_share=share)
    left = {f"late {number}": size for number, size in enumerate(sizes)}
    for name, size in left.items():
        order.add(name, arrived=0.0, deadline=0.5, tokens=float(size))
    most_steps = int(sum(sizes) / (share * step)) + len(sizes) * (int(2 / share) + 2)
    for number in range(most_steps):
        # There is always one that can be on time and takes the whole step.
        order.add(f"good {number}", arrived=0.0, deadline=1e9, tokens=float(step))
        order.judge(RATE, 1.0, most=10_000)
        first = next(order.in_order()).request
        tokens = min(step, left.get(first, step))
        order.served(tokens=step, behind={"": tokens if first in left else 0}, most=step, now=SHARED_AFTER)
        if first not in left:
            order.started(first, 2.0)
            continue
        left[first] -= tokens
        order.progressed(first, tokens=float(left[first]), attention=0.0)
        if not left[first]:
            order.started(first, 2.0)
            del left[first]
    assert not left


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    jobs = draw(JOBS)
    begun = draw(st.lists(st.integers(0, max(0, len(jobs) - 1)), unique=True, max_size=len(jobs)))
    return {
        "jobs": jobs,
        "begun": begun,
        "tokens": draw(st.integers(0, 60)),
        "slots": draw(st.integers(0, 5)),
        "least_cap": draw(st.integers(1, 30)),
    }


@given(steps())
def test_a_step_serves_the_first_first(drawn: dict[str, Any]) -> None:
    jobs, slots, cap = drawn["jobs"], drawn["slots"], drawn["least_cap"]
    order = order_of(jobs)
    order.judge(RATE, 0.0)
    in_order = [pending.request for pending in order.in_order()]
    begun = [request for request in in_order if request in drawn["begun"]]
    told = step_order(order.in_order(), begun, tokens=drawn["tokens"], slots=slots, most=64, least_cap=cap)
    assert sorted(told.running + told.parked) == sorted(begun), "none is lost, none doubled"
    assert not set(told.joining) & set(begun)
    assert len(told.joining) <= slots
    assert told.threshold == 0 or told.threshold >= cap
    assert bool(told.parked) <= bool(told.joining)
    # What vLLM then makes of it: running first, then who joins, each up to the cap.
    left, served = drawn["tokens"], {}
    for request in (*told.running, *told.joining):
        served[request] = min(left, jobs[request][1], told.threshold or left)
        left -= served[request]
    is_short = False
    for number, request in enumerate(one for one in in_order if one in served):
        if number == 0:
            assert served[request] == min(jobs[request][1], drawn["tokens"])
        # Only a cap cuts one and leaves another something.
        assert not (is_short and served[request]) or told.threshold
        is_short = is_short or served[request] < jobs[request][1]


class Orders(RuleBasedStateMachine):
    """Requests come, are served, are preempted and leave, while the queue is judged in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.order: OnTimeOrder[int] = OnTimeOrder(late_share=0.1)
        self.there: set[int] = set()
        self.now = 0.0
        self.added = 0

    @rule(patience=st.floats(0.1, 50.0) | st.just(float("inf")), tokens=st.integers(1, 30))
    def come(self, patience: float, tokens: int) -> None:
        deadline, of_class = self.now + patience, ("", "a", "b")[self.added % 3]
        self.order.add(self.added, arrived=self.now, deadline=deadline, tokens=float(tokens), of_class=of_class)
        self.there.add(self.added)
        self.added += 1

    @precondition(lambda self: self.there)
    @rule(data=st.data(), begun=st.booleans(), tokens=st.integers(1, 30))
    def progress(self, data: st.DataObject, begun: bool, tokens: int) -> None:
        request = data.draw(st.sampled_from(sorted(self.there)))
        self.order.progressed(request, tokens=float(tokens), attention=0.0, begun=begun)

    @precondition(lambda self: self.there)
    @rule(data=st.data(), starts=st.booleans())
    def leave(self, data: st.DataObject, starts: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.there)))
        if starts:
            self.order.started(request, self.now)
        else:
            self.order.discard(request)
        self.there.discard(request)

    @rule(seconds=st.floats(0.0, 20.0), most=st.integers(1, 5), per_slot=st.sampled_from([0.0, 3.0]))
    def judge(self, seconds: float, most: int, per_slot: float) -> None:
        self.now += seconds
        self.order.judge(PrefillRate(per_token=1.0, free_slots=1, per_slot=per_slot), self.now, most=most)

    @rule(seconds=st.floats(-5.0, 5.0), batch=st.sampled_from(["", "a", "b"]))
    def redate(self, seconds: float, batch: str) -> None:
        """One class has no deadline any more, or has one again."""

        def due(one: Pending[int]) -> tuple[float, float]:
            return float("inf") if one.of_class == batch else one.arrived + 10.0 + seconds, 1.0

        self.order.redate(due)

    @rule(share=st.sampled_from([0.0, 0.1]), of_class=st.sampled_from([0.0, 0.3]))
    def keep(self, share: float, of_class: float) -> None:
        self.order.keep(share, {"a": of_class} if of_class else {})

    @rule(tokens=st.integers(0, 50), share=st.floats(0.0, 1.0), now=st.floats(0.0, 2 * SHARED_AFTER))
    def serve(self, tokens: int, share: float, now: float) -> None:
        self.order.served(tokens=tokens, behind={"a": int(tokens * share)}, most=50, now=now)

    @invariant()
    def each_is_in_the_order_once(self) -> None:
        shown = list(self.order.in_order())
        assert sorted(pending.request for pending in shown) == sorted(self.there)
        assert self.order.behind() == sum(not pending.on_time for pending in shown)
        assert len(self.order) == len(self.there)

    @invariant()
    def all_but_the_owed_one_are_in_order(self) -> None:
        ranks = [pending.rank() for pending in self.order.in_order() if pending is not self.order.owed]
        assert ranks == sorted(ranks)


TestOrders = Orders.TestCase
