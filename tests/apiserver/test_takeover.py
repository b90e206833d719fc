"""Two operators on the real API server: one acts, the other takes over, and their writes never interleave.

Both write under user agents of their own, so the API server's audit log says who wrote when. Writes that it refused (a
write held up on its way, and stale by then) do not count: refusing them is how they are kept apart.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.app.main import ExitCode
from support.audit import Audit
from support.cluster import apply, get, kubectl, namespace, patch, throughout
from support.operators import OperatorProcess, WallClock, idle_service, proxy
from support.tenants import granted

RESOURCE = "inferenceservices.serving.flyball.dev"


@pytest.fixture
def place(crd: Path) -> Iterator[str]:
    """A namespace of the test's own."""
    with namespace("flyball-takeover") as name:
        yield name


def holder(place: str) -> str:
    """Name of the operator that holds the lease; empty while none does."""
    lease = get("lease", "flyball-operator", namespace=place) or {}
    identity: str = (lease.get("spec") or {}).get("holderIdentity") or ""
    return identity.rpartition("_")[0]


@contextmanager
def busy(place: str) -> Iterator[None]:
    """Somebody changes the service all the time, so that whoever leads has something to write."""
    apply(idle_service(), namespace=place)
    done = threading.Event()

    def edit() -> None:
        replicas = 0
        while not done.wait(0.2):
            replicas = 3 - replicas if replicas else 1
            patch(RESOURCE, "chat", {"spec": {"replicas": replicas}}, namespace=place)

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        yield
    finally:
        done.set()
        editor.join()


@contextmanager
def pair(place: str, folder: Path, **first: Any) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """Two operators, the first of them leading."""
    with granted(place, (place,)) as release:
        leader = release.process(folder, name="first", **first)
        follower: OperatorProcess | None = None
        try:
            leader.expect_ready()
            eventually(lambda: holder(place) == leader.name, expecting="the first to lead")
            follower = release.process(folder, name="second")
            follower.expect_ready()
            yield leader, follower
        finally:
            leader.stop()
            if follower is not None:
                follower.stop()


def writers(audit: Audit, place: str) -> list[str]:
    """Who wrote, each as often as its writes were not another's."""
    names = (write.writer.partition("(")[2].rstrip(")") for write in audit.writes(place) if write.code < 300)
    return [name for name, _ in groupby(names)]


def expect_writing(audit: Audit, place: str, who: OperatorProcess) -> None:
    eventually(lambda: who.name in writers(audit, place), expecting=f"writes of {who.name}", within=240)


def leads(who: OperatorProcess) -> bool:
    """Whether its metrics say that it leads."""
    return "\nflyball_operator_leader 1.0\n" in who.metrics()


def expect_standby(who: OperatorProcess) -> None:
    """Wait until its metrics say that it does not lead. It runs on, and is ready."""
    eventually(lambda: "\nflyball_operator_leader 0.0\n" in who.metrics(), expecting=f"{who.name} to be a standby")
    assert who.process.poll() is None
    assert who.readyz()[0] == 200


def expect_to_lead_again(place: str, who: OperatorProcess, other: OperatorProcess) -> None:
    """The other ends, and the same process leads again."""
    other.send(signal.SIGTERM)
    assert other.expect_exit() == ExitCode.OK
    eventually(lambda: holder(place) == who.name and leads(who), expecting=f"{who.name} to lead again")


def took_over(audit: Audit, place: str, who: OperatorProcess, since: float) -> float:
    """Wait for the first write of another; seconds since then."""
    expect_writing(audit, place, who)
    return time.monotonic() - since


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
def test_the_other_takes_over(
    place: str, tmp_path: Path, how: signal.Signals, note_figure: Callable[[str], None]
) -> None:
    audit = Audit()
    with pair(place, tmp_path) as (leader, follower), busy(place):
        expect_writing(audit, place, leader)
        began = time.monotonic()
        leader.send(how)
        eventually(lambda: holder(place) == follower.name, expecting="the second to lead", within=240)
        taken = time.monotonic() - began
        first_write = took_over(audit, place, follower, began)
        exit_code = leader.expect_exit()
    assert exit_code == (ExitCode.OK if how is signal.SIGTERM else -signal.SIGKILL)
    assert writers(audit, place) == [leader.name, follower.name]
    note_figure(f"another leads after {taken:.1f} s and writes after {first_write:.1f} s")


def test_a_leader_whose_way_to_the_server_hangs_is_a_standby_then_and_writes_nothing_more(
    place: str, tmp_path: Path, note_figure: Callable[[str], None]
) -> None:
    audit = Audit()
    with (
        proxy(tmp_path) as (kubeconfig, way),
        pair(place, tmp_path, kubeconfig=kubeconfig) as (leader, follower),
        busy(place),
    ):
        expect_writing(audit, place, leader)
        began = time.monotonic()
        way.send_signal(signal.SIGSTOP)
        first_write = took_over(audit, place, follower, began)
        # What was held up on its way arrives now.
        way.send_signal(signal.SIGCONT)
        expect_standby(leader)
        before = len(audit.writes(place))
        eventually(lambda: len(audit.writes(place)) > before + 4, expecting="more writes of the second")
        assert writers(audit, place) == [leader.name, follower.name]
        expect_to_lead_again(place, leader, follower)
    note_figure(f"another writes {first_write:.1f} s after the way began to hang")


def test_a_leader_that_is_asked_to_end_does_though_its_way_to_the_server_hangs(place: str, tmp_path: Path) -> None:
    with proxy(tmp_path) as (kubeconfig, way), granted(place, (place,)) as release:
        leader = release.process(tmp_path, kubeconfig=kubeconfig)
        try:
            leader.expect_ready()
            eventually(lambda: holder(place) == leader.name, expecting="it to lead")
            way.send_signal(signal.SIGSTOP)
            leader.send(signal.SIGTERM)
            assert leader.expect_exit(within=25) == ExitCode.OK
        finally:
            leader.stop()


def test_a_leader_that_was_stopped_and_goes_on_writes_nothing_more(place: str, tmp_path: Path) -> None:
    audit = Audit()
    with pair(place, tmp_path) as (leader, follower), busy(place):
        expect_writing(audit, place, leader)
        leader.send(signal.SIGSTOP)
        expect_writing(audit, place, follower)
        leader.send(signal.SIGCONT)
        expect_standby(leader)
        before = len(audit.writes(place))
        eventually(lambda: len(audit.writes(place)) > before + 4, expecting="more writes of the second")
        assert writers(audit, place) == [leader.name, follower.name]
        expect_to_lead_again(place, leader, follower)


#: Seconds that a clock is stepped: four times what a lease lasts.
STEP = 60


@pytest.mark.long
def test_a_leader_whose_wall_clock_is_stepped_leads_on_alone(place: str, tmp_path: Path) -> None:
    audit = Audit()
    clock = WallClock(tmp_path)
    # Before that, the server's certificate is not valid yet by a clock that is stepped back.
    eventually(lambda: cluster_age() > 2 * STEP, expecting="a cluster old enough", within=3 * STEP)
    with pair(place, tmp_path, clock=clock) as (leader, _), busy(place):
        expect_writing(audit, place, leader)
        for seconds in (STEP, -STEP):
            clock.step(seconds)
            expect_to_lead_on(audit, place, leader, ahead_by=seconds)
        # Before they end: the first gives the lease back then, and what it left undone the second does.
        assert writers(audit, place) == [leader.name]


def expect_to_lead_on(audit: Audit, place: str, leader: OperatorProcess, *, ahead_by: int) -> None:
    """Its lease is renewed by the stepped clock, nobody takes it, and it goes on writing."""
    eventually(
        lambda: abs(ahead(renewed(place)) - ahead_by) < STEP / 2, expecting="the lease renewed by the stepped clock"
    )
    before = len(audit.writes(place))
    # Longer than the lease lasts: who judged it by its timestamps would have taken over.
    throughout(lambda: holder(place) == leader.name, expecting="the first to lead on", seconds=20)
    eventually(lambda: len(audit.writes(place)) > before, expecting="more writes")


def renewed(place: str) -> str:
    lease = get("lease", "flyball-operator", namespace=place) or {}
    return str(lease["spec"]["renewTime"])


def cluster_age() -> float:
    return -ahead(json.loads(kubectl("get", "namespace", "kube-system", "-o", "json"))["metadata"]["creationTimestamp"])


def ahead(timestamp: str) -> float:
    """Seconds from now to a timestamp."""
    return (datetime.fromisoformat(timestamp) - datetime.now(UTC)).total_seconds()


@pytest.mark.parametrize(
    "part",
    [
        pytest.param("worker", marks=pytest.mark.long),
        "ticks",
        pytest.param("multidimensional multitasker", marks=pytest.mark.long),
    ],
)
def test_a_part_that_ends_ends_its_process_and_another_takes_over(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    audit = Audit()
    trigger = tmp_path / "crash"
    monkeypatch.setenv("CRASH_FILE", str(trigger))
    monkeypatch.setenv("CRASH", part)
    with pair(place, tmp_path, command=["-m", "support.crashing_operator"]) as (leader, follower), busy(place):
        expect_writing(audit, place, leader)
        trigger.touch()
        assert leader.expect_exit() == ExitCode.FAILED
        expect_writing(audit, place, follower)
    assert any("something died" in line for line in leader.trouble())
    assert writers(audit, place) == [leader.name, follower.name]


def test_a_deleted_lease_makes_no_second_leader_and_epochs_go_on_rising(place: str, tmp_path: Path) -> None:
    audit = Audit()
    with pair(place, tmp_path) as (leader, follower), busy(place):
        expect_writing(audit, place, leader)
        epoch = epoch_of(place)
        kubectl("delete", "lease", "flyball-operator", "-n", place)
        expect_writing(audit, place, follower)
        eventually(lambda: epoch_of(place) > epoch, expecting="a higher epoch in the status")
        expect_standby(leader)
        assert writers(audit, place) == [leader.name, follower.name]


def epoch_of(place: str) -> int:
    found = get(RESOURCE, "chat", namespace=place) or {}
    return int((found.get("status") or {}).get("epoch") or 0)
