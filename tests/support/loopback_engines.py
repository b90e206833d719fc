"""Engines on loopback beside a test that looks at the cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flyball_lab.harness.engines import ServedEngine, serving


@contextmanager
def served(*engines: ServedEngine) -> Iterator[None]:
    """Run engines in a thread of their own: what looks at the cluster waits."""
    loop, up, end = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with serving(*engines):
            up.set()
            await end.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert up.wait(60)
        yield
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(60)
        loop.close()
