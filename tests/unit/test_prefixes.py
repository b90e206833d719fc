"""How much work it is in the API server to see what of a prompt is cached: no timings, hashes are counted."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flyball_engine.control.cached_blocks import CachedBlocksReader, CachedBlocksWriter, cached_blocks_of
from flyball_engine.vllm import prefixes as module
from flyball_engine.vllm.prefixes import RUN, SLICE, Hashing, Prefixes
from flyball_lab.harness.turns import to_its_end

SIZE = 16


class Server:
    """An API server that looks prompts up in the cache of one core, and counts the hashes between the loop's turns."""

    def __init__(self, folder: Path) -> None:
        self._told = CachedBlocksWriter(folder, engine=0, blocks=20_000, block_tokens=SIZE)
        self._told.set_root(b"root")
        reader = CachedBlocksReader(cached_blocks_of(folder, 0))
        self.prefixes = Prefixes([reader], Hashing(self._hash, lambda *_: (None, None)))
        self.hashes = 0
        self.longest_turn = 0
        self._turn = 0

    def cache(self, tokens: Sequence[int]) -> None:
        """The core caches all whole blocks of a prompt."""
        for digest in digests(tokens):
            self._told.add(digest)

    def look(self, tokens: Sequence[int]) -> int:
        """Tokens that are cached; `hashes` and `longest_turn` say what that took."""
        self.hashes = self.longest_turn = self._turn = 0
        held = to_its_end(
            self.prefixes.cached({"type": "token", "prompt_token_ids": tokens}, None), at_turn=self._end_turn
        )
        assert held is not None
        return held[0]

    def _hash(self, before: bytes, tokens: Sequence[int], keys: Any) -> bytes:
        self.hashes += 1
        self._turn += 1
        return digest(before, tokens)

    def _end_turn(self) -> None:
        self.longest_turn, self._turn = max(self.longest_turn, self._turn), 0


def digest(before: bytes, tokens: Sequence[int]) -> bytes:
    return hashlib.sha256(before + repr(list(tokens)).encode()).digest()


def digests(tokens: Sequence[int]) -> list[bytes]:
    made = [b"root"]
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        made.append(digest(made[-1], tokens[start : start + SIZE]))
    return made[1:]


def some(tokens: int, *, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(150_000), k=tokens)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_a_prompt_that_is_not_cached_takes_a_single_hash(server: Server) -> None:
    assert server.look(some(100_000)) == 0
    assert server.hashes == 1


def test_a_long_cached_prompt_leaves_the_event_loop_to_others(server: Server) -> None:
    prompt = some(100_000)
    server.cache(prompt)
    assert server.look(prompt) == 99_984
    assert server.hashes == 6249
    assert server.longest_turn <= SLICE


def test_what_was_hashed_lately_is_remembered(server: Server) -> None:
    prompt = some(100_000)
    server.cache(prompt)
    server.look(prompt)
    assert server.look(prompt) == 99_984
    # One to see that a run is cached at all, and those behind the last whole run.
    assert server.hashes == 1 + 6249 % RUN


def test_a_conversation_that_goes_on_takes_the_hashes_of_what_is_new(server: Server) -> None:
    conversation = some(30_000)
    server.cache(conversation)
    server.look(conversation)
    longer = conversation + some(1000, seed=2)
    server.cache(longer)
    assert server.look(longer) == 30_992
    assert server.hashes <= 1 + RUN + 1000 // SIZE


def test_another_beginning_is_another_prompt(server: Server) -> None:
    prompt = some(4000)
    server.cache(prompt)
    server.look(prompt)
    assert server.look([*prompt[:-2000], 7, *prompt[-1999:]]) == 2000
    assert server.look([7, *prompt[1:]]) == 0


def test_no_more_is_remembered_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_RUNS", 5)
    server = Server(tmp_path)
    prompts = [some(3 * RUN * SIZE + 1, seed=seed) for seed in range(4)]
    for prompt in prompts:
        server.cache(prompt)
        assert server.look(prompt) == 3 * RUN * SIZE
    assert len(server.prefixes._runs) == 5
    server.look(prompts[-1])
    assert server.hashes == 1, "the last is remembered whole"
    server.look(prompts[0])
    assert server.hashes == 3 * RUN, "the first is not any more"


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_what_a_walk_along_the_prompt_finds(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    trunks = [some(chance.randrange(1, 6000), seed=number) for number in range(3)]
    for number in range(30):
        trunk = chance.choice(trunks)
        prompt = trunk[: chance.randrange(len(trunk) + 1)] + some(chance.randrange(1, 300), seed=chance.randrange(5))
        if number % 2:
            server.cache(prompt[: chance.randrange(len(prompt) + 1)])
        reader, held = server.prefixes._caches[0], 0
        for one in digests(prompt)[: (len(prompt) - 1) // SIZE]:
            if not reader.holds(one):
                break
            held += SIZE
        assert server.look(prompt) == held
