"""Two engine cores behind one API server: both are governed, and requests are counted over both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flyball_engine.contract import Metric
from support.counted import Counted, expect_agreement, near_what_was_seen
from support.engine import ControlClient
from support.measured import Measurement, measure, mixed
from support.served import Served
from support.vllm_server import MODEL_NAME, started

pytestmark = pytest.mark.engine

STREAMS = 16
REQUESTS = 64
#: Not the gaps: two engine cores leave the clients so little of two processors that they read tokens in bunches.
METRICS = tuple(metric for metric in Metric if metric is not Metric.INTER_TOKEN_LATENCY)


@pytest.fixture
def two_cores(
    vllm_python: str, plugin: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A governed server of two engine cores."""
    owned = ["--max-num-seqs=64", "--max-num-batched-tokens=512", "--enable-prefix-caching"]
    user = ["--data-parallel-size=2"]
    folder = tmp_path_factory.mktemp("server")
    with started(vllm_python, folder, model=model, plugin=plugin, owned=owned, user=user) as server:
        server.expect_ready()
        with closing(ControlClient(server.control_url, server.signer)) as control:
            yield Served(server, control)


async def test_both_obey_and_their_requests_are_counted_together(
    two_cores: Served, note_figure: Callable[[str], None]
) -> None:
    counted, url = Counted(two_cores), two_cores.server.url
    first = await measure(url, MODEL_NAME, mixed(2 * STREAMS, seed=3), concurrency=STREAMS)
    objectives = near_what_was_seen(Measurement(first.seen[STREAMS:]), METRICS)
    counted.against(objectives)
    seen = await measure(url, MODEL_NAME, mixed(REQUESTS, seed=4), concurrency=STREAMS)
    counted.expect_outcomes(finished=REQUESTS)
    expect_agreement(counted, seen, objectives, note_figure)

    cores = two_cores.set(limits={"max_num_active_seqs": 24}).cores
    assert [core.engine for core in cores] == [0, 1]
    assert [core.effective.max_num_active_seqs for core in cores] == [24, 24]
    assert all(sum(sums.steps for sums in core.steps) > 0 for core in cores), "one core served nobody"
