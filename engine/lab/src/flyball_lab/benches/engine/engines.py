"""The engines of the parts that measure a real vLLM: one governed, one stock, both of the same Python and arguments.

Both are started by the launcher; the stock one finds no plugin, and so runs as plain vLLM. In the governed one each
step is timed (`timed_steps`). One process of vLLM's load generator is the clients of both. Where clients must not
disturb engines, they have a processor of their own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from flyball_engine.contract import Generation, ReadBack
from flyball_lab.benches.engine import timed_steps
from flyball_lab.benches.engine.load import Ask, Clients, Prompts, clients, closed
from flyball_lab.benches.engine.timed_steps import TimedStep, read_steps
from flyball_lab.harness.engine import ControlClient, setpoint
from flyball_lab.harness.vllm_server import SMALL, VllmServer, make_model, make_plugin, started
from flyball_lab.repository import ROOT

SLOTS, TOKENS, MODEL_LENGTH = 64, 8192, 4096


@dataclass(frozen=True)
class Where:
    """Which Python with vLLM, and which model; None is the small one of the CPU engine image."""

    python: str
    model: Path | None = None

    @functools.cached_property
    def gpu(self) -> str | None:
        """The GPU that torch sees there; None if none."""
        code = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
        seen = subprocess.run([self.python, "-c", code], capture_output=True, text=True, timeout=300, check=True)
        return seen.stdout.strip().splitlines()[-1] if seen.stdout.strip() else None

    @functools.cached_property
    def vllm(self) -> str:
        """The version of vLLM there."""
        code = "from vllm.version import __version__; print(__version__)"
        seen = subprocess.run([self.python, "-c", code], capture_output=True, text=True, timeout=300, check=True)
        return seen.stdout.strip().splitlines()[-1]

    @property
    def device(self) -> str:
        """What the figures were measured on."""
        return f"{os.cpu_count()} cores, {self.gpu or 'no GPU'}"


def cpu_vllm() -> Where:
    """The CPU build of vLLM that the tests run, installed where it is not."""
    if given := os.environ.get("FLYBALL_VLLM_PYTHON"):
        return Where(given)
    script = f"source {ROOT}/hack/lib/env.sh; vllm_venv"
    made = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    return Where(made.stdout.strip())


@dataclass
class Governed:
    """The governed engine: setpoints, and the steps it made."""

    server: VllmServer
    control: ControlClient
    log: Path
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def put(self, **fields: Any) -> ReadBack:
        """Apply a setpoint; the answer must confirm it."""
        generation = next(self.generations)
        answer = self.control.put(setpoint(generation, **fields))
        if not answer.confirmed(Generation(epoch=1, generation=generation)):
            raise RuntimeError(f"setpoint {generation} was not confirmed: {answer}")
        return answer

    def mark(self) -> int:
        """Where the steps that follow begin."""
        return self.log.stat().st_size if self.log.exists() else 0

    def steps(self, since: int) -> list[TimedStep]:
        """The steps from a mark on."""
        return read_steps(self.log, since=since)


@dataclass(eq=False)
class WarmEngines:
    """Both engines, warm, and their clients."""

    where: Where
    governed: Governed
    stock: VllmServer
    clients: Clients
    #: Processors there are, the first for clients where they are kept apart.
    processors: Sequence[int] = field(default_factory=lambda: sorted(os.sched_getaffinity(0)))
    random: Random = field(default_factory=lambda: Random(1788))

    @functools.cached_property
    def prompts(self) -> Prompts:
        """Prompts that no cache holds."""
        return Prompts(self.random)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """The bench and the clients on the first processor, the engines on all others, if there are others.

        Whoever leaves restores what was before, so that it may be entered within itself.
        """
        first, others = self.processors[:1], self.processors[1:]
        engines, clients = (self.governed.server.process.pid, self.stock.process.pid), self.clients.session
        before = {session: sorted(os.sched_getaffinity(session)) for session in (0, clients, *engines)}
        try:
            for session in engines:
                pin(session, others or first)
            pin(clients, first)
            os.sched_setaffinity(0, first)
            yield
        finally:
            os.sched_setaffinity(0, before[0])
            for session in (clients, *engines):
                pin(session, before[session])


@contextmanager
def both(where: Where, *, slots: int = SLOTS, timed: bool = True, size: Sequence[str] = SMALL) -> Iterator[WarmEngines]:
    """Start both engines, pinned; they end with the block.

    `timed`: each step of the governed one is written down. `size`: arguments for the model where there is no GPU.
    """
    with TemporaryDirectory(prefix="flyball-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        log = folder / "steps"
        model = where.model or make_model(where.python, folder / "model")
        plugin = make_plugin(folder / "plugin", *([Path(timed_steps.__file__)] if timed else []))
        say(f"starting two engines of vLLM {where.vllm} on {where.device}")
        written = {timed_steps.VARIABLE: str(log)} if timed else {}
        governed = stack.enter_context(_started(where, folder / "governed", model, plugin, slots, size, written))
        if where.gpu:
            governed.expect_ready()  # what another takes meanwhile would confuse vLLM's look at the device's memory
        stock = stack.enter_context(_started(where, folder / "stock", model, ROOT / "engine/src", slots, size, {}))
        # It imports vLLM while the engines do.
        generator = stack.enter_context(clients(where.python, folder))
        for server in (governed, stock):
            server.expect_ready()
        control = ControlClient(governed.control_url, governed.signer)
        stack.callback(control.close)
        if not control.read().governed:
            raise RuntimeError(f"the engine is not governed:\n{governed.tail()}")
        engines = WarmEngines(where, Governed(governed, control, log), stock, generator)
        for server in (governed, stock):
            generator.send(closed(server.url, [Ask(engines.prompts.of(500), 8) for _ in range(8)], streams=4))
        yield engines


def _started(
    where: Where, folder: Path, model: Path, plugin: Path, slots: int, size: Sequence[str], variables: dict[str, str]
) -> contextlib.AbstractContextManager[VllmServer]:
    folder.mkdir()
    owned = [f"--max-num-seqs={slots}", f"--max-num-batched-tokens={TOKENS}", "--enable-prefix-caching"]
    if where.gpu:
        # Two of them share the device: with CUDA graphs and all that vLLM does by itself there.
        size = (f"--max-model-len={MODEL_LENGTH}", "--gpu-memory-utilization=0.4")
        # Triton and torch compile there.
        kept = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
        kept_there = {name: os.environ[name] for name in kept if name in os.environ}
        variables = kept_there | {"TORCHDYNAMO_DISABLE": "0"} | variables
    return started(where.python, folder, model=model, plugin=plugin, owned=owned, size=size, port=None, **variables)


def pin(session: int, processors: Sequence[int]) -> None:
    """Have all threads of all processes of a session run on these processors."""
    for process in processes_of(session):
        for thread in process.glob("task/[0-9]*"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), processors)


def processes_of(session: int) -> list[Path]:
    """The folders in /proc of a session's processes: what was started with one, and what that started."""
    return [stat.parent for stat in Path("/proc").glob("[0-9]*/stat") if _session_of(stat) == session]


def _session_of(stat: Path) -> int | None:
    try:
        # The name in parentheses may hold anything; fields are counted from behind it.
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None  # it ended


def say(what: str) -> None:
    """Progress, for whoever waits."""
    print(f"  {what}", file=sys.stderr, flush=True)
