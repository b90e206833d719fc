"""The folder of the state files, the same for the API server and its engine cores."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from flyball_engine.contract import Env

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 – memory that both processes see, not a temporary file


def ensure_state_dir() -> Path:
    """The folder, made by the first process that asks and found by its children through the environment."""
    given = os.environ.get(Env.STATE_DIR)
    if given:
        return Path(given)
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="flyball-", dir=parent))
    os.environ[Env.STATE_DIR] = str(folder)
    atexit.register(_remove_if_owner, folder, os.getpid())
    return folder


def _remove_if_owner(folder: Path, owner: int) -> None:
    # Forked children inherit the exit handler; the folder goes with the process that made it.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
