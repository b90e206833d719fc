"""Two engine cores behind three API servers: all are governed, and requests are counted over all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flyball_lab.harness.engine import ControlClient
from flyball_lab.harness.vllm_server import MODEL_NAME, started
from flyball_lab.harness.waiting import eventually
from support.counted import Counted, expect_all_counted
from support.measured import measure, mixed
from support.served import Served

pytestmark = pytest.mark.engine

STREAMS = 16
REQUESTS = 64


@pytest.fixture(scope="module")
def two_cores(
    server_python: str, forking_plugin: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A governed engine of two cores, behind one API server that has the control port, and two that follow."""
    owned = ["--max-num-seqs=64", "--max-num-batched-tokens=512", "--enable-prefix-caching", "--data-parallel-size=2"]
    user = ["--api-server-count=3"]
    folder = tmp_path_factory.mktemp("server")
    with started(server_python, folder, model=model, plugin=forking_plugin, owned=owned, user=user) as server:
        server.expect_ready()
        with closing(ControlClient(server.control_url, server.signer)) as control:
            eventually(control.read, expecting="the first API server has the control port; another may serve before")
            yield Served(server, control)


@pytest.fixture
def counted(two_cores: Served) -> Counted:
    return Counted(two_cores)


@pytest.mark.parametrize(("threshold", "met"), [(1000.0, 1.0), (1e-6, 0.0)])
async def test_their_requests_are_counted_together(counted: Counted, threshold: float, met: float) -> None:
    # Two engine cores leave the clients too little of two processors to say when their tokens came.
    await expect_all_counted(counted, mixed(REQUESTS, seed=4), concurrency=STREAMS, threshold=threshold, met=met)


async def test_all_obey(two_cores: Served, counted: Counted) -> None:
    counted.against(())
    await measure(two_cores.server.url, MODEL_NAME, mixed(STREAMS, seed=5), concurrency=STREAMS)
    counted.expect_outcomes(finished=STREAMS)
    told = two_cores.set(limits={"max_num_active_seqs": 24})
    cores = told.cores
    assert told.ungated is None, "every API server follows"
    assert [core.engine for core in cores] == [0, 1]
    assert [core.effective.max_num_active_seqs for core in cores] == [24, 24]
    assert all(sum(sums.steps for sums in core.steps) > 0 for core in cores), "one core served nobody"
