"""When standing still is a hang, and when it is not."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_engine.batching.watchdog import Stall, Watchdog


class Core:
    """Steps of 1 s under a watchdog that allows 20 s and 5 steps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watchdog = Watchdog(seconds=20, steps=5)

    def step(
        self, *, running: Sequence[str] = (), served: Sequence[str] = (), waiting: int = 0, seconds: float = 1
    ) -> Stall | None:
        stall = self.watchdog.stepped(
            running=len(running), waiting=waiting, scheduled=len(served), names=lambda: running, now=self.now
        )
        self.now += seconds
        self.watchdog.served(served, now=self.now)
        return stall

    def steps(self, count: int, **step: object) -> list[Stall]:
        stalls = [self.step(**step) for _ in range(count)]  # type: ignore[arg-type]
        return [stall for stall in stalls if stall]


def test_a_request_that_gets_no_token_while_others_do_is_noticed() -> None:
    stalls = Core().steps(30, running=["a", "b"], served=["a"])
    assert stalls[0].request == "b"
    assert stalls[0].seconds > 20


def test_requests_that_get_tokens_now_and_then_are_well() -> None:
    core = Core()
    for _ in range(10):
        assert not core.steps(5, running=["a", "b"], served=["a"])
        assert not core.steps(1, running=["a", "b"], served=["b"])


def test_a_queue_that_nobody_serves_is_noticed() -> None:
    stalls = Core().steps(30, waiting=3)
    assert stalls[0].request is None


def test_a_queue_behind_running_requests_is_well() -> None:
    assert not Core().steps(100, running=["a"], served=["a"], waiting=50)


def test_one_long_step_is_no_hang() -> None:
    core = Core()
    core.step(running=["a", "b"], served=["a"], seconds=300)
    assert not core.steps(4, running=["a", "b"], served=["a", "b"])


def test_an_engine_that_was_paused_is_no_hang() -> None:
    core = Core()
    core.steps(3, running=["a"], served=["a"])
    core.now += 3600
    assert not core.steps(5, running=["a"], served=["a"])


def test_after_a_reset_all_have_their_patience_anew() -> None:
    core = Core()
    assert core.steps(22, running=["a"], served=[])
    core.watchdog.reset()
    assert not core.steps(20, running=["a"], served=[])


def test_where_all_that_run_are_served_nobody_is_asked_who_runs() -> None:
    running, asked = {f"r{number}" for number in range(512)}, 0

    def names() -> set[str]:
        nonlocal asked
        asked += 1
        return running

    watchdog = Watchdog(seconds=20, steps=5)
    for second in range(100):
        assert watchdog.stepped(running=512, waiting=0, scheduled=512, names=names, now=float(second)) is None
        watchdog.served(running, now=second + 0.5, all_running=True)
    assert asked == 1, "before the first step was served"


def test_short_steps_are_not_kept_beyond_a_bound() -> None:
    core = Core()
    for _ in range(1000):
        core.step(running=["a", "b"], served=["a"], seconds=0.001)
        assert len(core.watchdog._kept) <= 2 + 64


def test_finished_requests_are_forgotten() -> None:
    core = Core()
    for number in range(1000):
        core.step(running=[f"r{number}"], served=[f"r{number}"])
    assert len(core.watchdog._kept) <= 2
