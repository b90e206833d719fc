"""vLLM's governed scheduler and the simulated one, fed alike, step by step: run by the Python of the vLLM environment.

    python -m support.scheduler_twins MODEL '{"seed": 1, ...}'  →  one JSON object per scenario on standard output

Requests come with prompts that share nothing, setpoints are applied at random, and of each step both say which request
gets how many tokens. The first step in which they differ ends a scenario.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from vllm.v1.core.kv_cache_utils import init_none_hash

from flyball_engine.batching.batch_metrics import BatchCounts, BatchMetrics, batch_counts
from flyball_engine.batching.setpoint_enforcer import RequestedLimits, SetpointEnforcer, Sizes
from flyball_engine.contract import Limits, SchedulingPolicy, Setpoint
from flyball_engine.vllm.plugin import failure, register
from flyball_lab.harness import scenario_scheduler, scheduler_scenarios
from flyball_lab.harness.model_runner import request_of
from flyball_lab.harness.scheduler_scenario import Scenario
from flyball_lab.simulator.kv import BLOCK_TOKENS
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.scheduler import Scheduler
from flyball_lab.simulator.step_plan import StepPlan

MODEL_LEN = 1024


class Twin:
    """The simulated one, driven by the step."""

    def __init__(self, scenario: Scenario) -> None:
        sizes = Sizes(
            max_num_seqs=scenario.max_num_seqs,
            max_num_batched_tokens=scenario.max_num_batched_tokens,
            max_model_len=MODEL_LEN,
        )
        # One block of vLLM's is never given to a request.
        kv_tokens = (scenario.blocks - 1) * BLOCK_TOKENS
        self.scheduler = Scheduler(sizes=sizes, kv_tokens=kv_tokens, policy=SchedulingPolicy(scenario.policy))
        start = RequestedLimits(active=scenario.max_num_seqs, tokens=scenario.max_num_batched_tokens, threshold=0)
        self.governed = SetpointEnforcer(sizes, start)
        self.batches = BatchMetrics(scenario.max_num_seqs)

    def add(self, number: int, *, prompt: int, output: int, priority: int) -> None:
        request = Request(float(number), prompt, output, priority=priority, number=number, target=prompt)
        self.scheduler.waiting.push(request)
        self.batches.arrived(request, 0.0)

    def step(self) -> dict[str, int]:
        """Make one step; the tokens each request got."""
        scheduler = self.scheduler
        plan = scheduler.plan(self.governed.limits(scheduler.batch(), scheduler.queue))
        prefilling = set(scheduler.prefilling)
        served = {f"r{each.number}": 1 for each in scheduler.running if each not in prefilling}
        served |= {f"r{each.number}": tokens for each, tokens in plan.chunks.items()}
        self._count(plan, scheduler.advance(1, plan.chunks)[1])
        return served

    def counted(self) -> dict[str, Any]:
        """What was counted of batches, but for times: here nothing takes any."""
        return _timeless(batch_counts(self.batches.sums))

    def _count(self, plan: StepPlan, ended: Sequence[Request]) -> None:
        """As the simulated core does."""
        step, joined = plan.step, ((request, request.prompt) for request in plan.admitted)
        self.batches.preempted(len(plan.preempted))
        self.batches.admitted(joined, running=step.occupancy.running, whole=False, now=0.0)
        if step.tokens:
            self.batches.stepped(step, seconds=0.0)
        for request in ended:
            self.batches.ended(request, request.output, 0.0)


def _timeless(counts: BatchCounts) -> dict[str, Any]:
    times = {"slots_used", "slots_free", "slots_withheld", "admitted_seconds", "left_seconds"}
    return {name: value for name, value in asdict(counts).items() if name not in times}


class Real(scheduler_scenarios.CoreLoop):
    """vLLM's own, with prompts that are told from outside."""

    def put(self, number: int, *, prompt: int, output: int, priority: int) -> None:
        tokens = [self.random.randrange(2000, 9000) for _ in range(prompt)]
        self.rules.added(f"r{number}", self.now)
        self.scheduler.add_request(
            request_of(f"r{number}", tokens, output=output, arrival=float(number), priority=priority, block_hasher=None)
        )

    def served(self) -> dict[str, int]:
        """Make one step; the tokens each request got."""
        self._schedule()
        scheduled = dict(self.in_flight[-1][0].num_scheduled_tokens)
        self._update()
        return scheduled

    def counted(self) -> dict[str, Any]:
        """What was counted of batches, but for times."""
        report = self.reader.read()
        assert report is not None
        return _timeless(report.batches)


def uncached(configure: Callable[..., Any]) -> Callable[..., Any]:
    """Without the prefix cache: of a preempted request's blocks it keeps what the simulation takes for lost."""

    def configured(*args: Any) -> Any:
        config = configure(*args)
        config.cache_config.enable_prefix_caching = False
        return config

    return configured


def play(scenario: Scenario, model: str) -> dict[str, Any]:
    """Play a scenario until it ends or they differ."""
    real, twin = Real(scenario, model), Twin(scenario)
    chance = random.Random(scenario.seed)
    added = generation = steps = most = 0
    while added < scenario.requests or real.scheduler.has_requests():
        if added < scenario.requests and chance.random() < scenario.arrivals:
            added += 1
            length = {"prompt": chance.choice([1, 5, 40, 200, 600]), "output": chance.randint(1, scenario.longest)}
            priority = chance.randint(0, 3)
            real.put(added, **length, priority=priority)
            twin.add(added, **length, priority=priority)
        if chance.random() < scenario.retunes:
            generation += 1
            limits = {
                "max_num_active_seqs": chance.choice([1, 2, 8, 31, 32]),
                "max_num_scheduled_tokens": chance.choice([16, 33, 100, 512]),
                "long_prefill_token_threshold": chance.choice([0, 16, 64]),
            }
            real.retune(limits=limits)
            setpoint = Setpoint(service="s", epoch=1, generation=generation, limits=Limits(**limits))
            twin.governed.apply(setpoint, 0.0)
        if not real.scheduler.has_requests():
            continue
        theirs, ours = real.served(), twin.step()
        steps += 1
        most = max(most, len(theirs))
        if theirs != ours:
            differ = {name: (theirs.get(name), ours.get(name)) for name in theirs | ours}
            return {"steps": steps, "differ": {name: pair for name, pair in differ.items() if pair[0] != pair[1]}}
    preemptions = (real.tally.preemptions, twin.scheduler.preemptions)
    return {
        "steps": steps,
        "differ": {},
        "most": most,
        "preemptions": preemptions,
        "retunes": generation,
        "batches": (real.counted(), twin.counted()),
    }


def main() -> None:
    """Play the scenarios given as JSON, one result per line."""
    model, *scenarios = sys.argv[1:]
    init_none_hash(scheduler_scenarios._hash)
    register()
    assert failure() is None, failure()
    vars(scenario_scheduler).update(BLOCK=BLOCK_TOKENS)
    vars(scheduler_scenarios).update(BLOCK=BLOCK_TOKENS, make_config=uncached(scenario_scheduler.make_config))
    for text in scenarios:
        print(json.dumps(play(Scenario(**json.loads(text)), model)), flush=True)  # noqa: T201 – its output


if __name__ == "__main__":
    main()
