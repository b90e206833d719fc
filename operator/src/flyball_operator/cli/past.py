"""Where `flyball replay` has past signals from: a Prometheus asked for each time, or a recording of its answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.cli.replayed import Ran
from flyball_operator.cli.services import parsed
from flyball_operator.cli.time_range import MOST_TICKS, TimeRange, rfc3339
from flyball_operator.prometheus.access import Access
from flyball_operator.prometheus.client import PrometheusClient, PrometheusError
from flyball_operator.prometheus.reader import PrometheusReader, Source
from flyball_operator.prometheus.recorded import Header, RecordedSource, RecordError, RecordingSource
from flyball_operator.tuning.observe.signals import Identity, Observation

#: Seconds that one answer may take: nothing waits for it but a person.
_TIMEOUT: Final = 30.0


class PastError(Exception):
    """The past cannot be had, or no more of it; the message says why."""


class WrongRecordingError(PastError):
    """The file is no recording, one of another service, or one that was cut off."""


class Past:
    """What was observed of one service. `step`: seconds between its times; `count`: how many there are, if known."""

    def __init__(
        self,
        service: InferenceService,
        source: Source,
        times: Iterable[float],
        *,
        step: float,
        count: int | None = None,
    ) -> None:
        self.service, self.step, self.count = service, step, count
        self._identity = identity(service)
        self._source, self._times = source, times
        # Of this service alone: a tick of the operator asks for all, but sees no more of each.
        self._reader = PrometheusReader(source, only=self._identity)

    def ticks(self) -> Iterator[tuple[float, Observation, Ran]]:
        """Each time, what the operator would have observed, and what the engines ran. Raises `PastError`."""
        at: float | None = None
        try:
            for at in self._times:
                # Which pods were Ready is known to nobody any more: those that were scraped stand for all.
                observation = self._reader.read_at(at, {self._identity: 1})[self._identity]
                ran = self._reader.ran_at(at).get(self._identity, {})
                if isinstance(self._source, RecordingSource):
                    self._source.kept(at)
                yield at, observation, ran
        except PrometheusError as error:
            raise PastError(f"{error}, asked for {rfc3339(at or 0.0)}") from error
        except RecordError as error:
            raise WrongRecordingError(f"--recorded {error}") from error
        except OSError as error:
            raise PastError(f"the recording cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Let go of files and connections."""
        self._reader.close()


def asked(
    url: str, time_range: TimeRange, raw: Mapping[str, Any], *, record: Path | None, access: Access | None = None
) -> Past:
    """The past as a Prometheus has it; its answers are kept in a new file. Raises `PastError`, `WrongServiceError`."""
    service, step = parsed(raw), time_range.step / 1000
    source: Source = PrometheusClient(url, timeout=_TIMEOUT, access=access)
    if record is not None:
        try:
            source = RecordingSource(source, record.open("x", encoding="utf-8"), Header(_kept(raw), step))
        except OSError as error:
            raise PastError(f"--record {record}: {error.strerror or error}; accepted: a new file") from error
    return Past(service, source, time_range.times(), step=step, count=len(time_range))


def recorded(path: Path, raw: Mapping[str, Any] | None) -> Past:
    """The past as a recording has it, of the service in it, or of another manifest of the same.

    Raises `PastError`, `WrongServiceError`.
    """
    try:
        source = RecordedSource(path)
    except RecordError as error:
        raise WrongRecordingError(f"--recorded {error}") from error
    with ExitStack() as stack:
        stack.callback(source.close)
        own = parsed(source.header.service)
        service = own if raw is None else parsed(raw)
        if identity(service) != identity(own):
            raise WrongRecordingError(f"--recorded {path}: is of {_named(own)}, and the manifest of {_named(service)}")
        stack.pop_all()
    return Past(service, source, source.times(identity(own), MOST_TICKS), step=source.header.step)


def identity(service: InferenceService) -> Identity:
    """What the series of a service are known by."""
    return service.metadata.namespace, service.metadata.uid


def _named(service: InferenceService) -> str:
    meta = service.metadata
    return f"{meta.namespace}/{meta.name} with the UID {meta.uid}"


def _kept(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a replay needs of the object, and no more: a manifest may say much besides."""
    meta, status = (part if isinstance(part, Mapping) else {} for part in (raw.get("metadata"), raw.get("status")))
    return {
        "metadata": {name: meta[name] for name in ("name", "namespace", "uid", "generation") if name in meta},
        "spec": raw.get("spec"),
        "status": {name: status[name] for name in ("tuning", "desiredReplicas") if name in status},
    }
