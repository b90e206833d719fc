"""Ten thousand services shared by shards: whatever fails, none is ever two replicas', and each has its share."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_lab.harness.virtual_time import in_virtual_time, now, run
from flyball_operator.api import names
from flyball_operator.api.shards import MOST_SHARDS, Shard, shards
from flyball_operator.app.shards import LEAST_REST_SECONDS, LONGEST_REST_SECONDS, Shards
from flyball_operator.kube.election import LEASE_SECONDS, RETRY_SECONDS, LeadershipLostError
from flyball_operator.kube.shares import SPARE_SECONDS, ShardGeneration
from flyball_operator.prometheus import queries
from support.election import LEASE, Way
from support.replicas import SERVICES, Replicas, beginnings

#: Until another has what a replica held that is gone: its Lease runs out, and both looks come late.
TAKE_OVER_SECONDS = LEASE_SECONDS + SPARE_SECONDS + 2 * RETRY_SECONDS


@pytest.mark.parametrize("count", [1, 2, 3, 12, MOST_SHARDS])
def test_each_service_is_in_one_shard_and_shards_are_alike(count: int) -> None:
    sizes = [sum(map(shard.has, SERVICES)) for shard in shards(count)]
    assert sum(sizes) == len(SERVICES)
    assert all(abs(size * count / len(SERVICES) - 1) < 0.35 for size in sizes)
    assert sum(shard.has("no UID") for shard in shards(count)) == 1


@pytest.mark.parametrize("count", [2, 3, 12, MOST_SHARDS])
def test_prometheus_is_asked_for_the_services_of_the_shard(count: int) -> None:
    for shard in shards(count):
        for part in range(queries.PARTS):
            matchers = re.findall(rf'{queries.UID}(=~|!~)"([^"]*)"', queries.part(part, shard))
            for uid in (*SERVICES[:500], "no UID"):
                asked = all((re.fullmatch(text, uid) is not None) is (how == "=~") for how, text in matchers)
                assert asked == (shard.has(uid) and queries.part_of(uid) == part)


def test_of_one_shard_nothing_is_asked_otherwise() -> None:
    assert queries.part(0, Shard()) == queries.part(0, Shard(0, 1))
    assert queries.part(0, Shard()).count(queries.UID) == 1
    assert Shard().lease("flyball") == "flyball"
    assert [shard.lease("flyball") for shard in shards(3)] == ["flyball", "flyball-shard-1", "flyball-shard-2"]


async def settled(world: Replicas, *spread: int) -> float:
    """Wait until each replica has its share; seconds that it took."""
    return await world.until(lambda: world.all_held() and world.spread() == list(spread), within=120)


def moved(world: Replicas, before: Counter[str]) -> set[str]:
    """What the UIDs begin with of services that others act for since then."""
    return set(world.moves - before)


def of(*held: Shard) -> set[str]:
    """What the UIDs of services of shards begin with."""
    return {beginning for shard in held for beginning in beginnings(shard)}


@in_virtual_time
async def test_three_replicas_share_and_each_service_is_looked_at_once() -> None:
    async with Replicas("a", "b", "c") as world:
        assert await settled(world, 4, 4, 4) < 30, "the first time, since nobody knows that no Lease was deleted"
        assert max(world.moves.values()) == 1, "nothing moved on the way"
        await asyncio.sleep(120)
        assert world.spread() == [4, 4, 4]
        assert max(world.moves.values()) == 1
        looks = sum((replica.looked for replica in world), start=world["a"].looked.__class__())
        assert set(looks.values()) == {1}
        assert len(looks) == len(SERVICES)
        assert all(abs(replica.services - len(SERVICES) / 3) < 300 for replica in world)


@pytest.mark.parametrize(("count", "spread"), [(10, (3, 3, 4)), (2, (0, 1, 1)), (12, (12,))])
@in_virtual_time
async def test_shares_differ_by_one_at_most(count: int, spread: tuple[int, ...]) -> None:
    async with Replicas(*("a", "b", "c")[: len(spread)], shards=count) as world:
        assert await settled(world, *spread) < 30


@in_virtual_time
async def test_of_a_killed_replica_its_own_services_move_and_no_others() -> None:
    async with Replicas("a", "b", "c") as world:
        await settled(world, 4, 4, 4)
        held = world["b"].held
        before = Counter(world.moves)
        await world["b"].die()
        assert await world.until(world.all_held) <= TAKE_OVER_SECONDS
        assert moved(world, before) == of(*held)
        assert world.spread() == [6, 6]


@in_virtual_time
async def test_a_replica_that_is_killed_and_started_again_in_time_has_its_own_back() -> None:
    async with Replicas("a", "b", "c") as world:
        await settled(world, 4, 4, 4)
        held = world["b"].held
        await world["b"].die()
        await asyncio.sleep(5)
        world.start("b")
        await settled(world, 4, 4, 4)
        assert world["b"].held == held


@in_virtual_time
async def test_a_replica_that_comes_back_gets_its_share_and_the_others_go_on() -> None:
    async with Replicas("a", "b", "c") as world:
        await settled(world, 4, 4, 4)
        await world["b"].die()
        await settled(world, 6, 6)
        before, began = Counter(world.moves), now()
        world.start("b")
        unserved = 0.0
        while world.spread() != [4, 4, 4]:
            assert now() - began < 60
            unserved += 0.1 * (len(SERVICES) - sum(replica.services for replica in world)) / len(SERVICES)
            await asyncio.sleep(0.1)
        assert moved(world, before) <= of(*world["b"].held), "and no others"
        assert unserved < 2, "a shard is given back, not let run out"


@in_virtual_time
async def test_in_a_rolling_update_each_shard_moves_once() -> None:
    async with Replicas("a", "b", "c") as world:
        await settled(world, 4, 4, 4)
        for old, new in zip(list("abc"), list("xyz"), strict=True):
            world.start(new)
            await asyncio.sleep(10)
            await world[old].end()
            assert await world.until(world.all_held) <= 2 * RETRY_SECONDS
        assert max(world.moves.values()) == 2
        assert world.spread() == [4, 4, 4]


@pytest.mark.parametrize("way", [Way.REFUSED, Way.HANGING, Way.ANSWERS_LOST])
@in_virtual_time
async def test_a_replica_cut_off_loses_its_shards_and_stands_again(way: Way) -> None:
    async with Replicas("a", "b", "c") as world:
        await settled(world, 4, 4, 4)
        world["a"].client.way = way
        await world.until(lambda: not world["a"].held, within=11)
        await world.until(world.all_held, within=30)
        world["a"].client.way = Way.OPEN
        await settled(world, 4, 4, 4)


@in_virtual_time
async def test_one_lease_that_is_lost_moves_one_shard() -> None:
    async with Replicas("a", "b", "c") as world:
        await settled(world, 4, 4, 4)
        before = Counter(world.moves)
        world.server.delete(Shard(5, 12).lease(LEASE))
        await asyncio.sleep(10)
        await world.until(world.all_held)
        assert moved(world, before) == of(Shard(5, 12))


@in_virtual_time
async def test_a_replica_that_is_stopped_and_goes_on_writes_nothing_more() -> None:
    async with Replicas("a", "b", "c") as world:
        await settled(world, 4, 4, 4)
        world["a"].running.clear()
        await asyncio.sleep(11)
        assert not world["a"].held
        await world.until(world.all_held)
        world["a"].running.set()
        await settled(world, 4, 4, 4)


async def rolled_to(world: Replicas, count: int, *pairs: tuple[str, str]) -> None:
    """A rolling update to another number of shards; `pairs` of an old and a new replica."""
    for old, new in pairs:
        world.start(new, shards=count)
        await asyncio.sleep(15)
        await world[old].end()
        await asyncio.sleep(3)
    await world.until(world.all_held, within=60)
    assert {shard.count for replica in world for shard in replica.held} == {count}


@pytest.mark.parametrize("numbers", [(1, 12, 1, 12), (12, 5, 12), (2, 64, 1)])
@in_virtual_time
async def test_another_number_of_shards_comes_in_a_rolling_update(numbers: tuple[int, ...]) -> None:
    async with Replicas("a0", "b0", "c0", shards=numbers[0]) as world:
        await world.until(world.all_held)
        for turn, count in enumerate(numbers[1:]):
            await rolled_to(world, count, *((f"{name}{turn}", f"{name}{turn + 1}") for name in "abc"))


@in_virtual_time
async def test_a_replica_of_another_number_waits_while_the_first_shard_is_held() -> None:
    async with Replicas("a", "b") as world:
        await settled(world, 6, 6)
        world.start("other", shards=5)
        await asyncio.sleep(100)
        assert world.spread() == [0, 6, 6]
        for name in "ab":
            await world[name].die()
        assert await settled(world, 5) < 60


@pytest.mark.parametrize("cut_before", [0.0, 0.3, 1.1])
@in_virtual_time
async def test_who_cannot_see_that_another_number_is_in_force_is_waited_for(cut_before: float) -> None:
    async with Replicas("a", "b", shards=6) as world:
        await settled(world, 3, 3)
        first, other = sorted(world, key=lambda replica: Shard(0, 6) not in replica.held)
        world.start("new", shards=5, replicas=1)
        await asyncio.sleep(10)
        other.client.way = Way.HANGING
        await asyncio.sleep(cut_before)
        await first.end()
        await world.until(lambda: world["new"].services == len(SERVICES))


@in_virtual_time
async def test_who_ends_while_it_waits_for_others_lets_nobody_act_before() -> None:
    async with Replicas("a", "b", shards=6) as world:
        await settled(world, 3, 3)
        first, other = sorted(world, key=lambda replica: Shard(0, 6) not in replica.held)
        world.start("new", shards=1)
        await asyncio.sleep(10)
        other.client.way = Way.HANGING
        await first.end()
        await world.until(lambda: ShardGeneration.of(world.server.read()).count == 1)
        await world["new"].end()
        world.start("next", shards=1)
        await world.until(lambda: world["next"].services == len(SERVICES))


@in_virtual_time
async def test_epochs_go_above_those_of_any_shard_that_was_in_force() -> None:
    async with Replicas("a", shards=6) as world:
        await settled(world, 6)
        elector = world["a"].shards._terms[Shard(5, 6)].elector
        elector.raise_epoch(elector.epoch + 900)
        await asyncio.sleep(3 * RETRY_SECONDS)
        # Engines have heard of it, and no status says so.
        world.statuses_written, world.server.highest_epoch = False, 1
        await rolled_to(world, 1, ("a", "b"))


@in_virtual_time
async def test_who_slept_while_another_number_was_in_force_goes_on_with_nothing() -> None:
    async with Replicas("a", shards=6) as world:
        await settled(world, 6)
        world["a"].running.clear()
        world.start("b", shards=5)
        await world.until(lambda: world["b"].services == len(SERVICES))
        await world["b"].end()
        world.start("c")
        await world.until(lambda: Shard(0, 6) in world["c"].held)
        # Nobody took the Lease of its last shard meanwhile: there was none of that number.
        world["a"].running.set()
        await world.until(world.all_held)


@in_virtual_time
async def test_the_lease_of_the_first_shard_that_is_deleted_makes_no_two_leaders() -> None:
    async with Replicas("a", "b", "c") as world:
        await settled(world, 4, 4, 4)
        for _ in range(3):
            world.server.delete()
            await asyncio.sleep(1)
        await asyncio.sleep(30)
        await world.until(world.all_held)


@in_virtual_time
async def test_of_one_shard_the_lease_says_nothing_of_shards_and_no_more_is_asked() -> None:
    async with Replicas("a", "b", shards=1) as world:
        await world.until(world.all_held)
        await asyncio.sleep(1)
        world.server.calls.clear()
        await asyncio.sleep(100)
        assert world.server.calls == {"get": 50, "replace": 50}
        assert "annotations" not in world.server.read()["metadata"]


@in_virtual_time
async def test_the_only_shard_that_is_lost_is_stood_for_again_by_the_same_process() -> None:
    async with Replicas("a", shards=1) as world:
        await world.until(world.all_held)
        epoch, term = world["a"].shards.epoch(), world["a"].shards._terms[Shard()]
        world.server.delete()
        await world.until(lambda: not world["a"].held)
        assert set(world["a"].looked.values()) == {1}
        await world.until(world.all_held, within=30)
        assert world["a"].shards.epoch() > epoch
        # What the old leader knew may be old: the new one has everything looked at.
        await world.until(lambda: set(world["a"].looked.values()) == {2})
        assert world["a"].shards._terms[Shard()] is not term
        assert not term.elector.may_act()


@in_virtual_time
async def test_a_standby_takes_over_from_a_replica_that_goes_on_as_standby() -> None:
    async with Replicas("a", "b", shards=1) as world:
        await world.until(world.all_held)
        lost, other = sorted(world, key=lambda replica: not replica.held)
        lost.client.way = Way.HANGING
        await world.until(lambda: bool(other.held), within=TAKE_OVER_SECONDS)
        lost.client.way = Way.OPEN
        await asyncio.sleep(100)
        assert not lost.held
        await other.end()
        assert await world.until(lambda: bool(lost.held)) <= 2 * RETRY_SECONDS


@in_virtual_time
async def test_of_several_shards_the_one_that_somebody_led_after_us_moves_and_no_other() -> None:
    async with Replicas("a", "b", "c") as world:
        await settled(world, 4, 4, 4)
        before = Counter(world.moves)
        lost = min(world["a"].held)
        epoch = world["a"].shards.epochs()[lost]
        world.server.highest_epoch = epoch + 7
        world["a"].shards.led_after(lost, "a status has a newer epoch")
        assert lost not in world["a"].held
        await asyncio.sleep(10)
        await world.until(world.all_held)
        assert moved(world, before) == of(lost)
        (now_held,) = [replica.shards.epochs()[lost] for replica in world if lost in replica.held]
        assert now_held > epoch + 7


@in_virtual_time
async def test_a_shard_that_is_lost_again_and_again_is_stood_for_further_and_further_apart() -> None:
    async with Replicas("a", shards=1) as world:
        rests: list[float] = []
        for _ in range(7):
            await world.until(world.all_held)
            world["a"].shards.led_after(Shard(), "somebody led after us")
            began = now()
            await world.until(lambda: Shard() not in world["a"].shards._terms)
            await world.until(lambda: Shard() in world["a"].shards._terms)
            rests.append(now() - began)
        assert rests == sorted(rests)
        assert LEAST_REST_SECONDS <= rests[0] < rests[-1] <= LONGEST_REST_SECONDS + 2
        await world.until(world.all_held)
        await asyncio.sleep(LONGEST_REST_SECONDS)
        world["a"].shards.led_after(Shard(), "somebody led after us")
        assert await world.until(world.all_held) < rests[-1], "one that led for long begins anew"


@in_virtual_time
async def test_a_replica_that_rests_ends_at_once_when_asked_to() -> None:
    async with Replicas("a", shards=1) as world:
        for _ in range(5):
            await world.until(world.all_held)
            world["a"].shards.led_after(Shard(), "somebody led after us")
        await world.until(lambda: Shard() not in world["a"].shards._terms)
        began = now()
        await world["a"].end()
        assert now() - began < LEAST_REST_SECONDS


@in_virtual_time
async def test_a_shard_that_nobody_may_have_is_asked_for_once_a_minute() -> None:
    async with Replicas("a", "b") as world:
        await settled(world, 6, 6)
        # It believes in more replicas, so the others have more than it takes their share to be.
        world.start("c", replicas=12)
        asked = 0
        for _ in range(180):
            await asyncio.sleep(1)
            leases = (world.server.read(shard.lease(LEASE)) for shard in shards(12))
            asked += sum(names.ANNOTATION_PREFERRED_HOLDER in lease["metadata"]["annotations"] for lease in leases)
        assert 0 < asked < 12 * 4 * 3
        assert world.spread() == [0, 6, 6]


class Trouble:
    """What may happen to replicas, by name."""

    def __init__(self, world: Replicas) -> None:
        self.world = world
        self.made = 0

    async def happens(self, kind: str, name: str, count: int) -> None:
        found = self.world.replicas.get(name)
        if found is None:
            self.world.start(name, shards=count)
        elif kind == "kill":
            await found.die()
        elif kind == "end":
            found.client.way = Way.OPEN
            found.running.set()
            await found.end()
        elif kind == "stop":
            found.running.clear()
        elif kind == "go":
            found.running.set()
            found.client.way = Way.OPEN
        else:
            found.client.way = Way[kind]


KINDS = ("kill", "end", "stop", "go", "go", *(way.name for way in Way))
troubles = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from("abc"), st.sampled_from((6, 6, 6, 4)), st.floats(0.1, 25)),
    min_size=1,
    max_size=15,
)


@settings(max_examples=10)
@given(troubles)
def test_whatever_fails_whenever_no_service_is_two_replicas(events: list[tuple[str, str, int, float]]) -> None:
    expect_one_each(events)


@pytest.mark.long
@settings(max_examples=200)
@given(troubles)
def test_in_two_hundred_stories_no_service_is_two_replicas(events: list[tuple[str, str, int, float]]) -> None:
    expect_one_each(events)


def expect_one_each(events: list[tuple[str, str, int, float]]) -> None:
    """Never has a service two replicas, and all are well in the end."""

    async def story() -> None:
        async with Replicas("a", "b", "c", shards=6) as world:
            trouble = Trouble(world)
            for kind, name, count, seconds in events:
                await trouble.happens(kind, name, count)
                await asyncio.sleep(seconds)
                world.check()
            # Afterwards all is well again, with whatever number of shards is in force.
            for name in "abc":
                if name in world.replicas:
                    await trouble.happens("go", name, 6)
                else:
                    world.start(name)
            await world.until(world.all_held, within=180)

    run(story())


@in_virtual_time
async def test_replicas_that_divide_the_services_otherwise_take_no_shards_from_each_other() -> None:
    async with Replicas("a", "b", "c", shards=6) as world:
        await world.until(world.all_held)
        await world["b"].die()
        world.start("b", shards=4)
        await world.until(world.all_held)
        for _ in range(300):
            await asyncio.sleep(1)
            assert world.all_held(), f"{now():.0f}: nobody writes for some services"


class Losing:
    """A term that loses its lease at the moment at which the process ends."""

    def __init__(self, *_: object) -> None:
        self.elector = SimpleNamespace(may_act=lambda: False)

    async def assemble(self) -> None:
        pass

    async def run(self) -> None:
        async def loses() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise LeadershipLostError("it was not renewed")

        async with asyncio.TaskGroup() as group:
            group.create_task(loses())
            await asyncio.Event().wait()


@in_virtual_time
async def test_a_lease_that_is_lost_as_the_process_ends_keeps_it_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_operator.app.shards.Term", Losing)
    running = asyncio.create_task(
        Shards(2).run(cast("Any", SimpleNamespace(shares=SimpleNamespace(replica="a"), clock=now)))
    )
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.wait([running], timeout=60)
    assert running.cancelled()
