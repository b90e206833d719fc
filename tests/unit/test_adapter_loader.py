"""One API server follows the list of adapters: it loads what is new, unloads what is gone, tries again what failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flyball_engine.adapters import ADAPTERS_WAIT_SECONDS, Adapter, AdapterReport, AdapterState, merged
from flyball_engine.control.adapters import LONGEST_RETRY_SECONDS, AdapterError, AdapterLoader
from flyball_engine.control.readiness import Readiness
from support.lora import PodList

LOADING, LOADED, FAILED = AdapterState.LOADING, AdapterState.LOADED, AdapterState.FAILED


class Engine:
    """Serves what it is told to. `broken`: uris that it cannot load; `held`: names whose load does not end."""

    def __init__(self) -> None:
        self.served: dict[str, str] = {}
        self.broken: dict[str, str] = {}
        self.held: set[str] = set()
        self.tries = 0
        self.tidied: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()

    async def load(self, adapter: Adapter) -> None:
        self.tries += 1
        await asyncio.sleep(0)
        if adapter.name in self.held:
            await asyncio.Future()
        if adapter.uri in self.broken:
            raise AdapterError(self.broken[adapter.uri])
        self.served[adapter.name] = adapter.uri

    def unload(self, name: str) -> None:
        del self.served[name]

    async def tidy(self, listed: tuple[Adapter, ...]) -> None:
        self.tidied.put_nowait(tuple(adapter.name for adapter in listed))


class World:
    """A pod: its list, its engine, and a clock that tests move."""

    def __init__(self, folder: Path) -> None:
        self.now, self.engine, self.named = 0.0, Engine(), list[tuple[str, ...]]()
        self.list = PodList(folder / "adapters.json")
        self.loader = AdapterLoader(self.list.path, self.engine, clock=lambda: self.now, names=self.named.append)

    async def look(self, *, after: float = 0.0) -> dict[str, AdapterState]:
        """A look at the list, and all that comes of it."""
        self.now += after
        self.loader.look()
        for _ in range(20):
            await asyncio.sleep(0)
        return {one.adapter.name: one.state for one in self.loader.reports}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_what_is_new_is_loaded_and_what_is_gone_unloaded(world: World) -> None:
    world.list.say(sql="hf://org/sql@v1", law="file:///law")
    assert await world.look() == {"sql": LOADED, "law": LOADED}
    world.list.say(law="file:///law", chat_v2="file:///chat")
    assert await world.look() == {"law": LOADED, "chat-v2": LOADED}
    assert world.engine.served == {"law": "file:///law", "chat-v2": "file:///chat"}
    assert world.engine.tries == 3, "what stays is not loaded again"
    assert world.named == [("sql", "law"), ("law", "chat-v2")]


async def test_another_address_of_a_name_replaces_it_once_it_is_loaded(world: World) -> None:
    world.list.say(sql="file:///sql-1")
    await world.look()
    world.engine.broken["file:///sql-2"] = "no such folder"
    world.list.say(sql="file:///sql-2")
    assert await world.look() == {"sql": FAILED}
    assert world.engine.served == {"sql": "file:///sql-1"}
    says = "no such folder; until it is loaded, the earlier adapter of this name answers"
    assert world.loader.reports[0].message == says
    world.engine.broken.clear()
    assert await world.look(after=5) == {"sql": LOADED}
    assert world.engine.served == {"sql": "file:///sql-2"}
    world.list.say()
    await world.look()
    assert world.engine.served == {}


async def test_what_never_loaded_leaves_the_earlier_one_until_its_name_is_removed(world: World) -> None:
    world.list.say(sql="file:///sql-1")
    await world.look()
    world.engine.held.add("sql")
    world.list.say(sql="file:///sql-2")
    assert await world.look() == {"sql": LOADING}
    assert world.engine.served == {"sql": "file:///sql-1"}
    world.list.say()
    await world.look()
    assert world.engine.served == {}


async def test_what_failed_says_why_and_is_tried_again_ever_more_rarely(world: World) -> None:
    world.engine.broken["file:///sql"] = "no such folder"
    world.list.say(sql="file:///sql")
    assert await world.look() == {"sql": FAILED}
    assert world.loader.reports[0].message == "no such folder"
    await world.look(after=4)
    assert world.engine.tries == 1
    for _ in range(100):
        await world.look(after=60)
    assert 6000 / LONGEST_RETRY_SECONDS <= world.engine.tries < 30
    world.engine.broken.clear()
    assert await world.look(after=LONGEST_RETRY_SECONDS) == {"sql": LOADED}
    assert world.loader.reports[0].message == ""


async def test_a_load_that_does_not_end_holds_up_no_other_and_ends_when_it_is_not_wanted(world: World) -> None:
    world.engine.held.add("slow")
    world.list.say(slow="file:///slow", sql="file:///sql")
    assert await world.look() == {"slow": LOADING, "sql": LOADED}
    assert not world.loader.settled
    world.list.say(sql="file:///sql")
    assert await world.look() == {"sql": LOADED}
    assert world.loader.settled


@pytest.mark.parametrize("content", [b"", b"{", b'{"adapters": [{"name": ""}]}', b"\xff"])
async def test_a_list_that_cannot_be_read_changes_nothing(world: World, content: bytes) -> None:
    world.list.say(sql="file:///sql")
    await world.look()
    world.list.path.write_bytes(content)
    assert await world.look() == {"sql": LOADED}
    world.list.path.unlink()
    assert await world.look() == {"sql": LOADED}


async def test_a_pod_that_never_read_a_list_is_not_settled(world: World) -> None:
    """Its ConfigMap was deleted: it would answer 404 for every adapter."""
    assert await world.look() == {}
    assert not world.loader.settled
    assert not world.loader.listed
    world.list.say()
    assert await world.look() == {}
    assert world.loader.settled, "an empty list is one"
    assert world.loader.listed


async def test_a_list_that_is_deleted_leaves_the_adapters_and_is_told(world: World) -> None:
    world.list.say(sql="file:///sql")
    await world.look()
    world.list.path.unlink()
    assert await world.look() == {"sql": LOADED}
    assert (world.loader.settled, world.loader.listed) == (True, False)
    world.list.say(sql="file:///sql")
    await world.look()
    assert world.loader.listed


async def test_downloads_are_tidied_by_the_list(world: World) -> None:
    world.list.say(sql="hf://org/sql@v1")
    task = asyncio.create_task(world.loader.run())
    assert await world.engine.tidied.get() == ("sql",)
    task.cancel()


def test_an_engine_waits_for_its_adapters_and_not_for_ever() -> None:
    now, settled = [0.0], [False]
    readiness = Readiness(lambda: now[0])
    readiness.expect_answer()
    readiness.expect_adapters(lambda: settled[0])
    readiness.answered()
    assert readiness.lacks() == "the engine has yet to load its adapters; it serves without them in 2m"
    now[0] = ADAPTERS_WAIT_SECONDS
    assert readiness.lacks() is None


def test_an_engine_is_ready_once_its_adapters_are_loaded_or_failed() -> None:
    readiness = Readiness(lambda: 0.0)
    readiness.expect_answer()
    readiness.expect_adapters(lambda: True)
    readiness.answered()
    assert readiness.lacks() is None


# Several API servers


def told(state: AdapterState, message: str = "", *, uri: str = "file:///sql") -> tuple[AdapterReport, ...]:
    return (AdapterReport(adapter=Adapter(name="sql", uri=uri), state=state, message=message),)


@pytest.mark.parametrize(
    ("own", "other", "all_together"),
    [
        (told(LOADED), told(LOADED), told(LOADED)),
        (told(LOADED), told(LOADING), told(LOADING)),
        (told(LOADED), (), told(LOADING)),
        (told(LOADED), told(LOADED, uri="file:///earlier"), told(LOADING)),
        (told(LOADED), told(FAILED, "away"), told(FAILED, "away")),
        (told(FAILED, "away"), told(LOADING), told(FAILED, "away")),
    ],
)
def test_an_adapter_is_loaded_where_every_api_server_has_it(
    own: tuple[AdapterReport, ...], other: tuple[AdapterReport, ...], all_together: tuple[AdapterReport, ...]
) -> None:
    assert merged(own, (told(LOADED), other)) == all_together


def test_an_adapter_has_a_number_of_its_address() -> None:
    first = Adapter(name="sql", uri="hf://org/sql", revision="v1")
    others = [first.model_copy(update=change) for change in ({"name": "b"}, {"uri": "hf://org/b"}, {"revision": "b"})]
    assert len({one.lora_id for one in (first, *others)}) == 4
    assert all(2**30 <= one.lora_id < 2**31 for one in others)
    assert Adapter(name="sql", uri="hf://org/sql", revision="v1").lora_id == first.lora_id
