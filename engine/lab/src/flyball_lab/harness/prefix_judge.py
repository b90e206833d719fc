"""What is told of vLLM's prefix cache beside what is in it; needs the Python of the vLLM environment."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_engine.control.cached_blocks import CachedBlocksReader, cached_blocks_of
from flyball_engine.vllm.cached_blocks import CachedBlocks
from flyball_engine.vllm.prefixes import Hashing, Prefixes
from flyball_lab.harness.turns import to_its_end

#: Prompts looked at each time: the newest are waiting, or not processed yet.
NEWEST = 12


@dataclass
class PrefixTally:
    """Prompts looked up and, of these: in part `held` by the cache; said to be held less (`missed`) or more
    (`overrated`) than they are by what the API server reads; and said otherwise by what the core looks up itself.
    """

    asked: int = 0
    held: int = 0
    missed: int = 0
    overrated: int = 0
    core_differs: int = 0


class PrefixJudge:
    """Looks the newest requests of a scenario up in its scheduler's cache, in three ways."""

    def __init__(
        self, scheduler: Any, followed: CachedBlocks | None, folder: Path, digest: Callable[[Any], bytes]
    ) -> None:
        self.tally = PrefixTally()
        self._pool = scheduler.kv_cache_manager.block_pool
        self._followed = followed
        if followed is None:
            return

        def block(before: bytes, tokens: Any, keys: Any) -> bytes:
            return digest((before, tuple(tokens), keys))

        reader = CachedBlocksReader(cached_blocks_of(folder, 0))
        self._prefixes = Prefixes([reader], Hashing(block, lambda *_: (None, None)))

    def look(self, requests: dict[str, Any]) -> None:
        """Between two steps; nothing where the cache is not followed."""
        if self._followed is None:
            return
        for name in itertools.islice(reversed(requests), NEWEST):
            self._compare(requests[name])

    def _compare(self, request: Any) -> None:
        size, tally = self._pool.hash_block_size, self.tally
        most, held = (request.num_prompt_tokens - 1) // size, 0
        while held < most and self._pool.get_cached_block(request.block_hashes[held], [0]):
            held += 1
        truth = size * held
        told = to_its_end(self._prefixes.cached({"type": "token", "prompt_token_ids": request.prompt_token_ids}, None))
        assert told is not None
        tally.asked += 1
        tally.held += truth > 0
        tally.missed += told[0] < truth
        tally.overrated += told[0] > truth
        if request.num_output_tokens == 0 and self._followed is not None:
            tally.core_differs += self._followed.cached_tokens(request) != truth
