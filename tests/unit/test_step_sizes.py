"""Steps that are cut to a time have sizes that a GPU runs well."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from flyball_engine.batching.step_token_budgeter import Prompt, Queue, StepTokenBudgeter, rounded_down
from flyball_engine.model import StepModel
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainConfig, PlainScheduler
from support.reflexes import a_budget, seconds, served

MODEL = StepModel(t0=5e-3, h=1e-3, c1=1e-5, c2=4e-5, beta=2e-5, g=1e-9, kappa=256)
#: What vLLM captures unless told otherwise.
GRAPHS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


@pytest.mark.parametrize(
    ("tokens", "size"), [(3, 2), (8, 8), (250, 248), (511, 496), (512, 512), (639, 512), (640, 640), (1000, 896)]
)
def test_a_size_is_captured_or_even(tokens: int, size: int) -> None:
    assert rounded_down(tokens, graphs=GRAPHS, least=1) == size


def test_a_floor_is_kept_whatever_its_size() -> None:
    assert rounded_down(701, graphs=GRAPHS, least=699) == 699
    assert rounded_down(3, graphs=(8, 16), least=3) == 3


def test_without_graphs_nothing_is_rounded() -> None:
    assert rounded_down(701, graphs=(), least=16) == 701


def a_step_size(queue: Queue, budget: float = 0.030, graphs: tuple[int, ...] = GRAPHS) -> int:
    budgeter = StepTokenBudgeter()
    budgeter.set_budget(a_budget(budget, MODEL))
    room = budgeter.step_tokens(queue, least_chunk=16, most=8192, graphs=graphs)
    step, _, fed = served(queue, room)
    assert fed == queue.decodes
    assert step.prefill_tokens <= 16 or seconds(MODEL, step) <= budget * (1 + 1e-9)
    return step.tokens


def test_the_chunks_of_a_long_prompt_make_few_sizes_of_steps() -> None:
    long = [Queue(decodes=100, prefilling=[Prompt(remaining=30_000 - at, context=at)]) for at in range(0, 25_000, 500)]
    assert len({a_step_size(queue, graphs=()) for queue in long}) > 20
    sizes = {a_step_size(queue) for queue in long}
    assert len(sizes) <= 5
    assert all(size in GRAPHS or size % 128 == 0 for size in sizes)


def test_prompts_that_fit_whole_are_not_cut_for_a_size() -> None:
    assert a_step_size(Queue(decodes=10, waiting=[Prompt(remaining=101, context=0)] * 3)) == 313


@pytest.mark.parametrize("decodes", [0, 7, 700, 2000])
def test_a_full_step_keeps_its_decodes_and_their_least_chunk(decodes: int) -> None:
    queue = Queue(decodes=decodes, prefilling=[Prompt(remaining=30_000, context=0)])
    assert a_step_size(queue, budget=0.001) == decodes + 16


@pytest.mark.parametrize(("mode", "tokens"), [("FULL_AND_PIECEWISE", 88), ("NONE", 90)])
def test_an_engine_says_itself_what_it_captured(tmp_path: Path, mode: str, tokens: int) -> None:
    scheduler = PlainScheduler(PlainConfig(max_num_batched_tokens=512))
    captured = SimpleNamespace(cudagraph_mode=SimpleNamespace(name=mode), cudagraph_capture_sizes=list(GRAPHS))
    scheduler.vllm_config = SimpleNamespace(compilation_config=captured)
    core = GovernedCore(tmp_path, scheduler)
    # A step of 100 ms has 90 tokens.
    slow = StepModel(t0=0.010, h=0.0, c1=0.001, c2=0.001, beta=0.0, g=0.0, kappa=1)
    core.hooks.apply(setpoint(1, step=a_budget(0.1, slow)))
    core.scheduler.add("long", prompt=3000)
    assert core.step().total_num_scheduled_tokens == tokens
