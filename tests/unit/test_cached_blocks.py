"""What a core tells of its prefix cache, and what of a prompt the API server finds in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_engine.control.cached_blocks import (
    CachedBlocksError,
    CachedBlocksReader,
    CachedBlocksWriter,
    cached_blocks_of,
)
from flyball_engine.model import StepModel
from flyball_engine.vllm import step_hooks
from flyball_engine.vllm.cached_blocks import CachedBlocks, cached_blocks
from flyball_engine.vllm.prefixes import Hashing, Prefixes, open_prefixes
from flyball_lab.harness.engine import setpoint
from flyball_lab.harness.turns import to_its_end
from support.plain_scheduler import GovernedCore, transferring
from support.reflexes import a_budget

SIZE = 4


def digest(before: bytes, tokens: Sequence[int], keys: Any) -> bytes:
    return random.Random(repr((before, tuple(tokens), keys))).randbytes(32)


def extra_keys(_block_tokens: int, adapter: Any, salt: str | None) -> tuple[Any, Any]:
    return (adapter, salt), (adapter, None)


def hashes(
    tokens: Sequence[int], *, root: bytes = b"root", adapter: Any = None, salt: str | None = None
) -> list[bytes]:
    """Of a prompt's whole blocks."""
    first, other = extra_keys(SIZE, adapter, salt)
    made: list[bytes] = []
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        before, keys = (made[-1], other) if made else (root, first)
        made.append(digest(before, tokens[start : start + SIZE], keys))
    return made


class Pool:
    """vLLM's pool of blocks, as far as it is looked at."""

    def __init__(self) -> None:
        self.num_gpu_blocks = 1000
        self.hash_block_size = SIZE
        self.reset()

    def reset(self) -> None:
        self.cached_block_hash_to_block = SimpleNamespace(_cache={})

    def cache(self, made: Sequence[bytes]) -> None:
        for one in made:
            self.cached_block_hash_to_block._cache[one + bytes(4)] = "block"

    def evict(self, made: Sequence[bytes]) -> None:
        for one in made:
            self.cached_block_hash_to_block._cache.pop(one + bytes(4), None)


class Core:
    """An engine core with a prefix cache that is followed."""

    def __init__(self, folder: Path, engine: int = 0, root: bytes | None = b"root") -> None:
        self.pool = Pool()
        self.told = CachedBlocksWriter(folder, engine=engine, blocks=1000, block_tokens=SIZE)
        if root is not None:
            self.told.set_root(root)
        self.followed = CachedBlocks(self.pool, self.told, root=lambda: root)


@pytest.fixture
def core(tmp_path: Path) -> Core:
    return Core(tmp_path)


class LookedUp:
    """What an API server sees of the caches of these cores."""

    def __init__(self, folder: Path, engines: Sequence[int]) -> None:
        readers = [CachedBlocksReader(cached_blocks_of(folder, engine)) for engine in engines]
        self._prefixes = Prefixes(readers, Hashing(digest, extra_keys))

    def cached(self, engine_input: Any, adapter: Any) -> tuple[int, ...] | None:
        return to_its_end(self._prefixes.cached(engine_input, adapter))


def looked_up(folder: Path, engines: Sequence[int] = (0,)) -> LookedUp:
    return LookedUp(folder, engines)


def prompt(tokens: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"type": "token", "prompt_token_ids": list(tokens), **more}


PROMPT = list(range(100, 130))


def expect_lost(core: Core, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody says any more what is cached, and the log says why."""
    assert "PrefixCacheNotFollowed" in caplog.text
    assert not core.followed.knows
    assert looked_up(folder).cached(prompt(PROMPT), None) is None


def test_the_beginning_that_is_cached_is_found_and_no_more(core: Core, tmp_path: Path) -> None:
    prefixes = looked_up(tmp_path)
    assert prefixes.cached(prompt(PROMPT), None) == (0,)
    core.pool.cache(hashes(PROMPT)[:3])
    assert prefixes.cached(prompt(PROMPT), None) == (12,)
    assert prefixes.cached(prompt([*PROMPT[:8], 1, *PROMPT[9:]]), None) == (8,)
    assert prefixes.cached(prompt([1, *PROMPT]), None) == (0,)


def test_the_last_block_is_always_processed(core: Core, tmp_path: Path) -> None:
    core.pool.cache(hashes(PROMPT))
    assert looked_up(tmp_path).cached(prompt(PROMPT[:28]), None) == (24,)
    assert looked_up(tmp_path).cached(prompt(PROMPT[:29]), None) == (28,)


def test_what_was_given_up_is_no_longer_found(core: Core, tmp_path: Path) -> None:
    core.pool.cache(hashes(PROMPT))
    core.pool.evict(hashes(PROMPT)[2:])
    assert looked_up(tmp_path).cached(prompt(PROMPT), None) == (8,)
    core.pool.evict(hashes(PROMPT))
    assert looked_up(tmp_path).cached(prompt(PROMPT), None) == (0,)


def test_a_block_that_is_there_twice_is_there_until_both_are_gone(core: Core, tmp_path: Path) -> None:
    core.pool.cache(hashes(PROMPT)[:1])
    core.pool.cache(hashes(PROMPT)[:1])
    core.pool.evict(hashes(PROMPT)[:1])
    assert looked_up(tmp_path).cached(prompt(PROMPT), None) == (0,)


def test_an_emptied_cache_is_followed_again_from_the_next_request_on(core: Core, tmp_path: Path) -> None:
    core.pool.cache(hashes(PROMPT))
    core.pool.reset()
    core.pool.cache(hashes(PROMPT)[:1])
    core.followed.follow()
    core.pool.cache(hashes(PROMPT)[:2])
    assert looked_up(tmp_path).cached(prompt(PROMPT), None) == (8,)


def test_adapters_and_salts_keep_prompts_apart(core: Core, tmp_path: Path) -> None:
    prefixes = looked_up(tmp_path)
    core.pool.cache(hashes(PROMPT, adapter="sql"))
    core.pool.cache(hashes(PROMPT, salt="tenant"))
    assert prefixes.cached(prompt(PROMPT), None) == (0,)
    assert prefixes.cached(prompt(PROMPT), "sql") == (28,)
    assert prefixes.cached(prompt(PROMPT, cache_salt="tenant"), None) == (28,)
    assert prefixes.cached(prompt(PROMPT, cache_salt="other"), None) == (0,)


def test_each_core_is_looked_up_with_its_own_root(tmp_path: Path) -> None:
    first, second, third = Core(tmp_path, 0), Core(tmp_path, 1, b"another"), Core(tmp_path, 2, None)
    first.pool.cache(hashes(PROMPT)[:2])
    second.pool.cache(hashes(PROMPT, root=b"another")[:5])
    third.pool.cache(hashes(PROMPT))
    assert looked_up(tmp_path, (0, 1)).cached(prompt(PROMPT), None) == (8, 20)
    assert looked_up(tmp_path, (0, 1, 2)).cached(prompt(PROMPT), None) is None, "the third has not said how it hashes"


@pytest.mark.parametrize("kind", ["embeds", "multimodal", "enc_dec", None])
def test_of_other_prompts_nothing_is_said(core: Core, tmp_path: Path, kind: str | None) -> None:
    assert looked_up(tmp_path).cached({"type": kind, "prompt_token_ids": PROMPT}, None) is None


def test_a_full_cache_finds_what_it_holds_and_hardly_more(tmp_path: Path) -> None:
    core, made = Core(tmp_path), random.Random(1)
    held = [made.randbytes(32) for _ in range(1000)]
    core.pool.cache(held)
    reader = CachedBlocksReader(cached_blocks_of(tmp_path, 0))
    assert all(reader.holds(one) for one in held)
    strangers = [made.randbytes(32) for _ in range(10_000)]
    assert sum(reader.holds(one) for one in strangers) < 0.08 * len(strangers)
    core.pool.evict(held)
    assert not any(reader.holds(one) for one in (*held, *strangers))


def test_a_cell_that_is_full_stays_so(tmp_path: Path) -> None:
    told = CachedBlocksWriter(tmp_path, engine=0, blocks=1, block_tokens=SIZE)
    reader = CachedBlocksReader(cached_blocks_of(tmp_path, 0))
    for _ in range(300):
        told.add(b"12345678")
    for _ in range(300):
        told.remove(b"12345678")
    assert reader.holds(b"12345678")
    told.clear()
    told.remove(b"12345678")
    assert not reader.holds(b"12345678")


def test_the_core_looks_up_what_waits(core: Core) -> None:
    waiting = SimpleNamespace(block_hashes=hashes(PROMPT), num_tokens=len(PROMPT))
    assert core.followed.cached_tokens(waiting) == 0
    core.pool.cache(hashes(PROMPT)[:5])
    assert core.followed.cached_tokens(waiting) == 20
    whole = SimpleNamespace(block_hashes=hashes(PROMPT[:20]), num_tokens=20)
    assert core.followed.cached_tokens(whole) == 16
    blind = SimpleNamespace(block_hashes=hashes(PROMPT), num_tokens=len(PROMPT), skip_reading_prefix_cache=True)
    assert core.followed.cached_tokens(blind) == 0
    core.pool.reset()
    assert core.followed.cached_tokens(waiting) == 0


def test_a_step_has_room_for_what_a_cached_prompt_costs(
    core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "governed"
    folder.mkdir()
    monkeypatch.setattr(step_hooks, "cached_blocks", lambda *_, **__: core.followed)
    governed, chat = GovernedCore(folder), list(range(4000))
    core.pool.cache(hashes(chat)[:975])
    governed.add("chat", prompt=4000)
    governed.scheduler.requests["chat"].block_hashes = hashes(chat)
    # A token of a prompt takes 1 ms and reads its context at 1 µs a token.
    model = StepModel(t0=0.010, h=0.0, c1=0.001, c2=0.001, beta=0.0, g=1e-6, kappa=1)
    governed.hooks.apply(setpoint(1, step=a_budget(0.1, model)))
    governed.hooks.before_schedule()
    room = governed.scheduler.max_num_scheduled_tokens
    assert 0.9 < model.seconds(decodes=0, prefill_tokens=room, context=3900) / 0.1 <= 1.0


def test_a_fault_of_ours_leaves_the_cache_as_it_is(
    core: Core, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core.pool.cache(hashes(PROMPT))
    cache: Any = core.pool.cached_block_hash_to_block._cache
    cache["no hash"] = "block"
    assert cache["no hash"] == "block"
    assert cache.pop("no hash") == "block"
    expect_lost(core, tmp_path, caplog)


@pytest.mark.parametrize("change", [lambda cache: cache.clear(), lambda cache: cache.__delitem__(next(iter(cache)))])
def test_what_goes_in_a_way_we_do_not_know_ends_the_following(
    core: Core, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Any], None]
) -> None:
    core.pool.cache(hashes(PROMPT))
    change(core.pool.cached_block_hash_to_block._cache)
    expect_lost(core, tmp_path, caplog)


def test_a_cache_of_another_kind_ends_the_following_and_nothing_else(
    core: Core, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core.pool.cached_block_hash_to_block = SimpleNamespace()
    core.followed.follow()
    expect_lost(core, tmp_path, caplog)
    core.pool.reset()
    core.followed.follow()
    assert not core.followed.knows


def test_a_request_that_cannot_be_looked_up_ends_the_following(
    core: Core, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert core.followed.cached_tokens(SimpleNamespace(num_tokens=30)) == 0
    expect_lost(core, tmp_path, caplog)


@pytest.mark.parametrize("held", [b"", b"x" * 200, b"FLYBALL3" * 40])
def test_a_file_that_is_none_is_refused(tmp_path: Path, held: bytes) -> None:
    cached_blocks_of(tmp_path, 0).write_bytes(held)
    with pytest.raises(CachedBlocksError):
        CachedBlocksReader(cached_blocks_of(tmp_path, 0))


def test_its_memory_is_taken_when_it_is_made(tmp_path: Path) -> None:
    CachedBlocksWriter(tmp_path, engine=0, blocks=10_000, block_tokens=SIZE)
    taken = cached_blocks_of(tmp_path, 0).stat()
    assert taken.st_blocks * 512 >= taken.st_size > 10_000


@pytest.mark.parametrize(
    ("consumer", "said"),
    [(True, "a connector brings what the cache does not hold"), (False, "the cache has 2 groups")],
)
def test_a_cache_that_a_connector_fills_is_not_followed_and_that_of_a_producer_is_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, consumer: bool, said: str
) -> None:
    cache = SimpleNamespace(enable_caching=True, kv_cache_config=SimpleNamespace(kv_cache_groups=[1, 2]))
    scheduler = SimpleNamespace(kv_cache_manager=cache, connector=object(), vllm_config=transferring(consumer=consumer))
    with caplog.at_level("INFO"):
        assert cached_blocks(scheduler, folder=tmp_path, engine=0) is None
    assert said in caplog.text


def test_a_cache_whose_hashes_look_ahead_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = SimpleNamespace(enable_caching=True)
    with caplog.at_level("INFO"):
        scheduler = SimpleNamespace(kv_cache_manager=manager, num_hash_lookahead_tokens=1)
        assert cached_blocks(scheduler, folder=tmp_path, engine=0) is None
    assert "hashes of blocks cover tokens behind them" in caplog.text


def test_where_a_core_tells_nothing_nothing_is_looked_up(tmp_path: Path) -> None:
    assert open_prefixes(tmp_path, (0,), SimpleNamespace()) is None
    assert open_prefixes(tmp_path, (), SimpleNamespace()) is None


@pytest.mark.parametrize("root", [b"", b"x" * 65])
def test_a_root_has_its_place(tmp_path: Path, root: bytes) -> None:
    with pytest.raises(ValueError, match="accepted: 1 to 64"):
        CachedBlocksWriter(tmp_path, engine=0, blocks=1, block_tokens=SIZE).set_root(root)


@pytest.mark.parametrize(
    ("manager", "said"),
    [
        (SimpleNamespace(enable_caching=False), "prefix caching is off"),
        (SimpleNamespace(), "prefix caching is off"),
        (
            SimpleNamespace(enable_caching=True, kv_cache_config=SimpleNamespace(kv_cache_groups=[1, 2])),
            "the cache has 2 groups",
        ),
        (SimpleNamespace(enable_caching=True), "kv_cache_config"),
    ],
)
def test_a_cache_that_cannot_be_followed_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, manager: Any, said: str
) -> None:
    with caplog.at_level("INFO"):
        assert cached_blocks(SimpleNamespace(kv_cache_manager=manager), folder=tmp_path, engine=0) is None
    assert said in caplog.text
