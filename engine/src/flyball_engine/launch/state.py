"""A fresh folder for the shared-memory files of engine core and API server.

/dev/shm belongs to the pod, not to the container: it outlives a restart. Each folder is therefore locked for as long as
its process lives, and a launcher removes the folders nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  the kernel's place for shared memory; folders are made with mkdtemp
_PREFIX: Final = "flyball-"
_LOCK: Final = ".lock"


def fresh_folder(parent: str) -> str:
    """A new folder under `parent`, held by this process; abandoned ones are removed."""
    for left in Path(parent).glob(f"{_PREFIX}*"):
        if _abandoned(left / _LOCK):
            shutil.rmtree(left, ignore_errors=True)
    made = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    held = os.open(Path(made) / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    return made


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
