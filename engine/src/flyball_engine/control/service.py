"""The control port's work, free of HTTP: accept a setpoint, have the cores apply it, read back.

`TunableEngine` is what it needs of an engine, so that every kind can stand behind the same port (vLLM: `vllm.client`).

Writes go one at a time: each is compared with the one before it, and a core answers between two of its steps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flyball_engine import __version__
from flyball_engine.adapters import AdapterReport
from flyball_engine.contract import AnyKnob, Generation, QueueLimits, ReadBack, Refusal, Setpoint
from flyball_engine.control.acceptance import SetpointRefused, check_not_overtaken, judge
from flyball_engine.control.fields import fields_at
from flyball_engine.control.state_file import CoreReport
from flyball_engine.control.tokens import TokenVerifier, check_digest
from flyball_engine.log_events import EngineLogEvent, EventLog


class EngineCallError(Exception):
    """The engine could not be asked; whether a call landed is unknown."""


class UnansweredError(EngineCallError):
    """A core did not answer in time, or refused while shutting down."""


@dataclass(frozen=True, kw_only=True)
class Reports:
    """What the cores say of themselves at one moment, and what follows of what can be done with them.

    `unknown`: those that could not be observed. `governed`: whether setpoints take effect at all. `unsupported`: the
    knobs that cannot be moved, and why. `ungated`: why requests cannot be refused by a deadline; None if they can.
    """

    cores: tuple[CoreReport, ...]
    unknown: tuple[int, ...] = ()
    governed: bool = True
    unsupported: Mapping[AnyKnob, str] = field(default_factory=dict)
    ungated: str | None = None


class TunableEngine(Protocol):
    """An engine of one or more cores whose limits can be moved live."""

    @property
    def version(self) -> str:
        """Name and version of the engine software, for people."""

    @property
    def queue(self) -> QueueLimits | None:
        """The limits of the queue in force, besides the cores'; None if the engine has none."""

    def healthy(self) -> bool:
        """Whether the engine still serves."""

    def reports(self) -> Reports:
        """The cores' last published states, in one look; never waits for a core."""

    async def apply(self, setpoint: Setpoint) -> None:
        """Have every core apply the setpoint, between two steps; returns when all did. Raises UnansweredError."""

    async def touch(self) -> None:
        """Have every core look at its clock: an idle one notices an expiry only so. Raises UnansweredError."""


#: How long a write waits for every core. A core answers when its step ends; on a CPU that may take seconds.
APPLY_TIMEOUT_SECONDS: Final = 30.0
#: Outcomes of the retunes counter besides the refusals.
APPLIED: Final = "applied"
UNCHANGED: Final = "unchanged"
#: An idle core is asked this long after a setpoint expired, so that it has surely expired by the core's clock too.
_EXPIRY_SLACK_SECONDS: Final = 1.0

_log = EventLog(__name__)


class ControlService:
    """Holds the newest accepted setpoint of one engine and the counts of writes by outcome.

    `follow` is called with each setpoint accepted, before the cores are: for what this process does of it.
    `adapters` tells what became of the LoRA adapters, None where the engine follows no list of them, and
    `adapters_listed` whether that list is there.
    """

    def __init__(
        self,
        *,
        engine: TunableEngine,
        verifier: TokenVerifier,
        service: str,
        follow: Callable[[Setpoint], None],
        adapters: Callable[[], tuple[AdapterReport, ...] | None] = lambda: None,
        adapters_listed: Callable[[], bool] = lambda: True,
        timeout: float = APPLY_TIMEOUT_SECONDS,
    ) -> None:
        self.engine = engine
        self.outcomes: Counter[str] = Counter()
        self._verifier = verifier
        self._service = service
        self._follow = follow
        self._adapters = adapters
        self._adapters_listed = adapters_listed
        self._timeout = timeout
        self._accepted: Setpoint | None = None
        self._one_at_a_time = asyncio.Lock()
        self._expiry: asyncio.Task[None] | None = None

    def authorise(self, authorization: str | None) -> Callable[[bytes], Setpoint]:
        """Check a token before its body is read; the result checks and parses the body. Both raise SetpointRefused."""
        claims = self._verifier.verify(authorization)

        def parse(body: bytes) -> Setpoint:
            check_digest(claims, body)
            return _parse(body)

        return parse

    async def put(self, offered: Setpoint) -> ReadBack:
        """Accept and apply a setpoint, or raise SetpointRefused; answers when every core applies it."""
        async with self._one_at_a_time:
            reports = self.engine.reports()
            verdict = judge(
                held=self._accepted,
                offered=offered,
                service=self._service,
                unsupported=reports.unsupported,
                ungated=reports.ungated,
            )
            # Held before the cores are asked: a call that times out may still land, and must not be overtaken.
            self._accepted = offered
            self._follow(offered)
            await self._apply(offered)
            self._watch_expiry(offered)
            self.outcomes[UNCHANGED if verdict.renewal else APPLIED] += 1
            return self.read()

    def read(self) -> ReadBack:
        """The accepted setpoint and what each core applies; asks no core."""
        reports = self.engine.reports()
        return ReadBack(
            service=self._service,
            plugin_version=__version__,
            engine_version=self.engine.version,
            governed=reports.governed,
            accepted=self._accepted,
            cores=tuple(report.state for report in reports.cores),
            unknown=reports.unknown,
            unsupported=dict(reports.unsupported),
            ungated=reports.ungated,
            queue=self.engine.queue,
            adapters=self._adapters(),
            adapters_listed=self._adapters_listed(),
        )

    def applied(self) -> Generation | None:
        """The setpoint the first core applies, for the body of a refusal."""
        cores = self.engine.reports().cores
        return cores[0].state.applied if cores else None

    def count(self, refusal: Refusal) -> None:
        """Count a refused write."""
        self.outcomes[refusal.value] += 1

    def close(self) -> None:
        """Stop waiting for an expiry."""
        if self._expiry is not None:
            self._expiry.cancel()

    async def _apply(self, offered: Setpoint) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self.engine.apply(offered)
        except TimeoutError as error:
            raise SetpointRefused(Refusal.UNKNOWN, f"the cores did not answer within {self._timeout:g} s") from error
        except EngineCallError as error:
            raise SetpointRefused(Refusal.UNKNOWN, str(error)) from error
        _check_echoes(offered, self.engine.reports())

    def _watch_expiry(self, setpoint: Setpoint) -> None:
        self.close()
        self._expiry = asyncio.create_task(self._touch_after(setpoint.expires_seconds + _EXPIRY_SLACK_SECONDS))

    async def _touch_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        try:
            async with asyncio.timeout(self._timeout):
                await self.engine.touch()
        except (TimeoutError, EngineCallError):
            # A busy core sees the expiry by itself at its next step.
            _log.warning(EngineLogEvent.EXPIRY_NOT_ANSWERED, "no core answered when the setpoint expired")


def _parse(body: bytes) -> Setpoint:
    try:
        return Setpoint.model_validate_json(body)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, item['loc'])) or 'body'}: {_message(item)}" for item in error.errors())
        raise SetpointRefused(Refusal.INVALID, "; ".join(problems)[:2000]) from error


def _message(item: ErrorDetails) -> str:
    """What is wrong; of a field that is not known, which are."""
    if item["type"] != "extra_forbidden":
        return item["msg"]
    return f"{item['msg']}, accepted: {', '.join(fields_at(Setpoint, item['loc'][:-1]))}"


def _check_echoes(offered: Setpoint, reports: Reports) -> None:
    for report in reports.cores:
        check_not_overtaken(offered, report.state.applied)
    late = [report.state.engine for report in reports.cores if not _applies(report.state.applied, offered)]
    if late or reports.unknown:
        raise SetpointRefused(Refusal.UNKNOWN, f"not confirmed by cores {sorted([*late, *reports.unknown])}")


def _applies(applied: Generation | None, offered: Setpoint) -> bool:
    return applied is not None and applied.order() == offered.order()
