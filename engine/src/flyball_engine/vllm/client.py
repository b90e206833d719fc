"""vLLM as an engine behind the control port: utility calls to write, state files to read."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flyball_engine.batching.gate import CoreLoad
from flyball_engine.contract import (
    AnyKnob,
    BatchingKnob,
    Generation,
    Knob,
    OrderKnob,
    QueueKnob,
    QueueLimits,
    Setpoint,
    ShedKnob,
)
from flyball_engine.control.service import Reports, UnansweredError
from flyball_engine.control.state_file import StateFileError, StateReader, find_state_files
from flyball_engine.log_events import EngineLogEvent, EventLog
from flyball_engine.vllm.means import Lack, Way, way
from flyball_engine.vllm.prefixes import Prefixes, open_prefixes
from flyball_engine.vllm.queue_limiter import QueueLimiter

_log = EventLog(__name__)
#: How often is looked whether the engine died under a call, and whether the cores show what they were told.
_DEATH_CHECK_SECONDS = 0.5
_LOOK_SECONDS = 0.002
_ALL_KNOBS = (*Knob, *BatchingKnob, *QueueKnob, *OrderKnob, *ShedKnob)
_UNGOVERNED = "the engine core runs without Flyball's scheduler, see its log"


class VllmEngine:
    """The engine cores that this API-server process talks to.

    `prefixes`: the prefix caches of the cores seen, in their order in `loads`; None if these cannot be looked into.
    """

    def __init__(
        self,
        engine_client: Any,
        *,
        version: str,
        folder: Path,
        failure: str | None,
        queue_limiter: QueueLimiter,
        ungated: Callable[[], str | None] = lambda: None,
        unmarked: str | None = None,
        unasked: str | None = None,
    ) -> None:
        """Open the cores' state files, and what tells of their caches. Cores that are up, governed and here have one.

        `failure`: why the cores cannot be governed. `ungated`: why requests cannot be refused now. `unmarked`: why not
        after they were let in, nor distinguished by class. None if they can. `unasked`: which requests the gate is not
        asked about.
        """
        self._client = engine_client
        self._way = way(functools.partial(hasattr, engine_client.engine_core))
        self._version = f"vllm {version}"
        self._folder = folder
        self._files: dict[Path, _Opened] = {}
        self._readers: dict[int, StateReader] = {}
        self.prefixes: Prefixes | None = None
        self._open_new()
        self._failure = failure or (self._way.value if isinstance(self._way, Lack) else _UNGOVERNED)
        self._queue_limiter = queue_limiter
        self._ungated = ungated
        partly: dict[AnyKnob, str | None] = {
            ShedKnob.WAITING: unmarked,
            OrderKnob.CLASSES: unmarked,
            ShedKnob.ROUTES: unasked,
        }
        self._ungated_partly: dict[AnyKnob, str] = {knob: why for knob, why in partly.items() if why is not None}

    @property
    def version(self) -> str:
        """Name and version of the engine software."""
        return self._version

    @property
    def queue(self) -> QueueLimits | None:
        """The limits of the queue in force, of all API servers."""
        return self._queue_limiter.limits()

    @property
    def cores(self) -> int:
        """The engine cores that this API server sends requests to."""
        return max(len(self._cores()), len(self._readers))

    def loads(self) -> list[CoreLoad] | None:
        """What the gate needs of every core; None if one cannot be seen: it may be the one that serves in time."""
        if len(self._readers) < len(self._cores()):
            return None
        seen = [reader.load() for reader in self._readers.values()]
        loads = [load for load in seen if load is not None]
        return loads if loads and len(loads) == len(seen) else None

    def healthy(self) -> bool:
        """Whether vLLM still serves."""
        return not self._client.errored

    def reports(self) -> Reports:
        """What the cores published last. Those that came, or were started anew, since the last look are seen, too.

        Governed is what runs the governed scheduler in every core, and still lets itself be governed.
        """
        self._open_new()
        seen = {engine: reader.read() for engine, reader in self._readers.items()}
        cores = tuple(report for report in seen.values() if report is not None)
        governed = isinstance(self._way, Way) and bool(seen) and all(report.governed for report in cores)
        return Reports(
            cores=cores,
            unknown=tuple(engine for engine, report in seen.items() if report is None),
            governed=governed,
            unsupported=self._lacks() if governed else dict.fromkeys(_ALL_KNOBS, self._failure),
            ungated=(self._ungated() or self._unseen()) if governed else self._failure,
        )

    async def apply(self, setpoint: Setpoint) -> None:
        """Have every core apply the setpoint. Raises UnansweredError.

        Cores show in their files what they apply, and are believed: their answers to the call come behind the tokens
        of every stream. A setpoint that some core has already is a renewal, which shows in no file.
        """
        if not self.reports().governed:
            return
        readers = self._readers.values()
        wanted = Generation(epoch=setpoint.epoch, generation=setpoint.generation)
        renewal = any(reader.applied() == wanted for reader in readers)
        shown = None if renewal else lambda: all(reader.applied() == wanted for reader in readers)
        await self._call_all("flyball_apply", setpoint.model_dump_json(), shown=shown)

    async def touch(self) -> None:
        """Have every core look at its clock. Raises UnansweredError."""
        if self.reports().governed:
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

    def _lacks(self) -> dict[AnyKnob, str]:
        """The knobs that some governed core cannot move."""
        cores = {knob: reason for reader in self._readers.values() for knob, reason in reader.unsupported.items()}
        return cores | self._queue_limiter.unsupported | self._ungated_partly

    def _cores(self) -> Sequence[Any]:
        """The names of all cores that this API server sends requests to, as far as vLLM tells them."""
        cores: Sequence[Any] = getattr(self._client.engine_core, "core_engines", ())
        return cores

    def _unseen(self) -> str | None:
        """Which cores have no state file here, in words; None if all have one."""
        cores = self._cores()
        if len(self._readers) >= len(cores):
            return None
        # A core's name is its rank in two bytes.
        ranks = (int.from_bytes(name, "little") if isinstance(name, bytes) else at for at, name in enumerate(cores))
        unseen = [str(rank) for rank in ranks if rank not in self._readers]
        if len(unseen) == 1:
            return f"engine core {unseen[0]} cannot be seen from here: its state file is missing"
        return f"engine cores {', '.join(unseen)} cannot be seen from here: their state files are missing"

    def _open_new(self) -> None:
        """Open the files that came, or were replaced, since the last look."""
        found = find_state_files(self._folder)
        opened = {path: file for path in found if (file := self._opened(path)) is not None}
        if opened == self._files:
            return
        self._files = opened
        self._readers = {file.reader.engine: file.reader for file in opened.values() if file.reader is not None}
        self.prefixes = open_prefixes(self._folder, tuple(self._readers), self._client)

    def _opened(self, path: Path) -> _Opened | None:
        """The file at a path: as it was opened before, or anew if it is another one; None if it is gone."""
        try:
            inode = path.stat().st_ino
        except OSError:
            return None
        known = self._files.get(path)
        if known is not None and known.inode == inode:
            return known
        try:
            return _Opened(inode, StateReader(path))
        except StateFileError as error:
            _log.warning(EngineLogEvent.STATE_FILE_UNREADABLE, "%s", error)
            return _Opened(inode, None)


class _Opened(NamedTuple):
    """A state file that was opened, by its inode; `reader` is None if it is none that can be read."""

    inode: int
    reader: StateReader | None
