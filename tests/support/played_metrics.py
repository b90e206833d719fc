"""Plays the metrics of engines that do not run, to a Prometheus that scrapes them: requests by pod and outcome."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from flyball_engine.contract import MetricName
from flyball_lab.harness.prometheus import Prometheus, ScrapeJob, prometheus
from flyball_operator.prometheus.queries import UID


class PlayedMetrics:
    """What the engines of one service count. `objective`: id of the one objective.

    `outcomes`: requests that met it and that violated it between two scrapes, by pod. What a pod has counted stays.
    """

    def __init__(self, namespace: str, uid: str, objective: str) -> None:
        self._labels = {"namespace": namespace, UID: uid}
        self._objective = objective
        self.outcomes: Mapping[str, tuple[int, int]] = {}
        self._counted: dict[str, tuple[int, int]] = {}

    def page(self) -> str:
        """What the next scrape reads."""
        lines = []
        for pod, (met, violated) in dict(self.outcomes).items():
            before = self._counted.get(pod)
            # A new series begins at zero: what it begins with is no increase.
            counts = (0, 0) if before is None else (before[0] + met, before[1] + violated)
            self._counted[pod] = counts
            lines.append(self._line(MetricName.RUNNING, 1, pod=pod, engine="0"))
            for outcome, count in zip(("met", "violated"), counts, strict=True):
                lines.append(
                    self._line(
                        MetricName.OBJECTIVE_REQUESTS, count, pod=pod, objective=self._objective, outcome=outcome
                    )
                )
        return "\n".join([*lines, ""])

    def _line(self, name: str, value: int, **labels: str) -> str:
        text = ",".join(f'{label}="{said}"' for label, said in (self._labels | labels).items())
        return f"{name}{{{text}}} {value}"


@contextmanager
def played(metrics: PlayedMetrics, port: int) -> Iterator[None]:
    """Serve these metrics on loopback meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = metrics.page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def scraping(folder: Path, port: int) -> Iterator[Prometheus]:
    """A Prometheus that scrapes what is played at a port each second."""
    job = ScrapeJob("played", [{"__address__": f"127.0.0.1:{port}"}], honor_labels=True)
    with prometheus(folder, jobs=[job], scrape="1s") as running:
        yield running
