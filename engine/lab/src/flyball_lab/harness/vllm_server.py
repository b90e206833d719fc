"""A real vLLM on the CPU, started by the launcher as a governed pod starts it."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from flyball_engine.contract import Env
from flyball_engine.launching import launch_command
from flyball_lab.harness import cpu_image
from flyball_lab.harness.engine import SERVICE, SetpointSigner
from flyball_lab.harness.launcher import environment
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT

MODEL_NAME = "chat"
#: Two busy cores need this long at worst to load vLLM and the model.
START_SECONDS = 300.0


def make_model(python: str, folder: Path) -> Path:
    """The small model of the CPU engine image, in this folder."""
    subprocess.run([python, ROOT / "engine/cpu/make_model.py", folder], check=True, timeout=300)
    return folder


def cache_beside(model: Path) -> Path:
    """Where all who run this model keep what vLLM looks up: of a model's class it does so in a process of its own.

    That one loads vLLM, too, for several seconds; whoever comes later finds what it said.
    """
    return model.parent / "vllm"


#: How the small model runs here: as in the CPU engine image.
SMALL = (*cpu_image.arguments(), "--max-model-len=4096")


def make_plugin(folder: Path, *others: Path) -> Path:
    """What the plugin image puts on PYTHONPATH: the package, and the metadata that names its entry points.

    `others` are modules with a `register` of their own, for vLLM to load beside it.
    """
    project = tomllib.loads((ROOT / "engine/pyproject.toml").read_text())["project"]
    folder.mkdir()
    (folder / "flyball_engine").symlink_to(ROOT / "engine/src/flyball_engine")
    metadata = folder / f"flyball_engine-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(points))
    for other in others:
        (folder / other.name).symlink_to(other)
        metadata = folder / f"{other.stem}-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {other.stem}\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{other.stem} = {other.stem}:register\n")
    return folder


@dataclass
class VllmServer:
    """A running server: `url` speaks OpenAI, `control_url` is the control port. `trusted`: by what clients
    judge its certificate, where `url` begins with https://.
    """

    process: subprocess.Popen[bytes]
    url: str
    control_url: str
    signer: SetpointSigner
    log: Path
    trusted: ssl.SSLContext | bool = True

    def expect_ready(self) -> None:
        """Wait until it serves."""
        eventually(self._serves, expecting="the server serves", within=START_SECONDS)

    def _serves(self) -> bool:
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.tail()}"
        return httpx.get(f"{self.url}/health", timeout=5, trust_env=False, verify=self.trusted).status_code == 200

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def engine_core(self) -> int:
        """Process id of its engine core, as the log gives it."""
        found = re.search(r"EngineCore pid=(\d+)", self.log.read_text(errors="replace"))
        assert found, self.tail()
        return int(found[1])


@contextmanager
def started(
    python: str,
    folder: Path,
    *,
    model: Path,
    plugin: Path,
    user: Sequence[str] = (),
    owned: Sequence[str] = (),
    size: Sequence[str] = SMALL,
    port: int | None = None,
    **variables: str,
) -> Iterator[VllmServer]:
    """A server with these of the user's and of Flyball's arguments beside those it needs; ended at the end.

    `plugin`: what stands on PYTHONPATH; without the plugin's metadata there, it is plain vLLM. With the
    variables of a pod of a LeaderWorkerSet, it is a part of an engine core that spans the group.
    """
    port, control, signer = port or free_port(), free_port(), SetpointSigner()
    nodes = int(of_group) if (of_group := variables.get("LWS_GROUP_SIZE")) else None
    needed = [f"--model={model}", f"--served-model-name={MODEL_NAME}", "--host=127.0.0.1", f"--port={port}"]
    command = launch_command(owned=[*needed, *owned], user=[*size, *user], nodes=nodes)
    settings = environment(
        folder,
        python_path=[plugin],
        **{
            **cpu_image.variables(),
            # A compiler that the image lacks must not be what makes a request work.
            "PATH": cpu_image.without_compilers(folder / "commands"),
            # The other core is for the clients, which measure.
            "OMP_NUM_THREADS": "1",
            "VLLM_CACHE_ROOT": str(cache_beside(model)),
            Env.SERVICE_UID.value: SERVICE,
            Env.PUBLIC_KEY.value: signer.public_pem,
            Env.CONTROL_PORT.value: str(control),
            **variables,
        },
    )
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen([python, *command[1:]], env=settings, stdout=out, stderr=out, start_new_session=True)
    server = VllmServer(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control}", signer, log)
    try:
        yield server
    finally:
        # Its engine core may be there when it is gone.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
