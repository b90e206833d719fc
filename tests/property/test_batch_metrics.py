"""Batch metrics beside a count by hand over any course of requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.batching.batch_metrics import BatchMetrics, batch_counts
from flyball_engine.batching.step_statistics import Occupancy, Step

SLOTS = 6


@dataclass
class Job:
    name: int
    prompt: int
    output: int
    arrived: float
    made: int = 0
    batch: int = 0


@dataclass
class Play:
    """Requests through a queue and some slots, step by step; `admissions` are kept to be grouped by hand."""

    whole: bool
    metrics: BatchMetrics = field(default_factory=lambda: BatchMetrics(SLOTS))
    now: float = 0.0
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    admissions: list[Job | None] = field(default_factory=list)
    """None where nothing ran."""
    waited: float = 0.0
    left: int = 0
    steps: int = 0

    def arrive(self, name: int, prompt: int, output: int) -> None:
        self.waiting.append(Job(name, prompt, output, self.now))
        self.metrics.arrived(name, self.now)

    def leave(self, position: int) -> None:
        """A client goes, of a request that waits or runs."""
        every = [*self.waiting, *self.running]
        if not every:
            return
        job = every[position % len(every)]
        if job in self.waiting:
            self.waiting.remove(job)
            self.left += 1
        else:
            self.running.remove(job)
        self._end(job)

    def step(self, seconds: float) -> None:
        room = 0 if self.whole and self.running else SLOTS - len(self.running)
        joining, self.waiting = self.waiting[:room], self.waiting[room:]
        self.running += joining
        for job in joining:
            job.batch = len(self.running)
            self.waited += self.now - job.arrived
        self.admissions += joining
        self.metrics.admitted(
            [(job.name, job.prompt) for job in joining], running=len(self.running), whole=self.whole, now=self.now
        )
        if not self.running:
            return
        self.steps += 1
        size = len(self.running)
        self.now += seconds
        occupancy = Occupancy(requests=size, running=size, active=SLOTS)
        self.metrics.stepped(Step(size, 0, size, 0, 0.0, occupancy), seconds=seconds)
        for job in list(self.running):
            job.made += 1
            if job.made == job.output:
                self.running.remove(job)
                self._end(job)

    def cohorts(self) -> Iterator[list[Job]]:
        """By hand, from the order of admission."""
        members: list[Job] = []
        for job in [*self.admissions, None]:
            if members and (job is None or (not self.whole and len(members) == members[0].batch)):
                yield members
                members = []
            if job is not None:
                members.append(job)

    def _end(self, job: Job) -> None:
        self.metrics.ended(job.name, job.made, self.now)
        if not self.running:
            self.admissions.append(None)


events = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 50), st.integers(1, 8)),
        st.tuples(st.just("step"), st.floats(0.001, 1.0), st.none()),
        st.tuples(st.just("leave"), st.integers(0, 20), st.none()),
    ),
    max_size=80,
)


@given(events, st.booleans())
def test_counts_are_those_by_hand(course: list[tuple[str, float, int | None]], whole: bool) -> None:
    play = Play(whole)
    for number, (what, first, second) in enumerate(course):
        if what == "arrive":
            play.arrive(number, int(first), second or 1)
        elif what == "leave":
            play.leave(int(first))
        else:
            play.step(first)
    oldest = min((job.arrived for job in play.waiting), default=play.now)
    assert play.metrics.oldest_seconds(play.now) == play.now - oldest
    while play.waiting or play.running:
        play.step(0.1)
    counts = batch_counts(play.metrics.sums)
    cohorts = list(play.cohorts())
    jobs = [job for cohort in cohorts for job in cohort]
    assert (counts.cohorts, counts.cohort_requests) == (len(cohorts), len(jobs))
    assert counts.cohort_outputs == counts.decode_tokens == sum(job.made for job in jobs)
    assert counts.cohort_prompts == sum(job.prompt for job in jobs)
    assert counts.cohort_outputs_padded == sum(len(one) * max(job.made for job in one) for one in cohorts)
    assert counts.cohort_prompts_padded == sum(len(one) * max(job.prompt for job in one) for one in cohorts)
    assert (counts.admitted, counts.left) == (len(jobs), play.left)
    assert abs(counts.admitted_seconds - play.waited) < 1e-6
    assert sum(counts.steps) == play.steps
    assert counts.step_requests == counts.decode_tokens
    assert abs(counts.slots_used + counts.slots_free - SLOTS * play.now) < 1e-6
    assert play.metrics._members == {}, "nothing is kept of requests that are gone"
