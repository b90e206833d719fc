"""Downloads of one small model into a folder, each a process of its own with the client that an engine image has."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_engine.contract import Env
from flyball_lab.repository import ROOT

WEIGHTS = random.Random(1).randbytes(13_000_000)
FILES = {"config.json": b'{"model_type": "tiny"}', "sub/model.safetensors": WEIGHTS, "pytorch_model.bin": b"the same"}
#: Those that an engine needs.
TAKEN = ("config.json", "sub/model.safetensors")


@dataclass
class Downloads:
    """Downloads into one folder, each a process of its own."""

    python: str
    folder: Path
    log: Path

    def start(self, hub: str = "", *, model: str = "org/tiny", revision: str = "main", **options: Any) -> Any:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "engine/src"),
            "HOME": str(self.log.parent),
            **({"HF_ENDPOINT": hub} if hub else {}),
            Env.TERMINATION_LOG.value: str(self.log),
            **options.pop("env", {}),
        }
        command = [
            self.python,
            *options.pop("module", ("-m", "flyball_engine.download")),
            f"--model={model}",
            f"--revision={revision}",
        ]
        command += [f"--folder={self.folder}", *options.pop("arguments", ())]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)

    def run(self, hub: str = "", **options: Any) -> tuple[int, str]:
        """Exit code, and the termination message."""
        process = self.start(hub, **options)
        _, said = process.communicate(timeout=300)
        return process.returncode, self.log.read_text() if self.log.exists() else said

    def whole(self) -> bool:
        return all((self.folder / name).read_bytes() == FILES[name] for name in TAKEN)
