"""vLLM as an engine behind the control port: utility calls to write, state files to read."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flyball_engine.batching.gate import CoreLoad
from flyball_engine.contract import AnyKnob, BatchingKnob, Generation, Knob, QueueKnob, QueueLimits, Setpoint
from flyball_engine.control.engine import Reports, UnansweredError
from flyball_engine.control.state_file import StateFileError, StateReader, find_state_files
from flyball_engine.vllm.backstop import Backstop
from flyball_engine.vllm.needs import Lack, Way, way
from flyball_engine.vllm.prefixes import Prefixes, open_prefixes

_log = logging.getLogger(__name__)
#: How often is looked whether the engine died under a call, and whether the cores show what they were told.
_DEATH_CHECK_SECONDS = 0.5
_LOOK_SECONDS = 0.002
_UNGOVERNED = "the engine core runs without Flyball's scheduler, see its log"


class VllmEngine:
    """The engine cores that this API-server process talks to.

    `prefixes`: their prefix caches, in the order of `loads`; None if these cannot be looked into.
    """

    def __init__(
        self,
        engine_client: Any,
        *,
        version: str,
        folder: Path,
        failure: str | None,
        backstop: Backstop,
        ungated: str | None = None,
    ) -> None:
        """Open the cores' state files: they exist by now if the cores are governed; and what tells of their caches.

        `failure`: why the cores cannot be governed, `ungated`: why requests cannot be refused; None if they can.
        """
        self._client = engine_client
        self._way = way(functools.partial(hasattr, engine_client.engine_core))
        self._version = f"vllm {version}"
        self._readers = _open_all(folder)
        self.prefixes: Prefixes | None = open_prefixes(folder, tuple(self._readers), engine_client)
        self._failure = failure or (self._way.value if isinstance(self._way, Lack) else _UNGOVERNED)
        self._backstop = backstop
        self._ungated = ungated

    @property
    def version(self) -> str:
        """Name and version of the engine software."""
        return self._version

    @property
    def governed(self) -> bool:
        """Whether every core runs the governed scheduler, and still lets itself be governed."""
        reports = self.reports().cores
        return isinstance(self._way, Way) and bool(self._readers) and all(report.governed for report in reports)

    @property
    def unsupported(self) -> Mapping[AnyKnob, str]:
        """The knobs that some core cannot move."""
        if not self.governed:
            return dict.fromkeys((*Knob, *BatchingKnob, *QueueKnob), self._failure)
        cores = {knob: reason for reader in self._readers.values() for knob, reason in reader.unsupported.items()}
        return cores | self._backstop.unsupported

    @property
    def ungated(self) -> str | None:
        """Why requests cannot be refused by a deadline."""
        return self._ungated if self.governed else self._failure

    @property
    def queue(self) -> QueueLimits | None:
        """The limits of this API server's queue that are in force."""
        return self._backstop.limits()

    def loads(self) -> list[CoreLoad] | None:
        """What the gate needs of every core; None if one cannot be seen."""
        seen = [reader.load() for reader in self._readers.values()]
        loads = [load for load in seen if load is not None]
        return loads if loads and len(loads) == len(seen) else None

    def healthy(self) -> bool:
        """Whether vLLM still serves."""
        return not self._client.errored

    def reports(self) -> Reports:
        """What the cores published last."""
        seen = {engine: reader.read() for engine, reader in self._readers.items()}
        return Reports(
            cores=tuple(report for report in seen.values() if report is not None),
            unknown=tuple(engine for engine, report in seen.items() if report is None),
        )

    async def apply(self, setpoint: Setpoint) -> None:
        """Have every core apply the setpoint. Raises UnansweredError.

        Cores show in their files what they apply, and are believed: their answers to the call come behind the tokens
        of every stream. A setpoint that some core has already is a renewal, which shows in no file.
        """
        if not self.governed:
            return
        readers = self._readers.values()
        wanted = Generation(epoch=setpoint.epoch, generation=setpoint.generation)
        renewal = any(reader.applied() == wanted for reader in readers)
        shown = None if renewal else lambda: all(reader.applied() == wanted for reader in readers)
        await self._call_all("flyball_apply", setpoint.model_dump_json(), shown=shown)

    async def touch(self) -> None:
        """Have every core look at its clock. Raises UnansweredError."""
        if self.governed:
            await self._call_all("flyball_read")

    async def _call_all(self, method: str, *args: str, shown: Callable[[], bool] | None = None) -> None:
        """Call every core; returns when all have answered, or when it is `shown` that all have done it."""
        call = asyncio.ensure_future(self._utility_call(method, *args))
        try:
            while not (await asyncio.wait({call}, timeout=_DEATH_CHECK_SECONDS if shown is None else _LOOK_SECONDS))[0]:
                if shown is not None and shown():
                    return
                # vLLM never answers a call to a core that died meanwhile.
                if self._client.errored:
                    raise UnansweredError("the engine is dead or shutting down")
            await call
        except UnansweredError:
            raise
        except Exception as error:
            raise UnansweredError(f"{method}: {error}") from error
        finally:
            call.cancel()  # vLLM drops an answer that nobody waits for

    async def _utility_call(self, method: str, *args: str) -> None:
        core = self._client.engine_core
        if self._way is Way.TOGETHER:
            await core.call_utility_all_async(method, *args)
        else:
            # Before 0.32 only calls to single engines are public.
            one_each = (core._call_utility_async(method, *args, engine=engine) for engine in core.core_engines)  # noqa: SLF001
            await asyncio.gather(*one_each)


def _open_all(folder: Path) -> dict[int, StateReader]:
    readers = {}
    for path in find_state_files(folder):
        try:
            reader = StateReader(path)
        except StateFileError as error:
            _log.warning("Flyball: %s", error)
            continue
        readers[reader.engine] = reader
    return readers
