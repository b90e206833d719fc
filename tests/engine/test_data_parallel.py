"""Two engine cores behind one API server: both are governed, and requests are counted over both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flyball_engine.contract import Metric
from support.counted import Counted, expect_the_clients_agree
from support.engine import ControlClient, setpoint
from support.vllm_server import VllmServer, started

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def server(
    vllm_python: str, plugin: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """A governed server of two cores."""
    owned = ["--max-num-seqs=64", "--max-num-batched-tokens=512", "--enable-prefix-caching"]
    user = ["--data-parallel-size=2"]
    folder = tmp_path_factory.mktemp("server")
    with started(vllm_python, folder, model=model, plugin=plugin, owned=owned, user=user) as running:
        running.expect_ready()
        yield running


async def test_both_cores_obey_and_their_requests_are_counted_together(
    server: VllmServer, note_figure: Callable[[str], None]
) -> None:
    counted = Counted(server)
    # Not the gaps: two engine cores leave the clients so little of two processors that they read tokens in bunches.
    measured = [metric for metric in Metric if metric is not Metric.INTER_TOKEN_LATENCY]
    await expect_the_clients_agree(counted, note_figure, seed=3, metrics=measured)
    control = ControlClient(server.control_url, server.signer)
    control.put(setpoint(100, limits={"max_num_active_seqs": 24}))  # later than those that counting took
    cores = control.read().cores
    assert [core.engine for core in cores] == [0, 1]
    assert [core.effective.max_num_active_seqs for core in cores] == [24, 24]
    assert all(sum(sums.steps for sums in core.steps) > 0 for core in cores), "one core served nobody"
