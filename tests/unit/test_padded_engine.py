"""The padded engine's queue and batches under load, switched live, before a model that only counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from flyball_engine.contract import Batching, Knob, Metric, ObjectiveSpec, SchedulingPolicy, StrategyType
from flyball_engine.knobs import Bucketed, Dynamic, Static
from flyball_lab.harness.engine import setpoint
from flyball_lab.harness.padded import CONTEXT, VOCABULARY, Counter, a_wish, an_engine, answered, until
from flyball_lab.openai.app import NotServedError
from flyball_lab.padded.batch import ComputePhase, Use
from flyball_lab.padded.bodies import PaddedChat
from flyball_lab.padded.engine import PaddedEngine
from flyball_lab.padded.requests import Row


def tokens(rows: list[Row]) -> list[list[int]]:
    return [list(row.text.tokens) for row in rows]


async def test_every_prompt_gets_its_own_answer(tmp_path: Path) -> None:
    model = Counter()
    async with an_engine(tmp_path, model) as engine:
        several = a_wish([[1, 2, 3], [10]], tokens=3, n=2)  # type: ignore[list-item]
        chat = PaddedChat.model_validate({"messages": [{"role": "user", "content": "40 41"}], "max_tokens": 2})
        first, second = await answered(engine, several, chat)
        assert tokens(first) == [[4, 5, 6], [4, 5, 6], [11, 12, 13], [11, 12, 13]]
        assert tokens(second) == [[42, 43]]
        ends = await answered(engine, a_wish("997", tokens=9))
        assert (tokens(ends[0]), ends[0][0].finish_reason) == ([[998, 999, 0]], "stop")
        assert "".join(ends[0][0].pieces(0)) == " 998 999"
        assert engine.counts().requests["finished"] == 3


async def test_batch_size_and_delay_are_switched_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    model, draw = Counter(), Random(3)
    choices: list[dict[str, Any]] = [
        {"batching": Batching(strategy=Static(batch_size=2))},
        {"batching": Batching(strategy=Dynamic(batch_size=7, max_delay_seconds=0.02))},
        {"batching": Batching(strategy=Bucketed(batch_size=5, boundaries=(8, 16)))},
        {"batching": Batching(strategy=Bucketed(batch_size=3, sorted=True))},
        {"batching": Batching(admission_delay_seconds=0.01)},
        {"limits": {"max_num_active_seqs": 1}},
        {},
    ]
    async with an_engine(tmp_path, model, queue=1000) as engine:

        async def switching() -> None:
            for number in range(1, 200):
                await engine.apply(setpoint(number, **draw.choice(choices)))
                await asyncio.sleep(0)

        wishes = [a_wish([number] * draw.randint(1, 30), tokens=draw.randint(1, 20)) for number in range(1, 201)]
        switched = asyncio.create_task(switching())
        rows = await answered(engine, *wishes)
        await switched
        for number, (row,) in enumerate(rows, 1):
            most = wishes[number - 1].output_tokens
            assert list(row.text.tokens) == list(range(number + 1, number + 1 + most))
        assert engine.counts().requests["finished"] == 200
        assert sum(map(len, model.batches)) == 200
        assert max(map(len, model.batches)) > 1
        # A batch ends after the last of its answers.
        await until(lambda: engine.load().kv_cache_usage == 0.0)
        assert (engine.load().running, engine.load().waiting) == (0, 0)


async def test_a_setpoint_holds_for_the_next_batch(tmp_path: Path) -> None:
    model = Counter(held=True)
    async with an_engine(tmp_path, model, batch=4) as engine:
        await engine.submit(a_wish(n=2))
        await until(lambda: len(model.batches) == 1)
        later = [await engine.submit(a_wish()) for _ in range(5)]
        await engine.apply(
            setpoint(1, limits={"max_num_active_seqs": 3}, batching=Batching(strategy=Static(batch_size=9)))
        )
        state = engine.reports().cores[0].state
        assert state.applied is not None
        assert (state.applied.generation, state.strategy, state.effective.max_num_active_seqs) == (
            1,
            StrategyType.STATIC,
            3,
        )
        assert (state.running, state.waiting) == (2, 5)
        model.let_go()
        await until(lambda: all(row.finish_reason for each in later for row in each))
        assert max(map(len, model.batches[1:])) == 3


async def test_a_limit_above_the_ceiling_is_clamped_and_a_setpoint_expires(tmp_path: Path) -> None:
    clock = [0.0]
    async with an_engine(tmp_path, Counter(), rows=8, clock=lambda: clock[0]) as engine:
        static = Batching(strategy=Static(batch_size=2), policy=SchedulingPolicy.PRIORITY)
        await engine.apply(setpoint(1, limits={"max_num_active_seqs": 9}, batching=static, expires_seconds=60.0))
        state = engine.reports().cores[0].state
        assert (state.strategy, state.policy) == (StrategyType.STATIC, SchedulingPolicy.PRIORITY)
        assert list(state.effective.given()) == list(state.start.given()) == [Knob.MAX_NUM_ACTIVE_SEQS]
        [clamp] = state.clamped
        assert (clamp.knob, clamp.requested, clamp.effective, clamp.reason) == ("max_num_active_seqs", 9, 8, "ceiling")
        clock[0] = 60.0
        await engine.touch()
        state = engine.reports().cores[0].state
        assert (state.applied, state.strategy, state.policy) == (None, StrategyType.DYNAMIC, SchedulingPolicy.FCFS)
        assert not state.clamped


async def test_who_leaves_the_queue_never_starts_and_who_leaves_a_batch_is_padding(tmp_path: Path) -> None:
    model = Counter(held=True)
    async with an_engine(tmp_path, model, batch=2) as engine:
        [leaver, stayer] = await engine.submit(a_wish([[5], [6]], tokens=4))  # type: ignore[list-item]
        await until(lambda: len(model.batches) == 1)
        waiting = await engine.submit(a_wish("9 9 9"))
        model.let()
        await until(lambda: stayer.made == 1)
        engine.leave([leaver])
        engine.leave(waiting)
        model.let_go()
        await until(lambda: stayer.finish_reason is not None and engine.load().running == 0)
        assert (leaver.made, stayer.made) == (1, 4)
        assert model.batches == [[1, 1]]
        assert engine.padding.tokens[ComputePhase.OUTPUT, Use.PADDING] == 3
        assert engine.counts().requests["aborted"] == 2
        counted = engine.reports().cores[0].batches
        assert (counted.admitted, counted.left, counted.step_requests) == (2, 1, 5)
        assert (counted.cohorts, counted.cohort_outputs, counted.cohort_outputs_padded) == (1, 5, 8)


async def test_batches_are_counted_by_the_rows_that_go_on(tmp_path: Path) -> None:
    async with an_engine(tmp_path, Counter(), batch=3, delay=60.0) as engine:
        await answered(engine, a_wish([1] * 4, tokens=2), a_wish([2] * 10, tokens=5), a_wish([3], tokens=1))
        await until(lambda: engine.reports().cores[0].state.running == 0)
        report = engine.reports().cores[0]
        counted = report.batches
        # Three rows of ten tokens; then three of one each, of which two go on, and one.
        assert (counted.prefill_tokens, counted.decode_tokens) == (30, 3 * 4)
        assert counted.step_requests == 3 + 2 + 1 + 1 + 1
        assert (counted.cohorts, counted.cohort_requests) == (1, 3)
        assert (counted.cohort_prompts, counted.cohort_prompts_padded) == (15, 30)
        assert counted.batch_efficiency == pytest.approx(8 / 15)
        assert counted.slots_used + counted.slots_free == pytest.approx(8 * sum(s.seconds for s in report.state.steps))
        assert (counted.room_used, counted.token_utilisation) == (0, None)
        assert report.oldest_waiting_seconds == 0


async def test_a_batch_that_everybody_left_ends_at_once(tmp_path: Path) -> None:
    model = Counter(held=True)
    async with an_engine(tmp_path, model) as engine:
        rows = await engine.submit(a_wish(tokens=500))
        await until(lambda: len(model.batches) == 1)
        engine.leave(rows)
        model.let()
        await until(lambda: engine.load().kv_cache_usage == 0 and engine.reports().cores[0].state.running == 0)
        await answered_after(engine, model)


async def answered_after(engine: PaddedEngine, model: Counter) -> None:
    """It goes on serving."""
    model.let_go()
    [[row]] = await answered(engine, a_wish("1", tokens=2))
    assert list(row.text.tokens) == [2, 3]


async def test_a_batch_that_fails_is_told_and_the_next_is_served(tmp_path: Path) -> None:
    model = Counter()
    model.breaks = True
    async with an_engine(tmp_path, model) as engine:
        [[row]] = await answered(engine, a_wish())
        assert (row.failure, row.finish_reason) == ("the batch failed: MemoryError", None)
        assert engine.counts().requests["error"] == 1
        assert engine.reports().cores[0].batches.cohort_requests == 1
        model.breaks = False
        await answered_after(engine, model)
        assert engine.healthy()


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    model = Counter(held=True)
    async with an_engine(tmp_path, model, batch=1, queue=3) as engine:
        await engine.submit(a_wish())
        await until(lambda: len(model.batches) == 1)
        await engine.submit(a_wish(n=3))
        with pytest.raises(NotServedError, match="3 sequences may wait") as caught:
            await engine.submit(a_wish())
        assert (caught.value.status, dict(caught.value.headers or {})) == (503, {"Retry-After": "1"})
        assert engine.counts().requests["refused"] == 1
        model.let_go()


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"prompt": []}, "prompt: is empty"),
        ({"prompt": [1, VOCABULARY]}, "prompt: accepted as tokens: 0 to 999"),
        ({"prompt": "no number"}, "invalid literal"),
        (
            {"prompt": [1] * 500, "tokens": 13},
            f"prompt: 500 tokens, and 13 of the answer .max_tokens., are longer than the {CONTEXT} tokens",
        ),
        ({"prompt": [1] * CONTEXT, "tokens": 1}, f"the {CONTEXT} tokens of the model's context"),
        ({"prompt": [[1]] * 9, "n": 8}, "72 sequences, accepted: at most 64 at once"),
    ],
)
async def test_what_cannot_be_served_is_refused(tmp_path: Path, wish: dict[str, Any], says: str) -> None:
    async with an_engine(tmp_path, Counter()) as engine:
        with pytest.raises(NotServedError, match=says) as caught:
            await engine.submit(a_wish(**wish))
        assert caught.value.status == 400
        assert engine.counts().requests["refused"] == 1


async def test_the_end_of_the_engine_is_told_to_all_that_wait(tmp_path: Path) -> None:
    model = Counter(held=True)
    async with an_engine(tmp_path, model, batch=1) as engine:
        [running], [waiting] = [await engine.submit(a_wish()) for _ in range(2)]
        await until(lambda: len(model.batches) == 1)
    assert {running.failure, waiting.failure} == {"the engine is ending"}
    assert not engine.healthy()
    with pytest.raises(NotServedError, match="ending"):
        await engine.submit(a_wish())


async def test_requests_are_counted_against_objectives(tmp_path: Path) -> None:
    easy, hard = (
        ObjectiveSpec(metric=Metric.END_TO_END_LATENCY, threshold_seconds=seconds) for seconds in (1000.0, 1e-9)
    )
    async with an_engine(tmp_path, Counter()) as engine:
        engine.follow(setpoint(1, objectives=(easy, hard)))
        await answered(engine, *[a_wish(tokens=3) for _ in range(5)])
        counts = engine.counts()
        assert counts.objectives[easy.id, "met"] == counts.objectives[hard.id, "violated"] == 5
        assert (counts.generated_tokens, counts.prompt_tokens) == (15, 5)
        steps = engine.reports().cores[0].state.steps
        assert sum(sums.tokens for sums in steps) == sum(engine.padding.tokens.values())
