"""Whatever happens in whatever order, every request is counted once and the ledger stays small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.batching.outcomes import End
from flyball_engine.contract import ObjectiveSpec
from support.requests import E2E, GAP, TPOT, TTFT, Client, Story

CAPACITY = 5
OBJECTIVES = st.lists(st.sampled_from([TTFT, TPOT, GAP, E2E]), min_size=1, max_size=4, unique=True)


@dataclass(frozen=True)
class Event:
    """One thing that happens to one of the clients there are, `wait` seconds after the thing before it."""

    kind: str
    whom: int
    which: int
    wait: float


EVENTS = st.lists(
    st.builds(
        Event,
        kind=st.sampled_from(
            ["arrives", "reaches", "gets", "gets", "gets", "ends", "fails", "left", "answered", "refused"]
        ),
        whom=st.integers(0, 7),
        which=st.integers(0, 3),
        wait=st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.4, 2.0]),
    ),
    max_size=120,
)


def play(
    story: Story, events: list[Event], after_each: Callable[[float], None], clients: list[Client] | None = None
) -> list[Client]:
    """Lets the events happen to the `clients`; those that make no sense for their client do not."""
    clients = [] if clients is None else clients
    now = 0.0
    for event in events:
        now += event.wait
        if event.kind == "arrives" or not clients:
            clients.append(story.arrives(now))
        else:
            happen(clients[event.whom % len(clients)], event, now)
        after_each(now)
    return clients


def happen(client: Client, event: Event, now: float) -> None:
    closing = {"left": End.LEFT, "answered": End.ANSWERED, "refused": End.REFUSED}
    if event.kind in closing:
        client.closes(closing[event.kind], now)
    elif event.kind == "reaches":
        if client.request.open or client.sequences:  # an answer that is over makes no first sequence
            client.reaches_engine()
    elif running := [number for number, one in enumerate(client.sequences) if not one.done]:
        which = running[event.which % len(running)]
        if event.kind == "gets":
            client.gets(now, of=which, tokens=1 + event.which)
        else:
            client.ends(now, of=which, failed=event.kind == "fails")


@given(events=EVENTS, objectives=OBJECTIVES)
def test_each_request_has_one_outcome_and_only_finished_and_abandoned_ones_a_verdict(
    events: list[Event], objectives: list[ObjectiveSpec]
) -> None:
    story = Story(*objectives)
    clients = play(story, events, lambda _: None)
    for client in clients:
        for number, sequence in enumerate(client.sequences):
            if not sequence.done:
                client.ends(1e6, of=number)
        client.closes(End.ANSWERED, 1e6)
    requests = story.counts.requests
    may_be_none_that_generates = sum(not client.sequences for client in clients)
    assert len(clients) - may_be_none_that_generates <= sum(requests.values()) <= len(clients)
    assert not any(client.request.open for client in clients)
    together, ended = sum(story.counts.all_objectives.values()), requests["finished"] + requests["abandoned"]
    assert ended <= together <= ended + requests["aborted"]


@given(events=EVENTS, objectives=OBJECTIVES)
def test_no_objective_but_gaps_counts_more_requests_than_have_a_verdict(
    events: list[Event], objectives: list[ObjectiveSpec]
) -> None:
    story = Story(*objectives)
    play(story, events, lambda _: None)
    counts = story.counts
    judged = sum(counts.requests[outcome] for outcome in ("finished", "abandoned", "aborted"))
    for objective in objectives:
        if objective is not GAP:
            assert counts.objectives[objective.id, "met"] + counts.objectives[objective.id, "violated"] <= judged


@given(events=EVENTS, objectives=OBJECTIVES)
def test_at_any_time_it_is_certain_of_open_requests_behind_their_deadline_what_they_meet(
    events: list[Event], objectives: list[ObjectiveSpec]
) -> None:
    story = Story(*objectives)
    clients: list[Client] = []

    def check(now: float) -> None:
        there = [one.request for one in clients if one.request.open and one.sequences]
        took = {
            TTFT: lambda one: (now if one.first_token is None else one.first_token) - one.arrival,
            E2E: lambda one: (one.last_end if one.complete() else now) - one.arrival,
        }
        expected: Counter[tuple[str, str]] = Counter()
        for objective in objectives:
            for one in there if objective in took else ():
                if now - one.arrival > objective.threshold_seconds:
                    met = took[objective](one) <= objective.threshold_seconds
                    expected[objective.id, "met" if met else "violated"] += 1
        found = story.ledger.collect(now).open_objectives
        assert {key: count for key, count in found.items() if count} == dict(expected)

    play(story, events, check, clients)


@given(events=EVENTS, objectives=OBJECTIVES)
def test_counts_only_grow_and_open_requests_stay_within_the_capacity(
    events: list[Event], objectives: list[ObjectiveSpec]
) -> None:
    story = Story(*objectives, capacity=CAPACITY)
    before = story.counts

    def check(_: float) -> None:
        nonlocal before
        after = story.counts
        assert all(after.requests[outcome] >= count for outcome, count in before.requests.items())
        assert all(after.objectives[key] >= count for key, count in before.objectives.items())
        before = after

    clients = play(story, events, check)
    assert sum(client.request.open for client in clients) <= CAPACITY
