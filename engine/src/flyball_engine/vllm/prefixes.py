"""How many tokens of a prompt the engine cores hold in their prefix caches, as the API server can tell.

The prompt's blocks are hashed as vLLM's engine core will, by vLLM's own functions, one after the other until a core
does not hold one. So a prompt that is not cached costs a single hash. One of 100,000 cached tokens would take 12 to 38
ms of the event loop, in which no other request gets its tokens. So hashes are made in slices, between which the loop
goes on. Those of prompts seen lately are remembered, in runs of blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from cachetools import LRUCache

from flyball_engine.control.cached_blocks import CachedBlocksError, CachedBlocksReader, cached_blocks_of
from flyball_engine.log_events import EngineLogEvent, EventLog

_log = EventLog(__name__)

#: Blocks whose hashes are remembered together: 1,024 tokens in blocks of 16. To find them takes what 8 hashes do.
RUN: Final = 64
RUN_WORK: Final = 8
#: Runs that are remembered: 2 million tokens in blocks of 16, in 12 MiB.
REMEMBERED_RUNS: Final = 2048
#: Hashes between two turns of the event loop: 0.5 to 1.5 ms, by the algorithm; 5 ms are too long.
SLICE: Final = 256

#: Hash of a block, of that before it, its tokens, and what else must be alike.
HashBlock = Callable[[bytes, Sequence[int], Any], bytes]
#: What else must be alike in the first block and in the others: adapter and salt.
ExtraKeys = Callable[[int, Any, str | None], tuple[Any, Any]]

#: The hashes of blocks in runs of `RUN`, those used last; the key covers all tokens from the prompt's first on.
_Runs = LRUCache[int, list[bytes]]


@dataclass(frozen=True)
class Hashing:
    """How the engine cores hash blocks."""

    block: HashBlock
    extra_keys: ExtraKeys


class Prefixes:
    """Looks prompts up in the caches of some cores, in their order. Called from the server's event loop alone."""

    def __init__(self, caches: Sequence[CachedBlocksReader], hashing: Hashing) -> None:
        self._caches = caches
        self._hashing = hashing
        self._runs: _Runs = LRUCache(REMEMBERED_RUNS)

    async def cached(self, engine_input: Any, adapter: Any) -> tuple[int, ...] | None:
        """Tokens that each core holds of what the renderer made; None if that cannot be told.

        `adapter` is the LoRA request, None for the model itself.
        """
        # Images and embeddings have keys of their own, known behind this point.
        if engine_input.get("type") != "token":
            return None
        tokens, salt = engine_input["prompt_token_ids"], engine_input.get("cache_salt")
        chains: dict[bytes, _Chain] = {}
        held = []
        for cache in self._caches:
            root = cache.root()
            if root is None:
                return None
            chain = chains.get(root)
            if chain is None:
                keys = self._hashing.extra_keys(cache.block_tokens, adapter, salt)
                chain = chains[root] = _Chain(
                    root, tokens, cache.block_tokens, keys, block=self._hashing.block, runs=self._runs
                )
            held.append(await chain.held_by(cache))
        return tuple(held)


class _Chain:
    """The hashes of a prompt's blocks, as far as they were asked for."""

    def __init__(
        self,
        root: bytes,
        tokens: Sequence[int],
        block_tokens: int,
        keys: tuple[Any, Any],
        *,
        block: HashBlock,
        runs: _Runs,
    ) -> None:
        self._root = root
        self._tokens = tokens
        self._block_tokens = block_tokens
        self._keys = keys
        self._block = block
        self._runs = runs
        # No secret, and no digest: who finds another prompt with this key misleads the prediction for its own request.
        self._key = hash((root, keys))
        self._digests: list[bytes] = []
        self._work = 0

    async def held_by(self, cache: CachedBlocksReader) -> int:
        """Tokens of the prompt that a core holds. Its last block is always processed: its last token makes the next."""
        most, blocks = (len(self._tokens) - 1) // self._block_tokens, 0
        while blocks < most:
            if blocks == len(self._digests):
                self._hash_more()
            while blocks < min(most, len(self._digests)):
                if not cache.holds(self._digests[blocks]):
                    return blocks * self._block_tokens
                blocks += 1
            if self._work >= SLICE:
                self._work = 0
                await asyncio.sleep(0)
        return blocks * self._block_tokens

    def _hash_more(self) -> None:
        """One more block, or the rest of a run that is remembered: a prompt that is not cached needs one alone."""
        digests, size = self._digests, self._block_tokens
        position = len(digests) % RUN
        first = len(digests) - position
        # The first run is looked for once its first block is held. Where the prompt ends within a run, it is not found.
        if digests and position == (0 if first else 1):
            self._key = hash((self._key, *self._tokens[first * size : (first + RUN) * size]))
            self._work += RUN_WORK
            if known := self._runs.get(self._key):
                digests += known[position:]
                return
        start = len(digests) * size
        before, keys = (digests[-1], self._keys[1]) if digests else (self._root, self._keys[0])
        digests.append(self._block(before, self._tokens[start : start + size], keys))
        self._work += 1
        if len(digests) == first + RUN:
            self._runs[self._key] = digests[first:]


def open_prefixes(folder: Path, engines: Sequence[int], engine_client: Any) -> Prefixes | None:
    """The caches of these cores; None if one of them tells nothing, or this vLLM hashes in another way."""
    try:
        caches = [CachedBlocksReader(cached_blocks_of(folder, engine)) for engine in engines]
        return Prefixes(caches, _vllm_hashing(engine_client)) if caches else None
    except (CachedBlocksError, ImportError, AttributeError, ValueError) as error:
        _log.info(EngineLogEvent.PREFIX_CACHE_NOT_FOLLOWED, "%s", error)
        return None


def _vllm_hashing(engine_client: Any) -> Hashing:
    """VLLM's own; raises ImportError or AttributeError where a version has it elsewhere."""
    from vllm.utils.hashing import get_hash_fn_by_name  # noqa: PLC0415 – this module is imported without vLLM, too
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens  # noqa: PLC0415

    algorithm = get_hash_fn_by_name(engine_client.vllm_config.cache_config.prefix_caching_hash_algo)

    def block(before: bytes, tokens: Sequence[int], keys: Any) -> bytes:
        digest: bytes = hash_block_tokens(algorithm, before, tokens, keys)
        return digest

    def extra_keys(block_tokens: int, adapter: Any, salt: str | None) -> tuple[Any, Any]:
        request = SimpleNamespace(mm_features=[], lora_request=adapter, cache_salt=salt, prompt_embeds=None)
        first, _ = generate_block_hash_extra_keys(request, 0, block_tokens, 0)
        other, _ = generate_block_hash_extra_keys(request, block_tokens, 2 * block_tokens, 0)
        return first, other

    return Hashing(block, extra_keys)
