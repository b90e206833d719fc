"""Waiting for what nothing announces."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

import httpx

T = TypeVar("T")


def eventually(probe: Callable[[], T | None], *, expecting: str, within: float = 300, every: float = 0.1) -> T:
    """Wait until `probe` returns something true, and return it.

    `within` is a generous limit in seconds, not an expectation of speed. Raises `AssertionError` that says what was
    expected and what was seen last. Not to be answered (a command failed, a port refused or timed out) is to see
    nothing.
    """
    limit = time.monotonic() + within
    while True:
        error: Exception | None = None
        try:
            seen = probe()
        except (OSError, subprocess.SubprocessError, httpx.TransportError) as caught:
            seen, error = None, caught
        if seen:
            return seen
        if time.monotonic() > limit:
            raise AssertionError(f"within {within:.0f} s expected {expecting}; last: {error or seen!r}")
        time.sleep(every)
