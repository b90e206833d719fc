"""Keeps one API server's adapters what the list in the pod says: loads what is new, unloads what is gone.

`AdapterEngine` is what it needs of an engine (vLLM: `vllm.adapters`). What cannot be loaded is tried again, at first
after `FIRST_RETRY_SECONDS`, later every `LONGEST_RETRY_SECONDS`: an adapter that somebody mends is then loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pydantic import ValidationError

from flyball_engine.adapters import MOST_WORDS, Adapter, AdapterList, AdapterReport, AdapterState
from flyball_engine.log_events import EngineLogEvent, EventLog

#: How often the list is read. The kubelet brings a change in about a minute, so it is not what one waits for.
LOOK_SECONDS: Final = 2.0
#: Seconds until what failed is tried again: at first, and at most.
FIRST_RETRY_SECONDS: Final = 5.0
LONGEST_RETRY_SECONDS: Final = 300.0
#: Adapters that are downloaded or loaded at a time: each load is a pause between two steps.
PARALLEL: Final = 4
#: How often downloaded files are looked through for those that nobody needs: removing them is not urgent.
TIDY_SECONDS: Final = 60.0
_EARLIER: Final = "; until it is loaded, the earlier adapter of this name answers"

_log = EventLog(__name__)


class AdapterError(Exception):
    """Why an adapter cannot be loaded, and what to do, for people."""


class AdapterEngine(Protocol):
    """An engine that serves adapters beside its model."""

    async def load(self, adapter: Adapter) -> None:
        """Have its name answered with it, in place of an earlier one. Raises AdapterError."""

    def unload(self, name: str) -> None:
        """Have its name not found from now on. Requests that run with it go on."""

    async def tidy(self, listed: tuple[Adapter, ...]) -> None:
        """Remove downloaded files that neither this list nor another API server has needed for long."""


@dataclass(eq=False)
class _Entry:
    """An adapter of the list. `due`: when to try it; `wait`: seconds until another try.

    `answered`: whether its name is, by this adapter or by an earlier one of another address.
    """

    adapter: Adapter
    due: float
    answered: bool = False
    state: AdapterState = AdapterState.LOADING
    message: str = ""
    wait: float = FIRST_RETRY_SECONDS
    task: asyncio.Task[None] | None = None


class AdapterLoader:
    """Of one API server. `names` is called with the adapters' names whenever the list changes."""

    def __init__(
        self,
        path: Path,
        engine: AdapterEngine,
        *,
        clock: Callable[[], float],
        names: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._path = path
        self._engine = engine
        self._clock = clock
        self._names = names
        self._entries: dict[str, _Entry] = {}
        self._content: bytes | None = None
        #: Whether the list was there at the last look.
        self.listed = True
        self._fault = ""
        self._room = asyncio.Semaphore(PARALLEL)

    async def run(self) -> None:
        """Follow the list until cancelled."""
        tidy_at = self._clock()
        try:
            while True:
                self.look()
                if self._clock() >= tidy_at:
                    tidy_at = self._clock() + TIDY_SECONDS
                    await self._engine.tidy(tuple(entry.adapter for entry in self._entries.values()))
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for entry in self._entries.values():
                _stop(entry)

    def look(self) -> None:
        """Follow what the list says now, and begin what is due. Loads go on behind it."""
        if (wanted := self._read()) is not None:
            self._follow({adapter.name: adapter for adapter in wanted.adapters})
        now = self._clock()
        for entry in self._entries.values():
            if entry.state is not AdapterState.LOADED and entry.task is None and now >= entry.due:
                entry.task = asyncio.get_running_loop().create_task(self._load(entry), name="flyball-adapter")

    @property
    def reports(self) -> tuple[AdapterReport, ...]:
        """What became of each adapter of the list, in its order."""
        entries = self._entries.values()
        return tuple(AdapterReport(adapter=one.adapter, state=one.state, message=one.message) for one in entries)

    @property
    def settled(self) -> bool:
        """Whether each adapter of the list was loaded, or has failed. Never where no list was read."""
        return self._content is not None and all(
            entry.state is not AdapterState.LOADING for entry in self._entries.values()
        )

    def _read(self) -> AdapterList | None:
        """The list if it is another one than at the last look. One that cannot be read changes nothing."""
        try:
            content = self._path.read_bytes()
            self.listed = True
            if content == self._content:
                return None
            found = AdapterList.model_validate_json(content)
        except FileNotFoundError:
            # The ConfigMap is yet to come, or somebody deleted it: the operator is told, and makes it anew.
            self.listed = False
            return None
        except (OSError, ValidationError) as error:
            if self._fault != (fault := f"{type(error).__name__}: {error}"):
                self._fault = fault
                _log.warning(EngineLogEvent.ADAPTERS_UNREADABLE, "%s: %s", self._path, fault)
            return None
        self._content, self._fault = content, ""
        return found

    def _follow(self, wanted: dict[str, Adapter]) -> None:
        now, before = self._clock(), self._entries
        self._entries = {}
        for name, adapter in wanted.items():
            entry = before.pop(name, None)
            if entry is None or entry.adapter != adapter:
                # An earlier one answers until this one does: clients shall not find its name gone meanwhile.
                answered = entry is not None and entry.answered
                if entry is not None:
                    _stop(entry)
                entry = _Entry(adapter, now, answered)
            self._entries[name] = entry
        for name, entry in before.items():
            _stop(entry)
            if entry.answered:
                self._engine.unload(name)
                _log.info(EngineLogEvent.ADAPTER_UNLOADED, "%s", name)
        self._names(tuple(wanted))

    async def _load(self, entry: _Entry) -> None:
        adapter = entry.adapter
        try:
            async with self._room:
                await self._engine.load(adapter)
        except Exception as error:  # noqa: BLE001 – vLLM must not fail with its guest
            words = str(error) if isinstance(error, AdapterError) else f"{type(error).__name__}: {error}"
            words = words[: MOST_WORDS - len(_EARLIER)] + (_EARLIER if entry.answered else "")
            if words != entry.message:
                _log.warning(EngineLogEvent.ADAPTER_NOT_LOADED, "%s (%s): %s", adapter.name, adapter.uri, words)
            entry.state, entry.message = AdapterState.FAILED, words
            entry.due, entry.wait = self._clock() + entry.wait, min(LONGEST_RETRY_SECONDS, 2 * entry.wait)
        else:
            entry.state, entry.message, entry.answered = AdapterState.LOADED, "", True
            _log.info(EngineLogEvent.ADAPTER_LOADED, "%s (%s)", adapter.name, adapter.uri)
        finally:
            entry.task = None


def _stop(entry: _Entry) -> None:
    """A load that goes on is for nobody."""
    if entry.task is not None:
        entry.task.cancel()
