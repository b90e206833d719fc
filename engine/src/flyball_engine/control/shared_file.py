"""Files in shared memory that one process writes and others map."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def shared_file(path: Path, size: int) -> Iterator[mmap.mmap]:
    """A new file of `size` bytes, all zero, to be filled within; then it stands at `path`, replacing an older one.

    So no reader meets a file without its header, and whoever has mapped the older one keeps that. Raises OSError.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb+") as file:
        # No holes: a write into one where memory is short would end the process by a signal.
        os.posix_fallocate(file.fileno(), 0, size)
        made = mmap.mmap(file.fileno(), size)
    yield made
    partial.replace(path)
