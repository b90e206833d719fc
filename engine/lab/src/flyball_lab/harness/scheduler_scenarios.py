"""vLLM's real scheduler classes under the step hooks, with a made-up model: run by the Python of the vLLM environment.

    python scheduler_scenarios.py MODEL '{"asynchronous": true, "seed": 1, ...}'  →  one JSON object on standard output

Requests come and go, setpoints are applied at random, and every step is checked and added up by hand. With asynchronous
scheduling two steps are in flight, as in vLLM's engine core.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request, RequestStatus

from flyball_engine.batching import on_time, setpoint_enforcer, shares
from flyball_engine.batching.setpoint_enforcer import Limited, Sizes
from flyball_engine.batching.watchdog import Watchdog
from flyball_engine.contract import (
    STEP_FIELDS,
    TOKEN_BUCKETS,
    Batching,
    Limits,
    OnTime,
    OrderKnob,
    Setpoint,
    StepBudget,
)
from flyball_engine.control.state_file import CoreReport, StateReader, find_state_files
from flyball_engine.vllm.plugin import failure, register
from flyball_engine.vllm.step_hooks import StepHooks
from flyball_lab.harness.any_setpoint import any_setpoint
from flyball_lab.harness.live_objects import misjudged
from flyball_lab.harness.model_runner import output_of, request_of
from flyball_lab.harness.prefix_judge import PrefixJudge
from flyball_lab.harness.scenario_batches import BatchTally
from flyball_lab.harness.scenario_scheduler import BLOCK, make_config, make_scheduler
from flyball_lab.harness.scheduler_scenario import (
    FIXED_SECONDS,
    LEAST_CHUNK,
    SECONDS_PER_TOKEN,
    Scenario,
    Tally,
    a_model,
    token_of,
)
from flyball_lab.harness.strategy_rules import Rules, grammar_comes, random_batching, wait_for_grammar


class CoreLoop:
    """A core's loop: schedule, execute (made up), update; with two steps in flight if asynchronous."""

    def __init__(self, scenario: Scenario, model: str) -> None:
        self.scenario, self.tally, self.random = scenario, Tally(), random.Random(scenario.seed)
        self.now = 1000.0
        self.config = make_config(scenario, model)
        self.folder = tempfile.TemporaryDirectory()
        self.scheduler = make_scheduler(self.config, scenario)
        self.hooks = StepHooks(
            self.scheduler,
            folder=Path(self.folder.name),
            clock=lambda: self.now,
            watchdog=Watchdog(seconds=scenario.patience, steps=20),
        )
        self.scheduler.flyball = self.hooks
        self.reader = StateReader(find_state_files(Path(self.folder.name))[0])
        self.in_flight: deque[tuple[Any, float, dict[str, Any]]] = deque()
        self.updated = 0.0
        self.added = 0
        self.requests: dict[str, Request] = {}  # all there ever were: a client may leave before the next step
        self.generation = 0
        self.honest = False
        self.batches = BatchTally(scenario.max_num_seqs)
        self.limits: dict[str, int] = {}
        self.hasher = get_request_block_hasher(BLOCK, _hash)
        self.prefixes = PrefixJudge(self.scheduler, self.hooks.cached, Path(self.folder.name), _hash)
        self.rules = Rules(self.scheduler, block=BLOCK, blocks=scenario.blocks)
        self.batching = Batching()
        if scenario.batching:
            self.switch(Batching.model_validate_json(json.dumps(scenario.batching)))

    def add(self) -> None:
        """One more request, with a prompt that may share its beginning with others."""
        length = self.random.choice([1, 5, 40, 200, 600])
        shared = self.random.choice([0, length // 2])
        prompt = [7] * shared + [self.random.randrange(2000, 9000) for _ in range(length - shared)]
        most = self.random.randint(1, self.scenario.longest)
        if self.random.random() < self.scenario.unnamed:
            most = 1024 - length
        name = f"r{self.added}"
        self.added += 1
        priority = self.random.randint(0, 3)
        request = request_of(
            name, prompt, output=most, arrival=float(self.added), priority=priority, block_hasher=self.hasher
        )
        if self.random.random() < self.scenario.grammars:
            wait_for_grammar(request)
        self.requests[name] = request
        self.scheduler.add_request(request)
        self.rules.added(name, self.now)

    def retune(self, *, limits: dict[str, int], step: StepBudget | None = None, on_time: OnTime | None = None) -> None:
        """Apply a setpoint with these limits, a step budget, and an order."""
        self._apply(
            Setpoint(
                service="s",
                epoch=1,
                generation=self.generation + 1,
                limits=Limits(**limits),
                step=step,
                on_time=on_time,
                batching=self.batching,
                expires_seconds=100_000.0,
            )
        )

    def switch(self, batching: Batching) -> None:
        """Another strategy, under the same limits."""
        self.batching = batching
        self.tally.switches += 1
        self.retune(limits=self.limits)

    def retune_in_any_way(self) -> None:
        """Apply whatever the contract accepts."""
        self.honest = False
        self.tally.switches += 1
        self._apply(any_setpoint(self.random, generation=self.generation + 1))

    def _apply(self, setpoint: Setpoint) -> None:
        """As the control port does: knobs that are refused never come here."""
        unsupported = self.reader.unsupported
        limits = {knob.value: limit for knob, limit in setpoint.limits.given().items() if knob not in unsupported}
        if any(knob in unsupported for knob in setpoint.batching.given()):
            batching = Batching(max_concurrent_prefills=setpoint.batching.max_concurrent_prefills)
            setpoint = setpoint.model_copy(update={"batching": batching})
        if OrderKnob.ON_TIME in unsupported:
            setpoint = setpoint.model_copy(update={"on_time": None})
        self.generation += 1
        self.tally.retunes += 1
        self.hooks.apply(setpoint.model_copy(update={"limits": Limits(**limits)}))
        self.limits, self.batching = limits, setpoint.batching
        trusted = setpoint.step is not None and setpoint.step.model.trusted
        self.rules.switched(self.batching, is_ordered=trusted and setpoint.on_time is not None)

    def retune_at_random(self) -> None:
        """Apply limits that nobody in their senses would ask for, too."""
        limits = {
            "max_num_active_seqs": self.random.choice([1, 2, 8, 31, 32, 500]),
            "max_num_scheduled_tokens": self.random.choice([1, 4, 16, 33, 100, 512, 100_000]),
            "long_prefill_token_threshold": self.random.choice([0, 1, 16, 64, 5000]),
            **({"num_speculative_tokens": self.random.choice([0, 1, 2, 3, 4, 9])} if self.scenario.drafts else {}),
        }
        chosen = dict(self.random.sample(sorted(limits.items()), self.random.randint(0, 3)))
        step, on_time = self._budget_at_random(), self._order_at_random()
        while on_time is not None and step is None:
            step = self._budget_at_random()
        self.retune(limits=chosen, step=step, on_time=on_time)

    def _order_at_random(self) -> OnTime | None:
        """Deadlines that nobody keeps, that all keep, and in between: a step takes some 3 to 50 ms."""
        if not self.scenario.ordered or self.random.random() > self.scenario.ordered or self.batching.chooses():
            return None
        return OnTime(
            first_token_deadline_seconds=self.random.choice([1e-3, 0.05, 0.2, 1.0, 3600.0]),
            late_share=self.random.choice([0.0, 0.1, 0.5]),
        )

    def _budget_at_random(self) -> StepBudget | None:
        """None, one with the truth about the made-up model, or one with a model far from it."""
        seconds = self.random.choice([1e-6, 0.004, 0.01, 0.03, 60.0])
        honest = StepBudget(seconds=seconds, model=a_model(FIXED_SECONDS, SECONDS_PER_TOKEN))
        wrong = StepBudget(seconds=seconds, model=a_model(0.0, self.random.choice([0.0, 1e-9, 10.0])))
        chosen = self.random.choice([None, honest, wrong])
        self.honest = chosen is honest
        return chosen

    def step(self) -> None:
        """One turn of the core's loop."""
        if len(self.in_flight) < (2 if self.scenario.asynchronous else 1) and self.scheduler.has_requests():
            self._schedule()
            if self.scenario.asynchronous and len(self.in_flight) < 2 and self.in_flight[-1][0].num_scheduled_tokens:
                return
        if self.in_flight:
            self._update()

    def _schedule(self) -> None:
        scheduler, tally = self.scheduler, self.tally
        running = {r.request_id: (r, r.is_prefill_chunk, r.num_computed_tokens) for r in scheduler.running}
        preempted = sum(r.num_preemptions for r in scheduler.requests.values())
        began = self.now
        self.rules.before(self.now)
        output = scheduler.schedule()
        self.batches.planned(output)
        grammar_comes(scheduler.running)
        # Once, as it is not cheap: nothing more is published until the step is updated.
        report = self.published()
        effective = {knob.value: value for knob, value in report.state.effective.given().items()}
        tally.broken += self.rules.after(effective, output, in_flight=bool(self.in_flight))
        tally.in_batches = self.rules.in_batches
        # Where delays are long the clock goes faster while nothing happens.
        is_idle = self.scenario.extremes and not output.num_scheduled_tokens and not self.in_flight
        self.now += 0.25 if is_idle else 0.001
        tally.steps += 1
        tally.ordered += self.rules.is_ordered
        parks = self.hooks.parks
        tally.parked += parks
        tally.parked_in_vain += parks and not output.num_scheduled_tokens
        tally.overlapped += bool(self.in_flight and output.num_scheduled_tokens)
        new_preemptions = sum(r.num_preemptions for r in scheduler.requests.values()) - preempted
        tally.preemptions += new_preemptions
        tally.most_running = max(tally.most_running, len(scheduler.running))
        tally.over_cap += len(scheduler.running) > max(effective["max_num_active_seqs"], len(running))
        tally.over_tokens += output.total_num_scheduled_tokens > effective["max_num_scheduled_tokens"]
        step = _by_hand(output, scheduler, running) | {"running": len(scheduler.running)}
        step["squares"] = self.batches.squares(
            {name: tokens for name, tokens in output.num_scheduled_tokens.items() if _is_prompt(name, running)},
            joined=output.num_scheduled_tokens.keys() - running.keys(),
        )
        begun = sum(prefilling for _, prefilling, _ in running.values())
        self._judge_budget(report, output.total_num_scheduled_tokens, decodes=len(running) - begun, begun=begun)
        if not new_preemptions:
            tally.starved_decodes += sum(
                request.request_id not in output.num_scheduled_tokens and not _is_ending(request)
                for request, prefilling, _ in running.values()
                if not prefilling
            )
        self.in_flight.append((output, began, step))

    def _judge_budget(self, report: CoreReport, tokens: int, *, decodes: int, begun: int) -> None:
        """Does the step fit into its time, or is it the least there is? Its time is what it takes here, so biased."""
        if not report.step_budget_seconds or not self.honest:
            return
        predicted = self.hooks.step_bias * (FIXED_SECONDS + SECONDS_PER_TOKEN * tokens)
        # Decodes whose last token is in flight leave theirs to the prompts; so do those that draft less than they may.
        least = decodes * (1 + self.scheduler.num_spec_tokens) + LEAST_CHUNK * max(1, begun)
        self.tally.budgeted += 1
        self.tally.over_budget += predicted > report.step_budget_seconds + 1e-9 and tokens > least

    def published(self) -> CoreReport:
        """What the core says of itself now."""
        report = self.reader.read()
        assert report is not None
        return report

    def _update(self) -> None:
        output, began, step = self.in_flight.popleft()
        self.now += 0.002 + 0.0001 * output.total_num_scheduled_tokens
        names = list(output.num_scheduled_tokens)
        sampled = [self._say(name, step["ends"][name]) for name in names]
        self.scheduler.update_from_output(output, output_of(names, sampled))
        if step["tokens"]:
            seconds = self.now - max(began, self.updated)
            row = self.tally.sums[step["row"]]
            for index, value in enumerate((1, seconds, seconds * seconds, *step["values"])):
                row[index] += value
            self.batches.ended(step, seconds)
        self.updated = self.now

    def _say(self, name: str, end: tuple[int, bool]) -> list[int]:
        position, prefilling = end
        return [] if prefilling else [token_of(name, position)]

    def abort_one(self) -> None:
        """A client leaves."""
        if self.scheduler.requests:
            leaving = self.random.choice(sorted(self.scheduler.requests))
            self.scheduler.finish_requests(leaving, RequestStatus.FINISHED_ABORTED)
            self.tally.aborted += 1


def _by_hand(output: Any, scheduler: Any, running: dict[str, Any]) -> dict[str, Any]:
    """What the step processes, request by request, from what vLLM says of each."""
    prefill = decodes = kv = 0
    attention = 0.0
    ends = {}
    for name, tokens in output.num_scheduled_tokens.items():
        request = scheduler.requests[name]
        before = request.num_computed_tokens - tokens
        ends[name] = (request.num_computed_tokens, request.is_prefill_chunk)
        if _is_prompt(name, running):
            prefill += tokens
            attention += tokens * (before + tokens / 2)
        else:
            decodes += 1
            kv += request.num_computed_tokens
    total = sum(output.num_scheduled_tokens.values())
    bucket = next((edge for edge in TOKEN_BUCKETS if edge >= total), None)
    row = f"{bucket} {'mixed' if prefill else 'decode'}"
    return {"row": row, "values": (total, prefill, decodes, kv, attention), "tokens": total, "ends": ends}


def _is_prompt(name: str, running: dict[str, Any]) -> bool:
    """Whether a request of a step prefills: those that join do."""
    return name not in running or bool(running[name][1])


def _is_ending(request: Any) -> bool:
    """Asynchronous: vLLM plans no step for a request whose last token is in flight."""
    return bool(request.num_output_placeholders) or request.is_finished()


def _hash(value: Any) -> bytes:
    return hash(value).to_bytes(8, "little", signed=True)


def _break_floors() -> None:
    """Take away what keeps decodes alive, so that only the watchdog is left."""

    def token_limit(wanted: int, *, sizes: Sizes, **_: Any) -> Limited:
        return Limited(min(wanted, sizes.max_num_batched_tokens))

    vars(setpoint_enforcer).update(token_limit=token_limit)


def play(scenario: Scenario, model: str) -> dict[str, Any]:
    """Play a scenario to its end."""
    if scenario.broken_floors:
        _break_floors()
    engine = CoreLoop(scenario, model)
    while engine.added < scenario.requests or engine.scheduler.has_requests() or engine.in_flight:
        _meddle(engine, scenario)
        engine.step()
        if engine.tally.steps % 20 == 0:
            engine.prefixes.look(engine.requests)
        if engine.tally.steps > 50_000:
            break
    _judge_outputs(engine.requests, engine.tally)
    return _result(engine)


def _meddle(engine: CoreLoop, scenario: Scenario) -> None:
    """What happens between two steps."""
    if engine.added < scenario.requests and engine.random.random() < scenario.arrivals:
        engine.add()
    if engine.random.random() < scenario.retunes:
        engine.retune_at_random()
    if engine.random.random() < scenario.switches:
        engine.switch(random_batching(engine.random))
    if engine.random.random() < scenario.extremes:
        engine.retune_in_any_way()
    if engine.random.random() < 0.1:
        grammar_comes(engine.scheduler.waiting)
    if engine.random.random() < scenario.aborts:
        engine.abort_one()
    if scenario.once and engine.generation == 0 and len(engine.scheduler.running) > 20:
        engine.retune(limits=scenario.once)


def _judge_outputs(requests: dict[str, Any], tally: Tally) -> None:
    for name, request in requests.items():
        said = list(request.output_token_ids)
        first = request.num_prompt_tokens
        tally.wrong_outputs += said != [token_of(name, first + index) for index in range(len(said))]
        aborted = request.status == RequestStatus.FINISHED_ABORTED
        tally.unfinished += not aborted and len(said) != request.max_tokens


def _result(engine: CoreLoop) -> dict[str, Any]:
    report = engine.published()
    return {
        **{name: value for name, value in vars(engine.tally).items() if name != "sums"},
        "batches": asdict(report.batches) | {"oldest": report.oldest_waiting_seconds},
        "batches_by_hand": engine.batches.closed(engine.requests, preemptions=engine.tally.preemptions),
        "by_hand": engine.tally.sums,
        "prefixes": asdict(engine.prefixes.tally),
        "published": {
            f"{row.bucket} {row.kind.value}": [float(getattr(row, name)) for name in STEP_FIELDS]
            for row in report.state.steps
        },
        "governed": report.governed,
        "trips": report.state.watchdog_trips,
        "order": dict(report.state.order),
        "kv_usage": engine.scheduler.kv_cache_manager.usage,
        "scheduler": type(engine.scheduler).__name__,
        "depths": sorted(engine.rules.depths),
    }


def prepare() -> None:
    """What vLLM and the plugin need before the first scenario of a process."""
    init_none_hash(_hash)
    # A scenario lasts for seconds: late requests have their share within it.
    vars(shares).update(SHARED_AFTER=0.5)
    vars(on_time).update(QUIET=0.1)
    register()
    assert failure() is None, failure()


def main() -> None:
    """Play the scenarios given as JSON, one result per line; then what was misjudged."""
    model, *scenarios = sys.argv[1:]
    prepare()
    for text in scenarios:
        print(json.dumps(play(Scenario(**json.loads(text)), model)))
    print(json.dumps({"misjudged": misjudged(CoreLoop(Scenario(seed=0), model))}))


if __name__ == "__main__":
    main()
