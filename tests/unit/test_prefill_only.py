"""Prefill/decode disaggregation: which limit moves on the pods of which role, and how large steps of prompts are."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise
from statistics import mean
from typing import Any

import pytest

from flyball_engine.contract import Limits
from flyball_lab.harness.manifests import edited, good
from flyball_lab.harness.plant import A100, EnginePlant, PlantPhase, PlantRequest, arrivals
from flyball_lab.harness.tuning import E2E, TTFT, inputs, signals, step_window
from flyball_operator.api.parse import parse_service
from flyball_operator.tuning.capacity import carried
from flyball_operator.tuning.control_input import ControlInput, in_rounds, in_steps
from flyball_operator.tuning.estimate.workload import WorkloadEstimator
from flyball_operator.tuning.observe.signals import RequestLoad
from flyball_operator.tuning.optimise import choose
from flyball_operator.tuning.spec import Envelope, Span, TuningSpec, tuning_spec
from flyball_operator.tuning.status_codec import predicted
from support.loop import close, spec

#: Of a prefill engine: all slots, and steps from a small one to sixteen prompts of the load below.
PREFILLS = Envelope(Span(256, 256), Span(128, 16_384))
PROMPT = 1000
#: Prompts per second that full steps of an A100 come to.
FULL = 14.8


def asked(role: str | None, **changes: Any) -> TuningSpec:
    """What tuning reads of a service with this role, started with 256 slots and steps of 8192 tokens."""
    transfer = {} if role is None else {"spec.engine.kvTransfer": {"role": role, "connector": "NixlConnector"}}
    identity = {"metadata.namespace": "default", "metadata.uid": "6d0f6d62-0000-4000-8000-000000000000"}
    bare: dict[str, Any] = {"spec.objectives": [], "spec.tuning": {}, "spec.batching": {}}
    return tuning_spec(parse_service(edited(good(), {**identity, **bare, **transfer, **changes})).spec)


class TestWhichLimitMoves:
    def test_tokens_alone_where_prompts_are_processed(self) -> None:
        envelope = asked("Producer").envelope
        assert envelope.seqs == Span(256, 256)
        assert envelope.tokens == asked(None).envelope.tokens

    def test_requests_alone_where_answers_are_made(self) -> None:
        envelope = asked("Consumer").envelope
        assert envelope.tokens == Span(8192, 8192)
        assert envelope.seqs == asked(None).envelope.seqs

    def test_both_where_engines_do_both(self) -> None:
        assert asked("Both").envelope == asked(None).envelope

    def test_the_other_stays_at_its_upper_bound(self) -> None:
        bounds = {"maxNumActiveSeqs": {"max": 100}, "maxNumScheduledTokens": {"max": 4096}}
        changes = {"spec.tuning": {"bounds": bounds}}
        assert asked("Producer", **changes).envelope.seqs == Span(100, 100)
        assert asked("Consumer", **changes).envelope.tokens == Span(4096, 4096)


def prompts(load: float, *, size: float = PROMPT, waiting: float = 0.0) -> ControlInput:
    """Requests for one token each, at this share of what full steps come to."""
    per_prompt: Any = {"prompt": size, "uncached": size, "attention": size / 2, "token_weighted_prompt": size}
    load_of: Any = {"arrivals": load * FULL, "output": 1.0, "ratio": size, "decodes": 0.0, "waiting": waiting}
    here = inputs(TTFT, model=A100, envelope=PREFILLS, **per_prompt, **load_of)
    return replace(here, prefill_only=True)


def first_tokens(tokens: int, load: float) -> float:
    """Mean seconds to a first token as a prefill engine is seen to take, with steps of so many tokens."""
    phase = PlantPhase(200.0, load * FULL, PROMPT, 1, spread=0.0)
    queue: deque[PlantRequest] = arrivals([phase], seed=3)
    requests = list(queue)
    limits = Limits(max_num_active_seqs=256, max_num_scheduled_tokens=tokens)
    EnginePlant(A100, (), limits=limits, stall=0.0).run(phase.seconds + 60.0, queue)
    return mean(request.first - request.arrival for request in requests)


class TestStepsOfPromptsAlone:
    @pytest.mark.parametrize("load", [0.3, 0.6, 0.85, 0.93])
    def test_are_of_a_size_with_which_first_tokens_come_as_soon_as_with_any(self, load: float) -> None:
        chosen = choose(prompts(load)).tokens
        best = min(first_tokens(tokens, load) for tokens in (512, 1024, 2048, 4096, 8192))
        assert first_tokens(chosen, load) <= 1.2 * best

    def test_grow_with_the_load_and_are_full_beyond_what_can_be_served(self) -> None:
        sizes = [choose(prompts(load)).tokens for load in (0.3, 0.7, 0.85, 0.95, 1.5)]
        assert sizes == sorted(sizes)
        assert (sizes[0], sizes[-1]) == (PROMPT, PREFILLS.tokens.most)

    def test_grow_with_the_queue(self) -> None:
        sizes = [choose(prompts(0.6, waiting=waiting)).tokens for waiting in (0.0, 10.0, 100.0)]
        assert all(fewer < more for fewer, more in pairwise(sizes))

    def test_hold_a_whole_prompt_and_stay_within_the_bounds(self) -> None:
        assert choose(prompts(0.1, size=6000)).tokens == 6000
        assert choose(prompts(0.01, size=60_000)).tokens == PREFILLS.tokens.most

    def test_hold_a_token_of_each_sequence_that_may_run(self) -> None:
        many = Envelope(Span(1024, 1024), Span(128, 16_384))
        assert choose(replace(prompts(0.01, size=300), envelope=many)).tokens == 1024

    def test_hold_a_whole_prompt_in_each_stage_of_a_pipeline(self) -> None:
        rounds = in_rounds(prompts(0.01), 2)
        assert in_steps(choose(rounds), 2).tokens == PROMPT

    def test_are_those_that_are_predicted(self) -> None:
        output = choose(prompts(0.6))
        assert output.predicted.gap == pytest.approx(A100.seconds(decodes=0, prefill_tokens=output.tokens), rel=0.3)
        assert output.predicted.tpot == 0.0
        assert "tpot" not in predicted(output)

    def test_all_slots_stay_open_and_no_step_has_a_budget(self) -> None:
        output = choose(prompts(0.6))
        assert (output.seqs, output.budget, output.binding) == (256, None, "ttft")

    def test_an_answer_ends_with_its_first_token(self) -> None:
        here = replace(prompts(0.6), objectives=(E2E,))
        output = choose(here)
        assert output.predicted.e2e == output.predicted.ttft
        assert output.deadline == E2E.seconds

    def test_capacity_is_what_keeps_the_objective_with_the_best_steps(self) -> None:
        rate = carried(prompts(0.1)).rate
        assert 0.8 * FULL < rate < FULL
        pinned = replace(prompts(0.1), envelope=Envelope(Span(256, 256), Span(128, 1024)))
        assert carried(pinned).rate < rate


@pytest.mark.parametrize("sequences", [1, 4])
def test_requests_of_several_sequences_are_known_where_answers_end_with_their_first_token(sequences: int) -> None:
    steps = step_window(decodes=(0,), prefills=(PROMPT,))
    found = signals(15.0, window=steps, finished=60.0, prompt_tokens=60.0 * PROMPT, generated_tokens=60.0 * sequences)
    assert isinstance(found.load, RequestLoad)
    estimator = WorkloadEstimator().after(found.load, steps, at=0.0, seconds=15.0, prefill_only=True)
    assert estimator.known
    assert not WorkloadEstimator().after(found.load, steps, at=0.0, seconds=15.0).known


def test_the_loop_learns_of_prompts_alone_and_moves_tokens_with_the_load() -> None:
    tuned = replace(spec([TTFT], seqs=(256, 256), tokens=(128, 16_384)), prefill_only=True)
    plant = EnginePlant(A100, [TTFT], limits=tuned.envelope.upper())
    # Prompts of several sizes: steps that are all alike make no model.
    mixes = ((0.3, 300.0), (0.9, 300.0), (0.3, 300.0))
    phases = [
        [PlantPhase(seconds, load * FULL / 2, PROMPT // 2, 1), PlantPhase(seconds, load * FULL / 2, 3 * PROMPT // 2, 1)]
        for load, seconds in mixes
    ]
    run = close(plant, tuned, phases)
    at = [run.decisions[round(seconds / 5) - 1].policy.limits for seconds in (300.0, 600.0, 900.0)]
    calm, busy, calm_again = (limits.max_num_scheduled_tokens or 0 for limits in at)
    assert {limits.max_num_active_seqs for limits in at} == {256}
    assert calm < busy > calm_again
    full = close(EnginePlant(A100, [TTFT], limits=tuned.envelope.upper()), tuned, phases, auto=False)
    assert run.attained("ttft") > full.attained("ttft")
