"""A queue and a made-up engine around the pure strategies: what is admitted runs for as many steps as it has tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flyball_engine.batching.strategies import BatchDecision, SchedulerState, Waiting, decide
from flyball_engine.knobs import Batching


@dataclass
class Job:
    """A request: its prompt, and the steps it runs for."""

    name: str
    prompt: int
    output: int
    arrived: float
    steps: int = 0


@dataclass
class Bench:
    """Admits by a strategy, at most `slots` at once and `per_step` in one step; KV cache is counted to each end."""

    batching: Batching
    slots: int = 16
    per_step: int = 100
    kv: int = 10_000
    now: float = 0.0
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    preempted: list[Job] = field(default_factory=list)
    called: tuple[str, ...] = ()
    added: int = 0
    decision: BatchDecision | None = None

    def add(self, *prompts: int, output: int = 3) -> None:
        """Requests with these prompts enter the queue."""
        for prompt in prompts:
            self.waiting.append(Job(f"r{self.added}", prompt, output, self.now))
            self.added += 1

    def switch(self, batching: Batching) -> None:
        """Another strategy holds from the next step on."""
        if batching != self.batching:
            self.batching, self.called = batching, ()

    def step(self, *, seconds: float = 0.01) -> list[Job]:
        """Decide, admit, run; returns who joined for the first time."""
        decision = self.decision = decide(self.batching, self.called, self._scene())
        self.called = decision.called
        room = min(decision.most, self.per_step)
        resumed, self.preempted = self.preempted[:room], self.preempted[room:]
        names = decision.admit
        chosen = [job.name for job in self.waiting] if names is None else names
        by_name = {job.name: job for job in self.waiting}
        joined = [by_name[name] for name in chosen][: room - len(resumed)]
        self.waiting = [job for job in self.waiting if job not in joined]
        self.running += resumed + joined
        self._run()
        self.now += seconds
        return joined

    def batches(self) -> Iterator[list[Job]]:
        """Everything that waits, run to its end: who joined, between two moments in which nothing ran."""
        batch: list[Job] = []
        for _ in range(10_000):
            was_idle = not self.running
            joined = self.step()
            if was_idle and batch:
                yield batch
                batch = []
            batch += joined
            if not self.waiting and not self.running:
                yield batch
                return
        raise AssertionError(f"{len(self.waiting)} wait for ever under {self.batching}")

    def preempt(self) -> None:
        """The newest makes room."""
        self.preempted.insert(0, self.running.pop())

    def _run(self) -> None:
        for job in self.running:
            job.steps += 1
        self.running = [job for job in self.running if job.steps < job.output]

    def _scene(self) -> SchedulerState:
        begun = (*self.running, *self.preempted)
        return SchedulerState(
            now=self.now,
            queue=(Waiting(name=job.name, arrived=job.arrived, **self._sizes(job)) for job in self.waiting),
            running=len(self.running),
            resuming=len(self.preempted),
            prefilling=sum(job.steps < 1 for job in self.running),
            slots=self.slots - len(self.running),
            kv_free=self.kv - sum(job.prompt + job.output for job in begun),
        )

    def _sizes(self, job: Job) -> dict[str, Any]:
        return {"prompt_tokens": job.prompt, "kv_tokens": job.prompt + job.output}
