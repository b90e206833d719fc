"""Whatever is sent, in whatever order, while requests come and go."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flyball_engine.contract import Knob
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore

LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_num_active_seqs": st.integers(1, 100),
        "max_num_scheduled_tokens": st.integers(1, 1000),
        "long_prefill_token_threshold": st.integers(0, 5000),
    },
)


class AnySequence(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.core = GovernedCore(Path(self._folder.name))
        self.newest = (-1, -1)
        self.added = 0

    def teardown(self) -> None:
        self._folder.cleanup()

    @rule(epoch=st.integers(0, 3), generation=st.integers(0, 20), limits=LIMITS)
    def setpoint(self, epoch: int, generation: int, limits: dict[str, int]) -> None:
        self.core.hooks.apply(setpoint(generation, epoch=epoch, limits=limits, expires_seconds=60.0))
        self.newest = max(self.newest, (epoch, generation))

    @rule(prompt=st.integers(1, 600), output=st.integers(1, 20))
    def request(self, prompt: int, output: int) -> None:
        self.core.scheduler.add(f"r{self.added}", prompt=prompt, output=output)
        self.added += 1

    @rule(seconds=st.floats(0.001, 30))
    def step(self, seconds: float) -> None:
        before = [request.request_id for request in self.core.scheduler.running if not request.is_prefill_chunk]
        scheduled = self.core.step(seconds=seconds).num_scheduled_tokens
        assert all(name in scheduled for name in before), "a decode got no token"

    @rule()
    def time_passes(self) -> None:
        self.core.now += 61
        self.core.hooks.touch()

    @precondition(lambda self: self.core.scheduler.requests)
    @rule()
    def everything_ends(self) -> None:
        for _ in range(3000):
            if not self.core.scheduler.requests:
                return
            self.core.step()
        raise AssertionError("requests never ended")

    @invariant()
    def limits_are_between_floor_and_ceiling(self) -> None:
        effective = self.core.report().state.effective.given()
        assert 1 <= effective[Knob.MAX_NUM_ACTIVE_SEQS] <= 16
        assert len(self.core.scheduler.running) <= effective[Knob.MAX_NUM_SCHEDULED_TOKENS] <= 256
        assert 0 <= effective[Knob.LONG_PREFILL_TOKEN_THRESHOLD] <= 4096

    @invariant()
    def order_never_goes_back(self) -> None:
        applied = self.core.report().state.applied
        assert applied is None or applied.order() == self.newest


AnySequence.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAnySequence = AnySequence.TestCase
