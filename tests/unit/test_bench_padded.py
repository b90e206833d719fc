"""`hack/bench padded` around its engines: batches, the process of an encoder, what figures are made of."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_lab.benches.engine.bare import TOOLS
from flyball_lab.benches.padded import architectures, compare
from flyball_lab.benches.padded.batches import MOST_PADDING, computed_tokens, next_batch
from flyball_lab.benches.padded.compare import PADDED, Played, expect_alike, figures_of
from flyball_lab.benches.padded.encoder import (
    EncoderLoad,
    EncoderProcess,
    EncoderRun,
    SortedBatches,
    Vector,
    play,
    started,
)
from flyball_lab.pages.figures import FigureTable
from flyball_lab.tools.architectures import BACKEND, NONE, OWN, THERE, UNSAID, counted, way


class TestABatch:
    def test_has_the_first_and_those_nearest_to_it(self) -> None:
        assert next_batch([100, 20, 101, 500, 96, 97], budget=303) == [0, 2, 5]

    def test_of_equals_takes_the_earlier(self) -> None:
        assert next_batch([50, 52, 50, 48, 52], budget=160) == [0, 2, 1]

    def test_has_little_padding_however_large_the_budget(self) -> None:
        assert next_batch([100, 90, 91, 300], budget=10_000) == [0, 2]

    def test_begins_with_a_first_that_is_beyond_the_budget(self) -> None:
        assert next_batch([500, 20], budget=100) == [0]

    @given(st.lists(st.integers(1, 600), min_size=1, max_size=60), st.integers(1, 3000))
    def test_keeps_the_budget_and_misses_no_one_that_fits_as_the_next(self, lengths: list[int], budget: int) -> None:
        chosen = next_batch(lengths, budget=budget)
        members = [lengths[place] for place in chosen]
        assert len(set(chosen)) == len(chosen)
        computed = computed_tokens(members)
        assert len(chosen) == 1 or computed <= budget
        assert sum(members) >= (1 - MOST_PADDING) * computed
        left = [length for place, length in enumerate(lengths) if place not in chosen]
        if left:
            # `min` takes the earliest of equals.
            nearest = min(left, key=lambda length: abs(length - lengths[0]))
            computed = computed_tokens([*members, nearest])
            assert computed > budget or sum(members) + nearest < (1 - MOST_PADDING) * computed


class Model:
    """Its vector of a prompt is the prompt's length; it notes its batches. A prompt of 13 tokens it does not take."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def run(self, prompts: Sequence[Sequence[int]]) -> list[Vector]:
        lengths = [len(prompt) for prompt in prompts]
        self.batches.append(lengths)
        if 13 in lengths:
            raise ValueError("13 tokens")
        return [[float(length)] for length in lengths]


@asynccontextmanager
async def batches_of(model: Model, *, budget: int) -> AsyncIterator[SortedBatches]:
    batches = SortedBatches(model.run, budget=budget)
    running = asyncio.create_task(batches.run_batches())
    yield batches
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def a_load(*lengths: int, vectors: bool = True) -> EncoderLoad:
    return EncoderLoad(prompts=[[1] * length for length in lengths], at=[0.0] * len(lengths), vectors=vectors)


class TestSortedBatches:
    async def test_everyone_gets_the_own_vector_and_padding_is_counted(self) -> None:
        model = Model()
        async with batches_of(model, budget=40) as batches:
            run = await play(batches, a_load(20, 3, 19, 3))
        assert run.vectors == [[20.0], [3.0], [19.0], [3.0]]
        assert model.batches == [[20, 19], [3, 3]]
        assert run.computed == 2 * 20 + 2 * 3

    async def test_a_load_counts_what_it_computed_itself(self) -> None:
        async with batches_of(Model(), budget=40) as batches:
            await play(batches, a_load(20, 3))
            run = await play(batches, a_load(5, vectors=False))
        assert (run.computed, run.vectors) == (5, [])

    async def test_a_batch_that_fails_is_told_to_its_members_and_the_next_one_runs(self) -> None:
        async with batches_of(Model(), budget=13) as batches:
            one, other = await asyncio.gather(batches.embed([1] * 13), batches.embed([1] * 3), return_exceptions=True)
        assert isinstance(one, ValueError)
        assert other == [3.0]


#: An encoder that prints, and of which a prompt without tokens is the end.
CHILD = """
import asyncio, sys
from flyball_lab.benches.padded.encoder import own_output, serve

class Lengths:
    computed = 0

    async def embed(self, prompt):
        print("noise")
        if not prompt:
            sys.exit("no tokens")
        self.computed += 2 * len(prompt)
        return [float(len(prompt))]

asyncio.run(serve(Lengths(), own_output()))
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[EncoderProcess]:
    with started([sys.executable, "-c", CHILD], os.environ, tmp_path / "log") as process:
        process.expect_ready()
        yield process


class TestTheProcess:
    def test_plays_one_load_after_another_whatever_it_prints(self, child: EncoderProcess) -> None:
        assert child.play(a_load(2, 3)).vectors == [[2.0], [3.0]]
        run = child.play(a_load(4, vectors=False))
        assert (run.computed, run.vectors, len(run.latencies)) == (8, [], 1)

    def test_that_ends_is_told_with_its_last_words(self, child: EncoderProcess) -> None:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"ended with 1: (.|\n)*no tokens"):
                child.play(a_load(0))

    def test_that_says_something_else_first_is_not_ready(self, tmp_path: Path) -> None:
        with (
            started([sys.executable, "-c", "print('busy')"], os.environ, tmp_path / "log") as process,
            pytest.raises(RuntimeError, match="expected 'ready', got 'busy'"),
        ):
            process.expect_ready()


def played(seconds: float, *latencies: float, computed: int = 300) -> Played:
    load = EncoderLoad(prompts=[[1] * 100, [1] * 50], at=[0.0, 0.0])
    return Played(load, EncoderRun(seconds=seconds, latencies=latencies, computed=computed))


def figures() -> dict[str, dict[str, float]]:
    at_once = {
        "theirs": [played(1.0, 0.5, 1.0, computed=150), played(2.0, 1.0, 2.0, computed=150)],
        PADDED: [played(2.0, 1.0, 2.0), played(8.0, 4.0, 8.0, computed=200)],
    }
    at_random = {engine: [played(1.0, 0.25, 0.75)] for engine in at_once}
    return figures_of(at_once, at_random, rate=12.5)


class TestFigures:
    def test_what_is_compared_are_runs_of_one_repetition(self) -> None:
        theirs, ours = figures()[compare.AT_ONCE + "theirs"], figures()[compare.AT_ONCE + PADDED]
        assert theirs["inputs/s"] == pytest.approx(1.5)
        assert (theirs["from"], theirs["to"]) == (2.0, 4.0)
        assert theirs["over padded"] == pytest.approx(8**0.5)
        assert (ours["from"], ours["over padded"], ours["to"]) == (1.0, 1.0, 1.0)

    def test_padding_is_what_was_computed_beyond_the_prompts(self) -> None:
        assert figures()[compare.AT_ONCE + "theirs"]["padding %"] == 0.0
        assert figures()[compare.AT_ONCE + PADDED]["padding %"] == pytest.approx(40.0)

    def test_there_is_a_table_for_each_load(self) -> None:
        found = compare.tables(figures())
        assert set(found) == {"", "open"}
        assert found[""].rows[0] == ("theirs", 1.5, "2.83 (2.00-4.00)", 1.0, 2.0, 0.0)
        assert found["open"].columns[0].title == "12.5 inputs/s at random times"
        assert [row[0] for row in found["open"].rows] == ["theirs", PADDED]


class TestVectors:
    def test_that_agree_are_taken(self) -> None:
        expect_alike({"theirs": [[0.0, 1.0], [1.0, 0.0002]], PADDED: [[0.0, 1.0], [1.0, 0.0]]})

    def test_that_differ_are_refused_by_the_name_of_the_engine(self) -> None:
        with pytest.raises(RuntimeError, match=r"theirs: its vectors are up to 0\.2 from"):
            expect_alike({"theirs": [[0.0, 1.0], [1.0, 0.2]], PADDED: [[0.0, 1.0], [1.0, 0.0]]})

    def test_that_are_all_alike_show_nothing(self) -> None:
        with pytest.raises(RuntimeError, match=r"only 0\.001 apart"):
            expect_alike({PADDED: [[0.0, 1.0], [0.001, 1.0]]})


class Says:
    """A class of Transformers that says vLLM may put its attention in."""

    @classmethod
    def is_backend_compatible(cls) -> bool:
        return True

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True


class SaysNothing(Says):
    @classmethod
    def is_backend_compatible(cls) -> bool:
        return False


class Cannot(SaysNothing):
    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return False


@pytest.mark.parametrize(
    ("cls", "name", "expected"),
    [
        (Cannot, "LlamaForCausalLM", OWN),
        (Cannot, "LlamaForScores", OWN),
        (Says, "AlbertForScores", BACKEND),
        (SaysNothing, "T5ForScores", UNSAID),
        (Cannot, "DebertaForScores", NONE),
    ],
)
def test_the_way_in_which_vllm_serves_a_class(cls: type[Cannot], name: str, expected: str) -> None:
    assert way(cls, name, {"LlamaForCausalLM"}, lambda one: [one.replace("ForScores", "ForCausalLM")]) == expected


def test_each_way_is_counted_and_has_a_column() -> None:
    found = counted({"A": OWN, "B": NONE, "C": NONE})
    assert found == {THERE: 3, OWN: 1, BACKEND: 0, UNSAID: 0, NONE: 2}
    made: FigureTable = architectures.tables({"encoders": {way: float(count) for way, count in found.items()}})[""]
    assert [column.title for column in made.columns] == ["model classes", THERE, OWN, BACKEND, UNSAID, NONE]
    assert made.rows == (("encoders", 3, 1, 0, 0, 2),)


@pytest.mark.parametrize(
    "module", ["make_encoder", architectures.MODULE, *(one[0] for one in compare.ENGINES.values())]
)
def test_what_the_python_of_vllm_runs_is_there(module: str) -> None:
    assert importlib.util.find_spec(f"{TOOLS}.{module}") is not None
