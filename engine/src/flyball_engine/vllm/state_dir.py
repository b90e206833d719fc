"""The folder of the state files in shared memory, the same for the API server and its engine cores.

/dev/shm belongs to the pod, not to the container: it outlives a restart. Each folder is therefore locked for as long as
its process lives, and whoever makes one removes those that nobody holds.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from flyball_engine.contract import Env

_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 – the kernel's place for shared memory; folders are made with mkdtemp
_PREFIX: Final = "flyball-"
_LOCK: Final = ".lock"


def ensure_state_dir(environment: MutableMapping[str, str] = os.environ) -> Path:
    """The folder, made by the first process that asks and found by its children through the environment."""
    given = environment.get(Env.STATE_DIR)
    if given:
        return Path(given)
    folder = fresh_folder(_SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else tempfile.gettempdir())
    environment[Env.STATE_DIR] = str(folder)
    return folder


def fresh_folder(parent: str) -> Path:
    """A new folder under `parent`, held by this process and removed at its end; abandoned ones are removed now."""
    for left in Path(parent).glob(f"{_PREFIX}*"):
        if _abandoned(left / _LOCK):
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # It is locked before it has its name: another process that starts now must not find it unlocked.
    unnamed = made / f"{_LOCK}.new"
    held = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    unnamed.rename(made / _LOCK)
    atexit.register(_remove_if_owner, made, os.getpid())
    return made


def _remove_if_owner(folder: Path, owner: int) -> None:
    # Forked children inherit the exit handler; the folder goes with the process that made it.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _abandoned(lock: Path) -> bool:
    """True if no process holds this lock; False if one does, if it is another user's, or if there is none."""
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
