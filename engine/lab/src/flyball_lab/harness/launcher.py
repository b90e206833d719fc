"""The launcher as a process, as a container runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_engine.contract import Env
from flyball_engine.launching import launch_command
from flyball_lab.repository import ROOT

SOURCE = ROOT / "engine/src"
#: Hides AVX-512 from vLLM.
AVX2 = Path(__file__).with_name("avx2")


@dataclass(frozen=True)
class LaunchResult:
    """How a run ended: exit code, output, and what the termination log holds (None: it was not written)."""

    code: int
    out: str
    log: str
    termination: str | None


def environment(folder: Path, *, python_path: Sequence[Path] = (SOURCE,), **variables: str) -> dict[str, str]:
    """A container's environment: few variables, a home and a termination log in `folder`.

    With `ATEN_CPU_CAPABILITY=avx2` here, which torch honours, everything in there is as without AVX-512.
    """
    mask = os.environ.get("ATEN_CPU_CAPABILITY") == "avx2"
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, [*python_path, *([AVX2] if mask else [])])),
        Env.TERMINATION_LOG.value: str(folder / "termination-log"),
        **({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"} if mask else {}),
        **variables,
    }


def launch(
    *arguments: str, variables: Mapping[str, str], python: str = sys.executable, within: float = 120
) -> LaunchResult:
    """Runs the launcher with these arguments of its own to its end."""
    module = launch_command(owned=(), user=())[1:3]
    log = Path(variables[Env.TERMINATION_LOG.value])
    ended = subprocess.run(
        [python, *module, *arguments], env=dict(variables), capture_output=True, text=True, timeout=within, check=False
    )
    return LaunchResult(ended.returncode, ended.stdout, ended.stderr, log.read_text() if log.exists() else None)
