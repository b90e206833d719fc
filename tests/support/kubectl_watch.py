"""What a watch of the API server tells, with the time at which it was heard."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def watched(*arguments: str, namespace: str) -> Iterator[list[tuple[float, str]]]:
    """Lines of `kubectl get --watch` for as long as the block lasts, each with the monotonic time it came at."""
    command = ["kubectl", "get", "--watch", "--namespace", namespace, *arguments]
    found: list[tuple[float, str]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout
        reader = threading.Thread(target=lambda: found.extend((time.monotonic(), line.strip()) for line in lines))
        reader.start()
        try:
            yield found
        finally:
            process.terminate()
            reader.join()
