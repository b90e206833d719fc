"""Prefill/decode disaggregation with two real engines: one processes prompts, the other makes the answers.

The connectors are vLLM's example, which leaves KV cache in files, and NIXL, which production uses: here it copies
between the processes by UCX, and requests wait while it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyball_engine.contract import CoreState, MetricName, OnTime, OrderKnob, StepSums
from flyball_engine.model import StepModel
from flyball_lab.harness.engine import ControlClient
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.vllm_server import MODEL_NAME, make_plugin, started
from flyball_lab.harness.waiting import eventually
from flyball_operator.api.kv_transfer import KVTransfer
from flyball_operator.reconcile.plan.pod import kv_transfer
from support.disaggregated import Router
from support.greedy import Prompts, greedy, some_prompts
from support.nixl import nixl_packages
from support.reflexes import a_budget
from support.served import Served

pytestmark = [pytest.mark.engine, pytest.mark.long]

EXAMPLE: Final = "ExampleConnector"
NIXL: Final = "NixlConnector"
SIZES: Final = ("--max-num-seqs=16", "--max-num-batched-tokens=512", "--dtype=float32")
ANSWER: Final = 12
#: No two begin alike, so that nothing of a prompt is known before.
ROUNDS: Final = [[[first, *prompt[1:]] for prompt in some_prompts(12)] for first in (10, 11, 12, 13)]
LONGEST: Final = max(map(len, ROUNDS[0]))
#: Tokens of all prompts of a round.
GIVEN: Final = sum(map(len, ROUNDS[0]))


@dataclass
class Pair:
    """Two engines that a router serves requests with."""

    producer: Served
    consumer: Served
    connector: str

    def answers(self, prompts: Prompts) -> list[list[int]]:
        """The tokens of each prompt's answer."""
        nixl = self.connector == NIXL
        router = Router(self.producer.server.url, self.consumer.server.url, MODEL_NAME, names_cache=nixl)
        # The example keeps what the first step of a prompt leaves, so each is to be processed in one step.
        return router.answers(prompts, max_tokens=ANSWER, processed_together=len(prompts) if nixl else 1)


def with_nixl(folder: Path) -> Path:
    """A folder for PYTHONPATH with the plugin and NIXL."""
    make_plugin(folder)
    for package in nixl_packages().glob("nixl*"):
        (folder / package.name).symlink_to(package)
    return folder


@pytest.fixture(scope="module", params=[EXAMPLE, NIXL])
def pair(
    request: pytest.FixtureRequest,
    server_python: str,
    plugin: Path,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """Started as the pods of two services are, with these roles."""
    connector = str(request.param)
    caches = tmp_path_factory.mktemp("caches")
    extra = {"shared_storage_path": str(caches)} if connector == EXAMPLE else {}
    on_path = with_nixl(tmp_path_factory.mktemp("nixl") / "packages") if connector == NIXL else plugin
    with ExitStack() as stack:
        servers = []
        for role in ("Producer", "Consumer"):
            asked = {"role": role, "connector": connector, "extraConfig": extra}
            arguments = kv_transfer(KVTransfer.model_validate(asked))
            server = started(
                server_python,
                tmp_path_factory.mktemp(role),
                model=model,
                plugin=on_path,
                owned=[*SIZES, *arguments],
                VLLM_NIXL_SIDE_CHANNEL_PORT=str(free_port()),
            )
            servers.append(stack.enter_context(server))
        engines = []
        for one in servers:
            one.expect_ready()
            engines.append(Served(one, stack.enter_context(closing(ControlClient(one.control_url, one.signer)))))
        yield Pair(engines[0], engines[1], connector)


@pytest.fixture(scope="module")
def wanted(
    server_python: str, plugin: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[list[list[int]]]:
    """The answers of one engine that does both."""
    folder = tmp_path_factory.mktemp("alone")
    with started(server_python, folder, model=model, plugin=plugin, owned=SIZES) as server:
        server.expect_ready()
        return [greedy(server.url, prompts, max_tokens=ANSWER) for prompts in ROUNDS]


def new_steps(before: CoreState, after: CoreState) -> list[StepSums]:
    """What was processed in between, by kind and size of step."""
    known = {(sums.kind, sums.bucket): sums for sums in before.steps}
    found = []
    for sums in after.steps:
        old = known.get((sums.kind, sums.bucket))
        figures = ("steps", "tokens", "prefill_tokens", "decodes")
        grown = {name: getattr(sums, name) - (getattr(old, name) if old is not None else 0) for name in figures}
        if grown["steps"]:
            found.append(sums.model_copy(update=grown))
    return found


def moved(engine: Served, **limits: int) -> CoreState:
    """What its core reports, idle, once it confirmed these limits."""
    engine.set(limits=limits)
    eventually(lambda: engine.core().running == 0, expecting="nobody runs")
    core = engine.core()
    assert {name: getattr(core.effective, name) for name in limits} == limits
    return core


def counted(engine: Served, name: str) -> float:
    """A counter of the control port, over all its labels."""
    text = httpx.get(f"{engine.server.control_url}/metrics", trust_env=False).text
    families = text_string_to_metric_families(text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def test_two_engines_answer_as_one_does_while_the_limit_of_each_role_moves(
    wanted: list[list[list[int]]], pair: Pair
) -> None:
    engines = (pair.producer, pair.consumer)
    cores = [engine.server.engine_core() for engine in engines]
    # With NIXL prompts are processed in parts, too.
    fewer = 64 if pair.connector == NIXL else 448
    assert fewer < LONGEST or pair.connector == EXAMPLE
    for prompts, answers, tokens, seqs in zip(ROUNDS[:3], wanted[:3], (512, fewer, 512), (16, 2, 16), strict=True):
        before = moved(pair.producer, max_num_scheduled_tokens=tokens), moved(pair.consumer, max_num_active_seqs=seqs)
        assert pair.answers(prompts) == answers
        processed, made = (new_steps(then, moved(engine)) for engine, then in zip(engines, before, strict=True))
        assert sum(sums.prefill_tokens for sums in processed) == GIVEN
        assert sum(sums.decodes for sums in processed) == 0, "each request ends there with its first token"
        assert all(sums.tokens <= tokens * sums.steps for sums in processed)
        assert sum(sums.decodes for sums in made) == len(prompts) * (ANSWER - 1)
        assert max(sums.decodes / sums.steps for sums in made) <= seqs
        # The example brings whole blocks of 128 tokens, NIXL all but a prompt's last token.
        left = sum(sums.prefill_tokens for sums in made)
        assert len(prompts) <= left < GIVEN / 2
        assert (left == len(prompts)) == (pair.connector == NIXL)
    assert [engine.server.engine_core() for engine in engines] == cores, "no engine was started anew"
    assert [engine.core().watchdog_trips for engine in engines] == [0, 0]


def test_what_was_loaded_counts_as_cached(pair: Pair) -> None:
    prompts = [[14, *prompt[1:]] for prompt in ROUNDS[0]]
    before = counted(pair.consumer, MetricName.CACHED_PROMPT_TOKENS)
    pair.answers(prompts)

    def loaded() -> float:
        return counted(pair.consumer, MetricName.CACHED_PROMPT_TOKENS) - before

    # Each is counted once its answer has ended.
    eventually(lambda: loaded() > GIVEN / 2, expecting="most of the prompts count as cached")
    assert loaded() < GIVEN


def test_whoever_processes_prompts_for_others_orders_them_and_the_answers_stay(
    wanted: list[list[list[int]]], pair: Pair
) -> None:
    assert "an order of its own" in pair.consumer.control.read().unsupported[OrderKnob.ON_TIME]
    if pair.connector == EXAMPLE:
        assert OrderKnob.ON_TIME in pair.producer.control.read().unsupported, "it loads what it finds"
        return
    before = pair.producer.core().order.moved_behind
    # Steps of few tokens, and a deadline that many miss on any machine: prompts are begun, overtaken, taken up again.
    pair.producer.set(
        step=a_budget(0.01, StepModel(t0=0.002, h=0.0, c1=0.0003, c2=0.0003, beta=0.0, g=0.0, kappa=64)),
        on_time=OnTime(first_token_deadline_seconds=0.05),
    )
    try:
        assert pair.answers(ROUNDS[3]) == wanted[3]
        assert pair.producer.core().order.moved_behind > before
    finally:
        pair.producer.set()


def test_who_loads_prompts_refuses_none_as_late(pair: Pair) -> None:
    # By the role alone nobody knows: the example loads whatever it finds.
    assert (pair.producer.control.read().ungated is None) == (pair.connector == NIXL)
    assert "loads prompts from elsewhere" in (pair.consumer.control.read().ungated or "")
