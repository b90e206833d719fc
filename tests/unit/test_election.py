"""The election, trap by trap. Time is virtual; the election itself fails when two may act at one moment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_lab.harness.virtual_time import run
from flyball_operator.api.epochs import UNRECORDED_LEADERS
from flyball_operator.kube.election import (
    LEASE_SECONDS,
    RAISE_SECONDS,
    RENEW_DEADLINE,
    RETRY_SECONDS,
    LeadershipLostError,
)
from support.election import Election, RunningCandidate, Way


def in_virtual_time(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(story)
    def told(*args: Any, **kwargs: Any) -> None:
        run(story(*args, **kwargs))

    return told


def now() -> float:
    return asyncio.get_running_loop().time()


async def expect_leaderless(election: Election, *, until: float) -> None:
    while now() < until:
        assert not any(candidate.acts for candidate in election.candidates.values())
        await asyncio.sleep(0.05)


@in_virtual_time
async def test_one_of_three_leads_and_stays() -> None:
    async with Election("a", "b", "c") as election:
        leader = await election.until_leader()
        await asyncio.sleep(600)
        assert leader.acts
        assert len(election.reigns) == 1


@in_virtual_time
async def test_a_killed_leader_is_followed_once_its_lease_has_run_out() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        died = now()
        await first.die()
        second = await election.until_leader(other_than=first.name)
        # Its last renewal may be two seconds old, and the other looks every two seconds.
        assert LEASE_SECONDS - RETRY_SECONDS <= now() - died <= 20
        assert second.elector.epoch > first.elector._epoch


@pytest.mark.parametrize("way", [Way.REFUSED, Way.HANGING])
@in_virtual_time
async def test_a_leader_that_cannot_reach_the_server_stops_before_another_starts(way: Way) -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        first.client.way = way
        cut = now()
        await election.until_leader(other_than=first.name)
        assert now() - cut <= 20
        assert isinstance(first.ended_by, LeadershipLostError)
        await expect_ended_in_time(first)


async def expect_ended_in_time(candidate: RunningCandidate) -> None:
    assert candidate.elector.seconds_left() <= 0
    assert candidate.elector.epoch == 0


@in_virtual_time
async def test_renewals_that_land_unanswered_do_not_count_but_keep_others_away() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        first.client.way = Way.ANSWERS_LOST
        await asyncio.sleep(RENEW_DEADLINE + 1)
        assert not first.acts
        await election.until_leader(other_than=first.name)


@in_virtual_time
async def test_a_short_outage_ends_no_leadership() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        for way in (Way.REFUSED, Way.HANGING, Way.ANSWERS_LOST):
            first.client.way = way
            await asyncio.sleep(RENEW_DEADLINE - 5)
            first.client.way = Way.OPEN
            await asyncio.sleep(10)
        assert first.acts
        assert len(election.reigns) == 1


@in_virtual_time
async def test_no_write_may_outlive_the_lease() -> None:
    async with Election("a") as election:
        first = await election.until_leader()
        assert 0 < first.elector.seconds_left() <= RENEW_DEADLINE
        first.client.way = Way.REFUSED
        await asyncio.sleep(5)
        assert first.elector.seconds_left() < RENEW_DEADLINE - 4


@in_virtual_time
async def test_clocks_on_the_wall_decide_nothing() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        for candidate in election.candidates.values():
            for by in (timedelta(days=1), timedelta(days=-3)):
                candidate.step_clock(by)
                await asyncio.sleep(30)
        assert first.acts
        assert len(election.reigns) == 1


@in_virtual_time
async def test_a_leader_asked_to_end_gives_the_lease_back_at_once() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        await asyncio.sleep(1)
        ended = now()
        await first.end()
        await election.until_leader(other_than=first.name)
        assert now() - ended <= RETRY_SECONDS + 0.5


@in_virtual_time
async def test_one_that_stopped_acting_still_holds_the_lease_until_it_gives_it_back() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        first.elector.stop_acting()
        await expect_leaderless(election, until=now() + 60)


@in_virtual_time
async def test_releasing_takes_no_lease_that_is_anothers_by_now() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        first.client.way = Way.HANGING
        second = await election.until_leader(other_than=first.name)
        first.client.way = Way.OPEN
        await first.end()
        await asyncio.sleep(30)
        assert second.acts


@in_virtual_time
async def test_a_lease_deleted_under_its_leader_makes_no_second_one() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        for _ in range(5):
            election.server.delete()
            await asyncio.sleep(0.3)
        second = await election.until_leader(other_than=first.name)
        assert isinstance(first.ended_by, LeadershipLostError)
        assert second.elector.epoch > 1


@in_virtual_time
async def test_a_lease_deleted_under_a_leader_that_no_status_tells_of_makes_no_second_one() -> None:
    async with Election("a", "b", recorded=False) as election:
        first = await election.until_leader()
        # The other looks at the Lease every two seconds.
        await asyncio.sleep(3)
        first.client.way = Way.HANGING
        election.server.delete()
        await election.until_leader(other_than=first.name)


@in_virtual_time
async def test_a_deleted_lease_and_a_leader_that_hears_nothing_make_no_second_one() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        first.client.way = Way.HANGING
        election.server.delete()
        await election.until_leader(other_than=first.name)


@in_virtual_time
async def test_epochs_go_above_those_in_any_status() -> None:
    async with Election("a") as election:
        election.server.highest_epoch = 41
        first = await election.until_leader()
        assert first.elector.epoch > 41


@in_virtual_time
async def test_a_lease_made_anew_goes_above_leaders_that_no_status_tells_of() -> None:
    async with Election(*"abcdef") as election:
        leader = await election.until_leader()
        for _ in range(4):
            await leader.end()
            leader = await election.until_leader(other_than=leader.name)
        heard = leader.elector.epoch
        await leader.end()
        # The engines heard of each of them; a status was written by the first alone.
        election.server.delete()
        election.server.highest_epoch = 1
        last = await election.until_leader(other_than=leader.name)
        assert last.elector.epoch > heard


@in_virtual_time
async def test_nobody_leads_while_epochs_cannot_be_read() -> None:
    async with Election("a") as election:

        async def unreadable(reached: int) -> int:
            raise TimeoutError

        election.candidates["a"].elector._epoch_floor = unreadable
        await expect_leaderless(election, until=now() + 60)


@in_virtual_time
async def test_a_lease_won_without_hearing_of_it_is_used_later() -> None:
    async with Election("a") as election:
        election.candidates["a"].client.way = Way.ANSWERS_LOST
        await expect_leaderless(election, until=now() + 10)
        election.candidates["a"].client.way = Way.OPEN
        await election.until_leader()


@in_virtual_time
async def test_the_record_is_what_kubernetes_expects() -> None:
    async with Election("a") as election:
        await election.until_leader()
        assert election.server.lease is not None
        spec = election.server.lease["spec"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", spec["renewTime"])
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("a", LEASE_SECONDS)


ways = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Way), st.floats(0.1, 20)), min_size=1, max_size=12)


@settings(max_examples=60)
@given(ways, st.booleans())
def test_whatever_fails_whenever_no_two_may_act(troubles: list[tuple[str, Way, float]], deleted: bool) -> None:
    async def story() -> None:
        async with Election("a", "b", "c") as election:
            for name, way, seconds in troubles:
                election.candidates[name].client.way = way
                await asyncio.sleep(seconds)
                if deleted and seconds > 15:
                    election.server.delete()
                await election.check()

    run(story())


@in_virtual_time
async def test_a_leader_raises_its_epoch_by_the_lease_and_leads_on() -> None:
    async with Election("a", "b") as election:
        leader = await election.until_leader()
        first = leader.elector.epoch
        leader.elector.raise_epoch(first + 7)
        assert leader.elector.epoch == first, "not before the Lease has it"
        await asyncio.sleep(2 * RETRY_SECONDS)
        assert leader.acts
        assert leader.elector.epoch == election.server.read()["spec"]["leaseTransitions"] == first + 8
        await leader.die()
        second = await election.until_leader(other_than=leader.name)
        assert second.elector.epoch == first + 9


@in_virtual_time
async def test_epochs_are_raised_seldom_and_never_far() -> None:
    async with Election("a") as election:
        leader = await election.until_leader()
        first = leader.elector.epoch
        leader.elector.raise_epoch(first + UNRECORDED_LEADERS + 1)
        await asyncio.sleep(60)
        assert leader.elector.epoch == first
        # A pod that lies at every tick of an hour moves it once.
        for _ in range(int(RAISE_SECONDS / 5) - 20):
            leader.elector.raise_epoch(leader.elector.epoch)
            await asyncio.sleep(5)
        assert leader.elector.epoch == first + 1
        await asyncio.sleep(120)
        leader.elector.raise_epoch(leader.elector.epoch)
        await asyncio.sleep(2 * RETRY_SECONDS)
        assert leader.elector.epoch == first + 2


@in_virtual_time
async def test_who_lost_the_lease_raises_nothing() -> None:
    async with Election("a", "b") as election:
        first = await election.until_leader()
        first.client.way = Way.REFUSED
        first.elector.raise_epoch(first.elector.epoch + 5)
        second = await election.until_leader(other_than=first.name)
        first.client.way = Way.OPEN
        await asyncio.sleep(60)
        assert isinstance(first.ended_by, LeadershipLostError)
        assert election.server.read()["spec"]["leaseTransitions"] == second.elector.epoch == 2
