"""What the control server needs of an engine, so that every kind of engine can stand behind the same port.

Imports neither vLLM nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from flyball_engine.contract import AnyKnob, QueueLimits, Setpoint
from flyball_engine.control.state_file import CoreReport


class EngineCallError(Exception):
    """The engine could not be asked; whether a call landed is unknown."""


class UnansweredError(EngineCallError):
    """A core did not answer in time, or refused while shutting down."""


@dataclass(frozen=True, kw_only=True)
class Reports:
    """What the cores say of themselves; `unknown` are those that could not be observed."""

    cores: tuple[CoreReport, ...]
    unknown: tuple[int, ...] = ()


class TunableEngine(Protocol):
    """An engine of one or more cores whose limits can be moved live."""

    @property
    def version(self) -> str:
        """Name and version of the engine software, for people."""

    @property
    def governed(self) -> bool:
        """Whether setpoints take effect at all."""

    @property
    def unsupported(self) -> Mapping[AnyKnob, str]:
        """The knobs that cannot be moved, and why."""

    @property
    def ungated(self) -> str | None:
        """Why requests cannot be refused by a deadline; None if they can."""

    @property
    def queue(self) -> QueueLimits | None:
        """The limits of the queue in force, besides the cores'; None if the engine has none."""

    def healthy(self) -> bool:
        """Whether the engine still serves."""

    def reports(self) -> Reports:
        """The cores' last published states; never waits for a core."""

    async def apply(self, setpoint: Setpoint) -> None:
        """Have every core apply the setpoint, between two steps; returns when all did. Raises UnansweredError."""

    async def touch(self) -> None:
        """Have every core look at its clock: an idle one notices an expiry only so. Raises UnansweredError."""
