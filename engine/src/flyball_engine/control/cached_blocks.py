"""Which blocks an engine core's prefix cache holds, in shared memory, so that the gate knows how warm a prompt is.

A counting filter: a block's hash names one of many cells, which counts the blocks whose hashes name it. So a block that
is cached is always found, and one that is not is found by mistake about once in `CELLS_PER_BLOCK`; a mistake lengthens
a prefix by a block. Cells are single bytes, written by one process and read by others without a lock. A count that
reaches the largest byte stays there.

Hashes chain: a block's covers all tokens before it, too, and begins with the cache's `root`, which may be random. What
a hash is made of is the engine's affair.

Imports neither vLLM nor torch.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from flyball_engine.control.state_file import shared_file

_MAGIC: Final = int.from_bytes(b"FLYBLCK1", "little")
_MAGIC_WORD, _BLOCK_TOKENS, _CELLS, _ROOT_LENGTH = range(4)
_ROOT: Final = 8 * 4
_ROOT_BYTES: Final = 64
_FIRST_CELL: Final = _ROOT + _ROOT_BYTES
_FULL: Final = 255
#: Bytes of a hash that name its cell.
_NAMING_BYTES: Final = 8
#: Cells for each block of the cache, at least.
CELLS_PER_BLOCK: Final = 16


class CachedBlocksError(Exception):
    """The file could not be made or opened."""


class CachedBlocksWriter:
    """Counts the blocks that one core caches. Called from the core's thread alone."""

    def __init__(self, folder: Path, *, engine: int, blocks: int, block_tokens: int) -> None:
        """Make the file of the core `engine`, whose cache has `blocks` of `block_tokens`; raises CachedBlocksError."""
        path = cached_blocks_of(folder, engine)
        cells = 1 << (CELLS_PER_BLOCK * blocks - 1).bit_length()
        try:
            with shared_file(path, _FIRST_CELL + cells) as self._map:
                self._words = memoryview(self._map)[:_ROOT].cast("Q")
                self._words[_MAGIC_WORD] = _MAGIC
                self._words[_BLOCK_TOKENS] = block_tokens
                self._words[_CELLS] = cells
        except OSError as error:
            raise CachedBlocksError(f"cannot make {path}: {error}") from error
        self._cells = memoryview(self._map)[_FIRST_CELL:]
        self._mask = cells - 1

    def set_root(self, root: bytes) -> None:
        """What the first block's hash begins with; readers know of no prefix before. Raises ValueError if too long."""
        if not 0 < len(root) <= _ROOT_BYTES:
            raise ValueError(f"a root of {len(root)} bytes; accepted: 1 to {_ROOT_BYTES}")
        self._map[_ROOT : _ROOT + len(root)] = root
        self._words[_ROOT_LENGTH] = len(root)

    def add(self, digest: bytes) -> None:
        """A block with this hash is cached now, and was not."""
        cell = int.from_bytes(digest[:_NAMING_BYTES], "little") & self._mask
        count = self._cells[cell]
        if count != _FULL:
            self._cells[cell] = count + 1

    def remove(self, digest: bytes) -> None:
        """No block with this hash is cached any more."""
        cell = int.from_bytes(digest[:_NAMING_BYTES], "little") & self._mask
        count = self._cells[cell]
        if count not in (0, _FULL):
            self._cells[cell] = count - 1

    def clear(self) -> None:
        """Nothing is cached."""
        self._map[_FIRST_CELL:] = bytes(len(self._cells))

    def lose(self) -> None:
        """What is cached is no longer known."""
        self._words[_ROOT_LENGTH] = 0


class CachedBlocksReader:
    """Reads what one core caches. `block_tokens`: tokens of a block."""

    def __init__(self, path: Path) -> None:
        """Open the file; raises CachedBlocksError if it is absent or something else."""
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CachedBlocksError(f"cannot open {path}: {error}") from error
        if len(self._map) < _FIRST_CELL or memoryview(self._map)[:8].cast("Q")[0] != _MAGIC:
            raise CachedBlocksError(f"{path} is no file of this version")
        self._words = memoryview(self._map)[:_ROOT].cast("Q")
        self.block_tokens: int = self._words[_BLOCK_TOKENS]
        self._cells = memoryview(self._map)[_FIRST_CELL:]
        self._mask: int = self._words[_CELLS] - 1

    def root(self) -> bytes | None:
        """What the first block's hash begins with; None if the core has not said so, or no longer knows its cache."""
        length = self._words[_ROOT_LENGTH]
        return self._map[_ROOT : _ROOT + length] if length else None

    def holds(self, digest: bytes) -> bool:
        """Whether a block with this hash is cached, but for mistakes."""
        return self._cells[int.from_bytes(digest[:_NAMING_BYTES], "little") & self._mask] != 0


def cached_blocks_of(folder: Path, engine: int) -> Path:
    """Where the core `engine` publishes them."""
    return folder / f"core-{engine}.blocks"
