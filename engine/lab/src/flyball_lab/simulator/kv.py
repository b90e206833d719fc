"""The KV cache: blocks, and the prefixes of prompts that requests share.

Blocks of running requests are counted by the scheduler, which knows them in sums; here is what is shared. A prefix is
computed by the first request that has it and is there for later ones. One that nobody uses stays until its blocks are
needed, the one unused for longest going first, as in vLLM. What requests compute alike at the same time they hold
twice, as in vLLM, too.
"""

from __future__ import annotations

from typing import Final

from flyball_lab.simulator.requests import Request

#: vLLM's default.
BLOCK_TOKENS: Final = 16


def blocks(tokens: float) -> int:
    """Blocks that hold so many tokens."""
    return -(-int(tokens) // BLOCK_TOKENS)


class PrefixCache:
    """Which prefixes are in the cache, in blocks: `used` by running requests, `spare` by none. `changes` count."""

    def __init__(self) -> None:
        self.used = 0
        self.spare = 0
        self.changes = 0
        self._users: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._unused: dict[str, None] = {}

    def hit(self, request: Request) -> int:
        """Tokens of its prompt that are in the cache: whole blocks, and never the last token, which makes the next."""
        prefix = request.prefix
        if prefix is None or prefix.name not in self._sizes:
            return 0
        return BLOCK_TOKENS * min(self._sizes[prefix.name], _whole(min(prefix.tokens, request.prompt - 1)))

    def revived(self, request: Request) -> int:
        """Spare blocks that would be in use if this request used its prefix."""
        prefix = request.prefix
        return self._sizes[prefix.name] if prefix is not None and prefix.name in self._unused else 0

    def use(self, request: Request, tokens: int) -> None:
        """A request reads `tokens` of its prefix from the cache."""
        if request.prefix is None or not tokens:
            return
        name = request.prefix.name
        if name in self._unused:
            del self._unused[name]
            self.spare -= self._sizes[name]
            self.used += self._sizes[name]
        self._users[name] = self._users.get(name, 0) + 1
        request.shared = tokens

    def computed(self, request: Request) -> bool:
        """A request has computed its prompt up to `computed`: if its prefix is new, it is shared from now on."""
        prefix = request.prefix
        if prefix is None or request.shared or prefix.name in self._sizes or request.computed < prefix.tokens:
            return False
        size = _whole(min(prefix.tokens, request.prompt - 1))
        if not size:
            return False
        self.changes += 1
        self._sizes[prefix.name] = size
        self._users[prefix.name] = 1
        self.used += size
        request.shared = size * BLOCK_TOKENS
        return True

    def release(self, request: Request) -> None:
        """A request leaves; its prefix stays as long as there is room."""
        if not request.shared or request.prefix is None:
            return
        name = request.prefix.name
        request.shared = 0
        self._users[name] -= 1
        if not self._users[name]:
            self._unused[name] = None
            self.used -= self._sizes[name]
            self.spare += self._sizes[name]

    def shrink(self, room: int) -> None:
        """Give up unused prefixes until they fit into `room` blocks."""
        while self.spare > max(0, room):
            self.changes += 1
            name = next(iter(self._unused))
            del self._unused[name], self._users[name]
            self.spare -= self._sizes.pop(name)


def _whole(tokens: int) -> int:
    return tokens // BLOCK_TOKENS
