"""How many tokens of a prompt the engine cores hold in their prefix caches, as the API server can tell.

The prompt's blocks are hashed as vLLM's engine core will, by vLLM's own functions, one after the other until a core
does not hold one. So a prompt that is not cached costs a single hash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flyball_engine.control.cached_blocks import CachedBlocksError, CachedBlocksReader, cached_blocks_of

_log = logging.getLogger(__name__)

#: Hash of a block, of that before it, its tokens, and what else must be alike.
HashBlock = Callable[[bytes, Sequence[int], Any], bytes]
#: What else must be alike in the first block and in the others: adapter and salt.
ExtraKeys = Callable[[int, Any, str | None], tuple[Any, Any]]


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

    def cached(self, engine_input: Any, adapter: Any) -> tuple[int, ...] | None:
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
                chain = chains[root] = _Chain(root, tokens, cache.block_tokens, keys, self._hashing.block)
            held.append(chain.held_by(cache))
        return tuple(held)


class _Chain:
    """The hashes of a prompt's blocks, as far as they were asked for."""

    def __init__(
        self, root: bytes, tokens: Sequence[int], block_tokens: int, keys: tuple[Any, Any], block: HashBlock
    ) -> None:
        self._root = root
        self._tokens = tokens
        self._block_tokens = block_tokens
        self._keys = keys
        self._block = block
        self._digests: list[bytes] = []

    def held_by(self, cache: CachedBlocksReader) -> int:
        """Tokens of the prompt that a core holds. Its last block is always processed: its last token makes the next."""
        most, blocks = (len(self._tokens) - 1) // self._block_tokens, 0
        while blocks < most and cache.holds(self._digest(blocks)):
            blocks += 1
        return blocks * self._block_tokens

    def _digest(self, index: int) -> bytes:
        digests = self._digests
        if index == len(digests):
            start = index * self._block_tokens
            before, keys = (digests[-1], self._keys[1]) if digests else (self._root, self._keys[0])
            digests.append(self._block(before, self._tokens[start : start + self._block_tokens], keys))
        return digests[index]


def open_prefixes(folder: Path, engines: Sequence[int], engine_client: Any) -> Prefixes | None:
    """The caches of these cores; None if one of them tells nothing, or this vLLM hashes in another way."""
    try:
        caches = [CachedBlocksReader(cached_blocks_of(folder, engine)) for engine in engines]
        return Prefixes(caches, _vllm_hashing(engine_client)) if caches else None
    except (CachedBlocksError, ImportError, AttributeError, ValueError) as error:
        _log.info("Flyball: the gate does not see what is cached: %s", error)
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
