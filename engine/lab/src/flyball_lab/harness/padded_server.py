"""A served padded engine, a process of its own: before a real model, or before the one that only counts."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from flyball_engine.contract import Env
from flyball_engine.knobs import Dynamic
from flyball_lab.harness.engine import SERVICE, SetpointSigner
from flyball_lab.harness.launcher import SOURCE, environment
from flyball_lab.harness.padded import Counter
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.vllm_server import MODEL_NAME, VllmServer
from flyball_lab.padded.batch import Batch
from flyball_lab.padded.engine import PaddedConfig
from flyball_lab.padded.server import ServerConfig, serve_forever
from flyball_lab.repository import ROOT

LAB = ROOT / "engine/lab/src"


@contextmanager
def padded(
    python: str, folder: Path, *, model: Path, options: Sequence[str] = (), port: int | None = None
) -> Iterator[VllmServer]:
    """The real one, in float32 unless told, so that what is computed together is what is computed alone."""
    command = ["-P", "-m", "flyball_lab.padded", "serve", f"--model={model}", f"--served-model-name={MODEL_NAME}"]
    # The other core is for the clients, which measure.
    whole = [python, *command, "--dtype=float32", *options]
    with _served(whole, folder, {"OMP_NUM_THREADS": "1"}, port=port) as server:
        yield server


@contextmanager
def counting(folder: Path, *options: str) -> Iterator[VllmServer]:
    """One that needs no model, and takes 30 ms for a step: 500 are longer than any client here is held up.

    `--panics`: its third step is its last.
    """
    with _served([sys.executable, "-m", "flyball_lab.harness.padded_server", *options], folder, {}) as server:
        yield server


@contextmanager
def _served(
    command: list[str], folder: Path, variables: Mapping[str, str], *, port: int | None = None
) -> Iterator[VllmServer]:
    port, control, signer = port or free_port(), free_port(), SetpointSigner()
    settings = environment(
        folder,
        python_path=[SOURCE, LAB],
        **{
            Env.SERVICE_UID.value: SERVICE,
            Env.PUBLIC_KEY.value: signer.public_pem,
            Env.CONTROL_PORT.value: str(control),
            **variables,
        },
    )
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen([*command, f"--port={port}"], env=settings, stdout=out, stderr=out)
    server = VllmServer(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control}", signer, log)
    try:
        server.expect_ready()
        yield server
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=60)


class Panic(BaseException):
    """As Rust code panics (a tokeniser's, say): no Exception, so that nobody takes it for one batch's."""


class Panicking(Counter):
    """Ends in the middle of a batch."""

    def run(self, batch: Batch) -> None:
        batch.stepped([1] * len(batch.rows))
        batch.stepped([2] * len(batch.rows))
        raise Panic("index out of bounds")


def _count_forever(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--panics", action="store_true")
    parsed = parser.parse_args(arguments)
    start = Dynamic(batch_size=4, max_delay_seconds=0.0)
    engine = PaddedConfig(max_num_seqs=8, start=start, max_queue=4)
    config = ServerConfig(engine=engine, host="127.0.0.1", port=parsed.port, model=MODEL_NAME, drain_seconds=60)
    serve_forever(Panicking() if parsed.panics else Counter(seconds=0.03), config)


if __name__ == "__main__":
    _count_forever(sys.argv[1:])
