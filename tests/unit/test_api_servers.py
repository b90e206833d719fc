"""Several API servers of one engine: each counts for itself, and one tells the sum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from flyball_engine.batching.gate import AdmissionReason, Gate
from flyball_engine.batching.outcomes import MET, VIOLATED, End, LedgerCounts, Outcome, RequestLedger
from flyball_engine.contract import Metric, Setpoint
from flyball_engine.control.api_servers import STARTING_SECONDS, ApiServers, Follower
from flyball_lab.harness.engine import setpoint
from flyball_lab.harness.engines import objective

FIRST_TOKEN = objective(Metric.TIME_TO_FIRST_TOKEN, 1.0)


class Server:
    """One API server: its counts and its gate, and the setpoints it was told to follow."""

    def __init__(self) -> None:
        self.ledger = RequestLedger()
        self.gate = Gate(lambda: None)
        self.followed: list[Setpoint] = []

    def follow(self, accepted: Setpoint) -> None:
        self.followed.append(accepted)
        self.ledger.set_objectives(accepted.objectives)

    def serves(self, number: int = 1) -> None:
        for _ in range(number):
            request = self.ledger.opened(0.0)
            sequence = self.ledger.started(request)
            self.ledger.received(sequence, tokens=1, at=0.5, now=0.5)
            self.ledger.done(sequence, prompt=10, cached=4, now=0.5)
            self.ledger.ended(request, End.ANSWERED, 0.5)

    def refuses(self) -> None:
        self.gate.queue_full()


class Engine:
    """The API servers of one engine: the first, and those that follow it."""

    def __init__(self, folder: Path, number: int) -> None:
        self.now = 0.0
        self.first = Server()
        self.others = [Server() for _ in range(1, number)]
        self.followers = [
            Follower(folder, index, follow=each.follow, counts=self.counts(each), gate=each.gate)
            for index, each in enumerate(self.others, start=1)
        ]
        self.servers = ApiServers(
            folder, number, counts=self.counts(self.first), gate=self.first.gate, clock=lambda: self.now
        )

    def counts(self, server: Server) -> Callable[[], LedgerCounts]:
        return lambda: server.ledger.collect(self.now)

    def look(self) -> None:
        for follower in self.followers:
            follower.look()

    def accepts(self, generation: int) -> Setpoint:
        accepted = setpoint(generation, objectives=(FIRST_TOKEN,))
        self.first.follow(accepted)
        self.servers.publish(accepted)
        return accepted


def test_counts_are_those_of_all(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 3)
    engine.accepts(1)
    engine.look()
    engine.first.serves(1)
    engine.others[0].serves(2)
    engine.others[1].serves(4)
    engine.others[1].refuses()
    engine.look()
    counts = engine.servers.collect()
    assert counts.requests[Outcome.FINISHED] == 7
    assert counts.objectives[FIRST_TOKEN.id, MET] == 7
    assert counts.all_objectives[FIRST_TOKEN.id, MET] == 7
    assert (counts.generated_tokens, counts.prompt_tokens, counts.cached_prompt_tokens) == (7, 70, 28)
    assert engine.servers.counts[AdmissionReason.QUEUE_FULL] == 1


def test_of_open_requests_is_told_what_is_certain_in_any_of_them(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 2)
    engine.accepts(1)
    engine.look()
    for server, number in ((engine.first, 1), (engine.others[0], 2)):
        for _ in range(number):
            server.ledger.started(server.ledger.opened(0.0))
    engine.now = 1.5
    engine.look()
    assert engine.servers.collect().open_objectives == {(FIRST_TOKEN.id, MET): 0, (FIRST_TOKEN.id, VIOLATED): 3}
    engine.others[0].ledger.set_objectives(())
    engine.look()
    assert engine.servers.collect().open_objectives == {(FIRST_TOKEN.id, MET): 0, (FIRST_TOKEN.id, VIOLATED): 1}


def test_each_setpoint_is_followed_once_and_a_renewal_anew(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 2)
    first = engine.accepts(1)
    engine.look()
    engine.look()
    assert engine.others[0].followed == [first]
    engine.accepts(1)
    engine.look()
    assert engine.others[0].followed == [first, first]


def test_what_one_that_ended_counted_stays_counted(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 2)
    engine.others[0].serves(3)
    engine.look()
    engine.followers.clear()
    assert engine.servers.collect().requests[Outcome.FINISHED] == 3


def test_one_that_does_not_follow_is_named(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 3)
    assert engine.servers.missing() is None, "they may be starting"
    engine.now = STARTING_SECONDS
    assert engine.servers.missing() == "API servers 1, 2 do not follow the setpoints that this engine accepted"
    engine.look()
    assert engine.servers.missing() is None
    engine.accepts(1)
    assert engine.servers.missing() is None, "it is on its way"
    engine.followers[0].look()
    engine.accepts(2)
    engine.followers[0].look()
    assert engine.servers.missing() == "API server 2 does not follow the setpoints that this engine accepted"


def test_one_alone_needs_no_files(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 1)
    engine.accepts(1)
    engine.first.serves(2)
    assert engine.servers.missing() is None
    assert engine.servers.collect() == engine.first.ledger.collect()
    assert list(tmp_path.iterdir()) == []


async def test_what_was_counted_to_the_end_is_written_down(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 2)
    running = asyncio.create_task(engine.followers[0].run())
    await asyncio.sleep(0)
    engine.others[0].serves(2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine.servers.collect().requests[Outcome.FINISHED] == 2


def test_a_setpoint_that_cannot_be_read_is_left_until_it_can_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path, 2)
    (tmp_path / "setpoint.json").write_text('{"number":1,')
    engine.others[0].serves(2)
    engine.look()
    engine.look()
    assert engine.others[0].followed == []
    assert [record.message.partition(": ValidationError")[0] for record in caplog.records] == [
        "Flyball ApiServerBehind: this API server does not follow the first one"
    ]
    assert engine.servers.collect().requests[Outcome.FINISHED] == 2, "what it counts is not lost"
    accepted = engine.accepts(1)
    engine.look()
    assert engine.others[0].followed == [accepted]
