"""Parts that work for as long as the process does: if one of them ends, however it ends, all must.

A task group ends when a member raises. It minds neither a member that returns nor one that somebody cancels, so whoever
opens one waits for the first member to end, and raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


class EndedError(Exception):
    """A part that works for ever has ended, and nobody asked it to."""


async def first(parts: Collection[asyncio.Task[Any]]) -> asyncio.Task[Any]:
    """Wait for the first part that ends, and return it."""
    done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
    return next(iter(done))


def ended(parts: Collection[asyncio.Task[Any]]) -> str:
    """Which of them ended, in words."""
    return f"ended unasked: {', '.join(sorted(part.get_name() for part in parts if part.done()))}"
