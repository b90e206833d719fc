"""Publishes which blocks vLLM's prefix cache holds, from the engine core.

vLLM keeps one dictionary from hashes to cached blocks. It is replaced by one of our class, which tells the filter of
each hash that comes and goes. What vLLM does with it stays the same, and a fault of ours never reaches it.

Only where a hit is what a walk along the prompt finds: a cache of one group with full attention. In others, a hit may
need only the end of a prefix, two groups must agree, or a connector brings what no block holds yet. There the gate goes
by the share of prompts held lately.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from flyball_engine.control.cached_blocks import CachedBlocksError, CachedBlocksWriter, cached_blocks_of
from flyball_engine.log_events import EngineLogEvent, EventLog
from flyball_engine.vllm.kv_transfer import loads_prompts

_log = EventLog(__name__)
#: The cache's keys end with the number of the group, of which there is one.
_GROUP: Final = (0).to_bytes(4, "big")


class _Followed(dict[bytes, Any]):
    """The cache's dictionary: hashes come by assignment and go by `pop`; what goes otherwise is lost track of."""

    def __init__(self, held: dict[bytes, Any], writer: CachedBlocksWriter) -> None:
        super().__init__(held)
        self.writer: CachedBlocksWriter | None = writer
        writer.clear()
        for key in held:
            writer.add(key)

    def __setitem__(self, key: bytes, value: Any) -> None:
        if self.writer is not None and key not in self:
            try:
                self.writer.add(key)
            except Exception as error:  # noqa: BLE001 – we are in the middle of a step of vLLM's
                self.lose(f"{type(error).__name__}: {error}")
        dict.__setitem__(self, key, value)

    def pop(self, key: bytes, *default: Any) -> Any:
        """As a dictionary's."""
        if self.writer is not None and key in self:
            try:
                self.writer.remove(key)
            except Exception as error:  # noqa: BLE001 – as above
                self.lose(f"{type(error).__name__}: {error}")
        return dict.pop(self, key, *default)

    def __delitem__(self, key: bytes) -> None:
        self.lose("a deletion")
        super().__delitem__(key)

    def clear(self) -> None:
        """As a dictionary's."""
        self.lose("a clearing")
        super().clear()

    def lose(self, why: str) -> None:
        """Follow no more, and say so to readers."""
        if self.writer is not None:
            writer, self.writer = self.writer, None
            writer.lose()
            _log.error(EngineLogEvent.PREFIX_CACHE_NOT_FOLLOWED, "%s", why)


class CachedBlocks:
    """Follows the prefix cache of one scheduler. Where that fails, it is followed no more, and vLLM goes on."""

    def __init__(self, pool: Any, writer: CachedBlocksWriter, *, root: Callable[[], bytes | None]) -> None:
        """`root`: what the hashes begin with, None as long as vLLM has not chosen it.

        Raises AttributeError or TypeError where the pool is not as we know it.
        """
        self._pool = pool
        self._writer = writer
        self._root = root
        self._rooted = False
        self._held = self._taken()

    @property
    def knows(self) -> bool:
        """Whether it is known what is cached."""
        return self._held.writer is not None

    def follow(self) -> None:
        """Take hold of the dictionary, if vLLM has made a new one, and tell what hashes begin with once that is known.

        To be called before each step is planned: a cache that was emptied has nothing in it before.
        """
        if not self.knows:
            return
        try:
            if self._cache() is not self._held:
                self._held = self._taken()
            elif not self._rooted:
                self._tell_root()
        except Exception as error:  # noqa: BLE001 – the gate can do without
            self._held.lose(f"{type(error).__name__}: {error}")

    def cached_tokens(self, request: Any) -> int:
        """Tokens of a waiting request's prompt that it would find cached now, as its blocks' hashes say.

        By bisection: of a prefix the last blocks are given up first. Most prompts have no more than one look. None are
        known to be cached once it is not known what is.
        """
        if self._held.writer is None:
            return 0
        try:
            hashes, cached = request.block_hashes, self._pool.cached_block_hash_to_block._cache  # noqa: SLF001 – see _cache
            if not hashes or hashes[0] + _GROUP not in cached or getattr(request, "skip_reading_prefix_cache", False):
                return 0
            return self._looked_up(request, cached)
        except Exception as error:  # noqa: BLE001 – as above
            self._held.lose(f"{type(error).__name__}: {error}")
            return 0

    def _looked_up(self, request: Any, cached: dict[bytes, Any]) -> int:
        hashes, size = request.block_hashes, self._pool.hash_block_size
        # The last block is always processed: its last token makes the next.
        low, high = 0, min(len(hashes), (request.num_tokens - 1) // size)
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] + _GROUP in cached:
                low = middle + 1
            else:
                high = middle
        return low * int(size)

    def _cache(self) -> dict[bytes, Any]:
        cache: dict[bytes, Any] = self._pool.cached_block_hash_to_block._cache  # noqa: SLF001 – vLLM has no other way
        return cache

    def _taken(self) -> _Followed:
        """The dictionary that is there now, replaced by ours."""
        taken = _Followed(self._cache(), self._writer)
        self._pool.cached_block_hash_to_block._cache = taken  # noqa: SLF001 – as above
        self._tell_root()
        return taken

    def _tell_root(self) -> None:
        if root := self._root():
            self._writer.set_root(root)
            self._rooted = True


def cached_blocks(scheduler: Any, *, folder: Path, engine: int) -> CachedBlocks | None:
    """Follow the scheduler's prefix cache; None if there is none, or it is of a kind that cannot be followed."""
    try:
        # One that an earlier core left says nothing of this one.
        cached_blocks_of(folder, engine).unlink(missing_ok=True)
        reason = _unfollowable(scheduler)
        if reason is not None:
            _log.info(EngineLogEvent.PREFIX_CACHE_NOT_FOLLOWED, "%s", reason)
            return None
        pool = scheduler.kv_cache_manager.block_pool
        writer = CachedBlocksWriter(
            folder, engine=engine, blocks=pool.num_gpu_blocks, block_tokens=pool.hash_block_size
        )
        return CachedBlocks(pool, writer, root=_root)
    except (CachedBlocksError, OSError, AttributeError, TypeError, ImportError) as error:
        _log.warning(EngineLogEvent.PREFIX_CACHE_NOT_FOLLOWED, "%s", error)
        return None


def _root() -> bytes | None:
    from vllm.v1.core import kv_cache_utils  # noqa: PLC0415 – only an engine core has it

    # Chosen after the scheduler is made, and before the first request.
    root: bytes | None = getattr(kv_cache_utils, "NONE_HASH", None)
    return root


def _unfollowable(scheduler: Any) -> str | None:
    """Why hits in its cache are not what a walk along a prompt finds."""
    manager = scheduler.kv_cache_manager
    if not getattr(manager, "enable_caching", False):
        return "prefix caching is off"
    if loads_prompts(getattr(scheduler, "vllm_config", None)):
        return "a connector brings what the cache does not hold"
    # Since 0.33, beside drafts that read ahead: a block's hash is of more tokens than the block's.
    if getattr(scheduler, "num_hash_lookahead_tokens", 0):
        return "hashes of blocks cover tokens behind them"
    groups = manager.kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return f"the cache has {len(groups)} groups"
    from vllm.v1.kv_cache_interface import FullAttentionSpec  # noqa: PLC0415 – as above

    spec = groups[0].kv_cache_spec
    if not isinstance(spec, FullAttentionSpec):
        return f"the cache is of {type(spec).__name__}"
    return None
