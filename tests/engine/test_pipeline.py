"""An engine whose layers are split into two stages: two steps are in flight, each with a half of the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flyball_engine.contract import CoreState, Metric, MetricName, StepKind
from flyball_engine.model import StepModel
from flyball_lab.harness.engine import ControlClient
from flyball_lab.harness.vllm_server import MODEL_NAME, make_plugin, started
from flyball_lab.harness.waiting import eventually
from support import forked_processes, stages_on_cpu
from support.counted import Counted
from support.measured import Wish, measure, mixed
from support.reflexes import a_budget
from support.served import Served

pytestmark = pytest.mark.engine

ANSWER = 100
STREAMS = 16
#: A step of 50 ms has 25 tokens, or twice as many by the engine's own bias, which does not fall below a half.
SLOW = StepModel(t0=0.0, h=0.0, c1=0.002, c2=0.002, beta=0.0, g=0.0, kappa=1)


@pytest.fixture(scope="module")
def two_stages(server_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A governed server of two stages."""
    owned = ["--max-num-seqs=64", "--max-num-batched-tokens=512", "--pipeline-parallel-size=2"]
    owned.append("--no-enable-prefix-caching")
    folder = tmp_path_factory.mktemp("server")
    plugin = make_plugin(folder / "plugin", Path(stages_on_cpu.__file__), Path(forked_processes.__file__))
    with started(server_python, folder, model=model, plugin=plugin, owned=owned) as server:
        server.expect_ready()
        with closing(ControlClient(server.control_url, server.signer)) as control:
            yield Served(server, control)


def decode_steps(core: CoreState) -> tuple[int, int, float]:
    """Steps of decodes alone: how many, their decodes, their seconds."""
    alone = [sums for sums in core.steps if sums.kind is StepKind.DECODE]
    return sum(one.steps for one in alone), sum(one.decodes for one in alone), sum(one.seconds for one in alone)


@pytest.mark.alone
@pytest.mark.parametrize("streams", [pytest.param(1, marks=pytest.mark.long), STREAMS])
async def test_a_token_takes_as_many_steps_as_there_are_stages(
    two_stages: Served, streams: int, note_figure: Callable[[str], None]
) -> None:
    # Prompts of which a few fill a step, so that not all join in the same one.
    wishes = [Wish(prompt_tokens=150, max_tokens=ANSWER)] * streams
    await measure(two_stages.server.url, MODEL_NAME, wishes, concurrency=streams)
    before = decode_steps(two_stages.core())
    seen = await measure(two_stages.server.url, MODEL_NAME, wishes, concurrency=streams)
    steps, decodes, seconds = (
        after - earlier for after, earlier in zip(decode_steps(two_stages.core()), before, strict=True)
    )
    # Of the whole answer: who reads late may find all of its tokens at once.
    token, step = seen.median(Metric.END_TO_END_LATENCY) / ANSWER, seconds / steps
    note_figure(f"{decodes / steps:.1f} of {streams} requests in a step; a token takes {token / step:.2f} steps")
    assert decodes / steps <= max(1.0, 0.75 * streams)
    # No more than that: what a client sees of a token grows with whatever else the machine does.
    assert token / step >= 1.3


async def test_its_limits_move_under_load_and_no_token_is_lost(two_stages: Served) -> None:
    counted = Counted(two_stages)
    wishes = mixed(STREAMS, seed=6)
    for limits in ({"max_num_active_seqs": 4, "max_num_scheduled_tokens": 128}, {"max_num_active_seqs": 24}):
        counted.put(limits=limits)
        before = counted(MetricName.GENERATED_TOKENS)
        await measure(two_stages.server.url, MODEL_NAME, wishes, concurrency=STREAMS)
        made = sum(wish.n * wish.prompts * wish.max_tokens for wish in wishes)
        eventually(lambda: counted(MetricName.GENERATED_TOKENS) - before == made, expecting=f"{made} tokens")  # noqa: B023
        assert two_stages.core().effective.max_num_active_seqs == limits["max_num_active_seqs"]
    assert two_stages.core().watchdog_trips == 0


async def test_its_steps_keep_to_a_budget(two_stages: Served) -> None:
    """Each is told of a model by which a budget leaves a prompt few tokens, whatever the machine takes."""
    counted = Counted(two_stages)
    sizes = []
    for budget in (None, a_budget(0.050, SLOW)):
        before = mixed_steps(two_stages.core())
        counted.put(step=budget)
        wishes = [Wish(prompt_tokens=200, max_tokens=16)] * (2 * STREAMS)
        seen = await measure(two_stages.server.url, MODEL_NAME, wishes, concurrency=STREAMS)
        assert len(seen.finished) == len(wishes)
        steps, tokens = (after - earlier for after, earlier in zip(mixed_steps(two_stages.core()), before, strict=True))
        sizes.append(tokens / steps)
    assert sizes[1] < sizes[0] / 2
    assert two_stages.core().watchdog_trips == 0


def mixed_steps(core: CoreState) -> tuple[int, int]:
    """Steps with a prompt, and their prompt tokens."""
    mixed_ones = [sums for sums in core.steps if sums.kind is StepKind.MIXED]
    return sum(one.steps for one in mixed_ones), sum(one.prefill_tokens for one in mixed_ones)
