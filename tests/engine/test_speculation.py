"""A real vLLM that drafts by n-grams: how deep is moved while it serves, and its answers stay what they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyball_engine.contract import Knob, MetricName
from flyball_lab.harness.engine import ControlClient
from flyball_lab.harness.vllm_server import started
from flyball_lab.harness.waiting import eventually
from flyball_operator.api.v1alpha1 import Batching
from flyball_operator.reconcile.plan.pod import speculation
from support.greedy import Prompts, greedy
from support.served import Served

pytestmark = [pytest.mark.engine, pytest.mark.long]

DEPTH = 3
SLOTS = 16
ANSWER = 40
SIZES = ("--max-num-seqs=16", "--max-num-batched-tokens=512", "--dtype=float32")


def served(python: str, folder: Path, model: Path, plugin: Path, *arguments: str) -> Iterator[Served]:
    with started(python, folder, model=model, plugin=plugin, owned=[*SIZES, *arguments]) as server:
        server.expect_ready()
        with closing(ControlClient(server.control_url, server.signer)) as control:
            yield Served(server, control)


@pytest.fixture(scope="module")
def drafting(
    server_python: str, model: Path, plugin: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """As a service's pod is started; shorter n-grams than vLLM's own find more."""
    batching = {"maxNumSeqs": SLOTS, "speculative": {"method": "ngram", "numSpeculativeTokens": DEPTH}}
    (argument,) = speculation(Batching.model_validate(batching), live=True)
    name, _, config = argument.partition("=")
    shorter = json.loads(config) | {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
    folder = tmp_path_factory.mktemp("drafting")
    yield from served(server_python, folder, model, plugin, f"{name}={json.dumps(shorter)}")


@pytest.fixture(scope="module")
def plain(server_python: str, model: Path, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It drafts nothing."""
    yield from served(server_python, tmp_path_factory.mktemp("plain"), model, plugin)


def repeating(count: int) -> Prompts:
    """Prompts that say the same again and again, so that drafts are found."""
    return [[100 + number * 40 + at % 7 for at in range(20 + 5 * number)] for number in range(count)]


def positions(engine: Served) -> dict[tuple[int, str], float]:
    """What became of drafts, by position and state."""
    text = httpx.get(f"{engine.server.control_url}/metrics", trust_env=False).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == MetricName.DRAFT_POSITIONS:
                found[int(sample.labels["position"]), sample.labels["state"]] = sample.value
    return found


def test_a_depth_that_moves_live_changes_no_answer_and_drafts_follow(drafting: Served, plain: Served) -> None:
    prompts = repeating(8)
    wanted = greedy(plain.server.url, prompts, max_tokens=ANSWER)
    assert Knob.NUM_SPECULATIVE_TOKENS not in drafting.control.read().unsupported
    offered = {}
    for depth in (3, 1, 0, 3):
        drafting.set(limits={"num_speculative_tokens": depth})
        eventually(lambda: drafting.core().running == 0, expecting="nobody runs")
        assert drafting.core().effective.num_speculative_tokens == depth
        before = positions(drafting)
        assert greedy(drafting.server.url, prompts, max_tokens=ANSWER) == wanted
        eventually(lambda: drafting.core().running == 0, expecting="nobody runs")
        after = positions(drafting)
        offered[depth] = {key: after[key] - before.get(key, 0.0) for key in after}
        for position in range(1, DEPTH + 1):
            counts = [offered[depth].get((position, state), 0.0) for state in ("offered", "drafted", "accepted")]
            assert counts == sorted(counts, reverse=True)
    # Every 5 s one step drafts in full all the same.
    seldom = 0.2
    for depth, found in offered.items():
        decodes = len(prompts) * (ANSWER - 1)
        for position in range(1, DEPTH + 1):
            share = found.get((position, "offered"), 0.0) / decodes
            assert (share > seldom) == (position <= depth), (depth, position, found)
    assert offered[3][1, "accepted"] > 0
    assert drafting.core().watchdog_trips == 0


def test_an_engine_that_does_not_speculate_says_so_and_counts_no_drafts(plain: Served) -> None:
    unsupported = plain.control.read().unsupported
    assert "without speculative decoding" in unsupported[Knob.NUM_SPECULATIVE_TOKENS]
    assert positions(plain) == {}
