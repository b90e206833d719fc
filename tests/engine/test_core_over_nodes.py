"""One engine core over two pods, here launchers on one machine: the first serves and is governed."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from flyball_engine.contract import MetricName
from flyball_lab.harness.engine import ControlClient
from flyball_lab.harness.vllm_server import MODEL_NAME, VllmServer, started
from flyball_lab.harness.waiting import eventually
from support.counted import Counted
from support.measured import measure, mixed
from support.served import Served

pytestmark = pytest.mark.engine

NODES = 2
STREAMS = 16


@pytest.fixture
def group(
    server_python: str, forking_plugin: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, VllmServer]]:
    """The leader, and its worker; whose user wants two API servers."""
    owned = ["--max-num-seqs=64", "--max-num-batched-tokens=512", "--enable-prefix-caching"]
    owned.append(f"--tensor-parallel-size={NODES}")
    # Not in a folder of the test's long name: vLLM's sockets are in these, and paths of sockets have 107 characters.
    folders = [tmp_path_factory.mktemp("node") for _ in range(NODES)]
    with ExitStack() as stack:
        leader, worker = (
            stack.enter_context(
                started(
                    server_python,
                    folder,
                    model=model,
                    plugin=forking_plugin,
                    owned=owned,
                    user=["--api-server-count=2"],
                    LWS_GROUP_SIZE=str(NODES),
                    LWS_WORKER_INDEX=str(index),
                    LWS_LEADER_ADDRESS=socket.gethostname(),
                )
            )
            for index, folder in enumerate(folders)
        )
        leader.expect_ready()
        control = stack.enter_context(closing(ControlClient(leader.control_url, leader.signer)))
        eventually(control.read, expecting="the first API server has the control port; another may serve before")
        yield Served(leader, control), worker


async def test_its_limits_move_under_load_no_token_is_lost_and_its_worker_ends_when_told(
    group: tuple[Served, VllmServer],
) -> None:
    served, worker = group
    counted = Counted(served)
    wishes = mixed(STREAMS, seed=6)
    made = sum(wish.n * wish.prompts * wish.max_tokens for wish in wishes)
    for limit in (4, 24):
        counted.put(limits={"max_num_active_seqs": limit})
        before = counted(MetricName.GENERATED_TOKENS)
        await measure(served.server.url, MODEL_NAME, wishes, concurrency=STREAMS)
        eventually(lambda: counted(MetricName.GENERATED_TOKENS) - before == made, expecting=f"{made} tokens")  # noqa: B023
        assert served.core().effective.max_num_active_seqs == limit
    assert served.core().watchdog_trips == 0
    assert worker.process.poll() is None, worker.tail()
    worker.process.send_signal(signal.SIGTERM)
    worker.process.wait(timeout=60)
