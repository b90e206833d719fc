"""vLLM's client as an engine: utility calls to all cores, states from their files, reasons where there are none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_engine.batching.gate import AdmissionReason, Arrival, Gate
from flyball_engine.contract import BatchingKnob, Knob, OrderKnob, QueueKnob, Setpoint, ShedKnob
from flyball_engine.control.service import ControlService, UnansweredError
from flyball_engine.control.state_file import CoreReport, StateReader, find_state_files
from flyball_engine.control.tokens import verifier_of
from flyball_engine.vllm.client import VllmEngine
from flyball_engine.vllm.plugin import flyball_apply, flyball_read
from flyball_engine.vllm.queue_limiter import QueueLimiter
from flyball_lab.harness.engine import SERVICE, setpoint
from support.gates import a_policy
from support.plain_scheduler import GovernedCore


class Cores:
    """vLLM's client side of the cores: 0.32 calls all by name, older ones one by one.

    Where they are `slow` an answer comes when somebody lets it: what was asked for is done by then.
    """

    def __init__(self, *cores: GovernedCore, older: bool = False, slow: bool = False) -> None:
        self.let_answer = asyncio.Event()
        if not slow:
            self.let_answer.set()
        self.core_engines = [SimpleNamespace(scheduler=SimpleNamespace(flyball=core.hooks)) for core in cores]
        if not older:
            self.call_utility_all_async = self._call_all

    async def _call_all(self, method: str, *args: Any) -> list[Any]:
        return await asyncio.gather(
            *(self._call_utility_async(method, *args, engine=core) for core in self.core_engines)
        )

    async def _call_utility_async(self, method: str, *args: Any, engine: Any) -> Any:
        answer = flyball_apply(engine, *args) if method == "flyball_apply" else flyball_read(engine)
        await self.let_answer.wait()
        return answer


def an_engine(folder: Path, cores: Cores, *, failure: str | None = None, unasked: str | None = None) -> VllmEngine:
    client = SimpleNamespace(engine_core=cores, errored=False)
    queue_limiter = QueueLimiter(client, refused=lambda: None, clock=lambda: 0.0)
    return VllmEngine(
        client, version="0.32.0", folder=folder, failure=failure, queue_limiter=queue_limiter, unasked=unasked
    )


@pytest.mark.parametrize("older", [False, True])
async def test_a_setpoint_reaches_every_core(tmp_path: Path, older: bool) -> None:
    first, second = GovernedCore(tmp_path), GovernedCore(tmp_path, engine=1)
    engine = an_engine(tmp_path, Cores(first, second, older=older))
    await engine.apply(setpoint(1, limits={"max_num_active_seqs": 5}))
    reports = engine.reports().cores
    assert [report.state.engine for report in reports] == [0, 1]
    assert [report.state.effective.max_num_active_seqs for report in reports] == [5, 5]
    assert engine.reports().governed
    assert engine.version == "vllm 0.32.0"


async def test_cores_that_show_a_setpoint_are_not_waited_for(tmp_path: Path) -> None:
    first, second = GovernedCore(tmp_path), GovernedCore(tmp_path, engine=1)
    engine = an_engine(tmp_path, Cores(first, second, slow=True))
    async with asyncio.timeout(30):
        await engine.apply(setpoint(1, limits={"max_num_active_seqs": 5}))
    assert [report.state.effective.max_num_active_seqs for report in engine.reports().cores] == [5, 5]


async def test_a_renewal_shows_nowhere_and_waits_for_the_answers(tmp_path: Path) -> None:
    cores = Cores(GovernedCore(tmp_path), slow=True)
    engine = an_engine(tmp_path, cores)
    async with asyncio.timeout(30):
        await engine.apply(setpoint(1))
        renewal = asyncio.create_task(engine.apply(setpoint(1)))
        assert not (await asyncio.wait({renewal}, timeout=0.1))[0]
        cores.let_answer.set()
        await renewal


async def test_a_core_that_does_not_show_the_setpoint_is_waited_for(tmp_path: Path) -> None:
    first, second = GovernedCore(tmp_path), GovernedCore(tmp_path, engine=1)
    cores = Cores(first, second, slow=True)
    second.hooks.apply(setpoint(7))
    engine = an_engine(tmp_path, cores)
    async with asyncio.timeout(30):
        overtaken = asyncio.create_task(engine.apply(setpoint(6)))
        assert not (await asyncio.wait({overtaken}, timeout=0.1))[0]
        cores.let_answer.set()
        await overtaken


async def test_without_a_way_to_the_cores_every_knob_says_so(tmp_path: Path) -> None:
    cores = Cores(GovernedCore(tmp_path), older=True)
    del cores.core_engines
    engine = an_engine(tmp_path, cores)
    await engine.apply(setpoint(1, limits={"max_num_active_seqs": 5}))
    assert not engine.reports().governed
    reason = "this vLLM's AsyncMPClient has no call to engine cores by name"
    assert engine.reports().unsupported == dict.fromkeys(
        (*Knob, *BatchingKnob, *QueueKnob, *OrderKnob, *ShedKnob), reason
    )


async def test_touching_makes_idle_cores_notice_an_expiry(tmp_path: Path) -> None:
    core = GovernedCore(tmp_path)
    engine = an_engine(tmp_path, Cores(core))
    await engine.apply(setpoint(1, expires_seconds=60.0))
    core.now += 61
    await engine.touch()
    assert engine.reports().cores[0].state.applied is None


async def test_a_core_that_fails_is_unanswered(tmp_path: Path) -> None:
    engine = an_engine(tmp_path, Cores(GovernedCore(tmp_path)))
    engine._client.engine_core.core_engines[0].scheduler.flyball = None
    with pytest.raises(UnansweredError, match="without Flyball's scheduler"):
        await engine.apply(setpoint(1))


async def test_a_core_that_dies_meanwhile_is_unanswered(tmp_path: Path) -> None:
    engine = an_engine(tmp_path, Cores(GovernedCore(tmp_path)))

    async def never(method: str, *args: Any) -> list[Any]:
        engine._client.errored = True
        await asyncio.get_running_loop().create_future()
        return []

    engine._client.engine_core.call_utility_all_async = never
    with pytest.raises(UnansweredError, match="dead"):
        await engine.apply(setpoint(1))


@pytest.mark.parametrize("failure", [None, "ImportError: no such thing"])
async def test_without_governed_cores_every_knob_is_unsupported_with_the_reason(
    tmp_path: Path, failure: str | None
) -> None:
    engine = an_engine(tmp_path, Cores(), failure=failure)
    assert not engine.reports().governed
    assert set(engine.reports().unsupported) == {*Knob, *BatchingKnob, *QueueKnob, *OrderKnob, *ShedKnob}
    assert (failure or "without Flyball's scheduler") in engine.reports().unsupported[Knob.MAX_NUM_ACTIVE_SEQS]
    await engine.apply(Setpoint(service="s", epoch=1, generation=1))
    assert engine.reports().cores == ()


async def test_what_the_gate_is_not_asked_about_is_named_and_the_rest_is_refused(tmp_path: Path) -> None:
    engine = an_engine(tmp_path, Cores(GovernedCore(tmp_path)), unasked="requests to /v1/realtime are let in")
    assert engine.reports().unsupported[ShedKnob.ROUTES] == "requests to /v1/realtime are let in"
    assert engine.reports().ungated is None


async def test_a_core_that_gave_up_is_no_longer_governed(tmp_path: Path) -> None:
    core = GovernedCore(tmp_path)
    engine = an_engine(tmp_path, Cores(core))
    assert engine.reports().governed
    core.hooks.give_up()
    assert not engine.reports().governed
    assert set(engine.reports().unsupported) == {*Knob, *BatchingKnob, *QueueKnob, *OrderKnob, *ShedKnob}


async def test_an_answer_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = GovernedCore(tmp_path)
    engine = an_engine(tmp_path, Cores(core))
    service = ControlService(engine=engine, verifier=verifier_of({}), service=SERVICE, follow=lambda _: None)
    read, reads = StateReader.read, []

    def gives_up_meanwhile(reader: StateReader) -> CoreReport | None:
        reads.append(read(reader))
        core.hooks.give_up()
        return reads[-1]

    monkeypatch.setattr(StateReader, "read", gives_up_meanwhile)
    told = service.read()
    assert len(reads) == 1
    assert told.governed
    assert told.ungated is None
    assert not service.read().governed


async def test_the_gate_sees_nothing_of_a_core_that_gave_up(tmp_path: Path) -> None:
    first, second = GovernedCore(tmp_path), GovernedCore(tmp_path, engine=1)
    engine = an_engine(tmp_path, Cores(first, second))
    assert len(engine.loads() or ()) == 2
    # What it published last would stand for ever.
    second.hooks.give_up()
    assert engine.loads() is None


async def test_a_core_that_is_not_seen_is_named_and_nothing_is_refused_because_of_it(tmp_path: Path) -> None:
    first, second = GovernedCore(tmp_path), GovernedCore(tmp_path, engine=1)
    # Where ranks are on other nodes, or in actors of Ray's, their files are elsewhere.
    find_state_files(tmp_path)[1].unlink()
    engine = an_engine(tmp_path, Cores(first, second))
    gate = Gate(engine.loads)
    gate.set_policy(a_policy(2.0), now=0.0)
    first.hooks.apply(a_policy(2.0))
    first.add("runs", prompt=100, output=1000)
    first.step()
    assert gate.decide(Arrival(10**6), now=0.0).reason is AdmissionReason.UNOBSERVED
    assert engine.reports().ungated == "engine core 1 cannot be seen from here: its state file is missing"


async def test_a_core_that_comes_later_is_seen_from_then_on(tmp_path: Path) -> None:
    first = GovernedCore(tmp_path)
    cores = Cores(first)
    engine = an_engine(tmp_path, cores)
    second = GovernedCore(tmp_path, engine=1)
    cores.core_engines.append(SimpleNamespace(scheduler=SimpleNamespace(flyball=second.hooks)))
    assert engine.loads() is None
    assert [report.state.engine for report in engine.reports().cores] == [0, 1]
    assert engine.reports().ungated is None
    assert len(engine.loads() or ()) == 2


async def test_the_file_of_a_core_that_was_started_anew_is_opened_anew(tmp_path: Path) -> None:
    first = GovernedCore(tmp_path)
    engine = an_engine(tmp_path, Cores(first))
    first.hooks.apply(setpoint(7))
    GovernedCore(tmp_path).hooks.apply(setpoint(8))
    applied = engine.reports().cores[0].state.applied
    assert applied is not None
    assert applied.generation == 8


async def test_a_broken_state_file_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "core-0.state").write_bytes(b"broken")
    assert not an_engine(tmp_path, Cores()).reports().governed
    assert "cannot open" in caplog.text
