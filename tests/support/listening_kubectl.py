"""kubectl as a server on loopback: `proxy`, `port-forward`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def listening(*arguments: str) -> Iterator[str]:
    """URL of a kubectl with these arguments, which let it choose a port; it ends with the block."""
    with subprocess.Popen(["kubectl", *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            address = re.search(r"127\.0\.0\.1:\d+", said)
            assert address, f"kubectl {arguments[0]} said no port: {said!r}"
            yield f"http://{address[0]}"
        finally:
            process.terminate()
