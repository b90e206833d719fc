"""An API server on loopback whose services are recordings played again: each look at one sees its next tick.

It answers gets, lists and watches of services alone, for commands that only read.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import yaml

from flyball_lab.harness.console_fleet import NAMESPACE, reconciled
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.recordings import Recording
from flyball_operator.kube.resources import INFERENCE_SERVICES

#: Times of recordings.
_TIME: Final = re.compile(r"1970-01-01T\d\d:\d\d:\d\dZ")
_FORM: Final = "%Y-%m-%dT%H:%M:%SZ"
#: Seconds after which a watch in which nothing happened ends.
_WATCH_SECONDS: Final = 5.0


class RecordedServices:
    """Services after each tick, by name."""

    def __init__(self, ticks: Mapping[str, Sequence[Object]]) -> None:
        self._ticks = ticks
        self._looks = dict.fromkeys(ticks, 0)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, recordings: Mapping[str, str], *, end: datetime) -> RecordedServices:
        """Recordings by the names of their services. Their last tick is at `end`."""
        return cls({name: _played(Recording.named(recording), name, end) for name, recording in recordings.items()})

    def count(self, name: str) -> int:
        """How many ticks there are of a service."""
        return len(self._ticks[name])

    def next(self, name: str) -> Object | None:
        """A service at its next tick; in the end, at its last. None if there is none of that name."""
        if name not in self._ticks:
            return None
        with self._lock:
            at = min(self._looks[name], self.count(name) - 1)
            self._looks[name] += 1
        return self._ticks[name][at]

    def last(self) -> list[Object]:
        """All services at their ends."""
        return [ticks[-1] for ticks in self._ticks.values()]


def _played(recording: Recording, name: str, end: datetime) -> list[Object]:
    replayed = recording.replay()
    services = [reconciled(one, name, pods=len(recording.pods)) for one in replayed.services]
    told = sorted(_TIME.findall(json.dumps(services)))
    later = end - datetime.fromisoformat(told[-1]) if told else timedelta()

    def moved(found: re.Match[str]) -> str:
        return (datetime.fromisoformat(found[0]) + later).strftime(_FORM)

    return [json.loads(_TIME.sub(moved, json.dumps(one))) for one in services]


@contextmanager
def recorded_api(services: RecordedServices, folder: Path) -> Iterator[Path]:
    """A kubeconfig of a server that has these services."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if "watch=" in query:
                ended.wait(_WATCH_SECONDS)
                with suppress(OSError):  # Who asked may have gone meanwhile.
                    self._answer(200, b"")
                return
            one = INFERENCE_SERVICES.path(NAMESPACE)
            if path.startswith(f"{one}/"):
                found = services.next(path.removeprefix(f"{one}/"))
            else:
                found = {"items": services.last(), "metadata": {"resourceVersion": "1"}}
            body = {"message": f"{path} not found", "reason": "NotFound"} if found is None else found
            self._answer(200 if found else 404, json.dumps(body).encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 – the name of the overridden one
            pass

    ended = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{server.server_port}")))
        try:
            yield kubeconfig
        finally:
            ended.set()
            server.shutdown()
            thread.join()


def _kubeconfig(address: str) -> Object:
    context = {"cluster": "played", "user": "played", "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "played",
        "contexts": [{"name": "played", "context": context}],
        "clusters": [{"name": "played", "cluster": {"server": address}}],
        "users": [{"name": "played", "user": {}}],
    }
