"""Unbuffered writing to a disk that may be nearly full, or to a pipe."""

from __future__ import annotations

from io import RawIOBase
from typing import IO


def write_all(file: RawIOBase | IO[bytes], data: bytes) -> None:
    """Write all of it: where there is little room the first write takes a part, and only the next one fails.

    Raises OSError.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]
