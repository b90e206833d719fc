"""Says how far a download has come, to whoever asks at a port of the pod: the operator, which shows it in status."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flyball_engine.model_cache import PROGRESS_PATH, Progress

#: Seconds after which whoever asks and says no more is hung up on.
_ASKED_SECONDS = 5.0


class _Server(ThreadingHTTPServer):
    """For both versions of IP, where there are both."""

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class ProgressServer:
    """What was told last, until something else is. Before anything was told the answer is 404."""

    def __init__(self) -> None:
        self._told: Progress | None = None

    def tell(self, progress: Progress) -> None:
        """How far it is now."""
        self._told = progress

    @contextmanager
    def serving(self, port: int) -> Iterator[int]:
        """Answer while the block lasts, at this port, or at any where it is 0. Raises OSError where it is taken."""
        server = _Server(("", port), self._handler())
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        progress = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _ASKED_SECONDS

            def do_GET(self) -> None:
                told = progress._told if self.path == PROGRESS_PATH else None
                body = b"" if told is None else told.body()
                self.send_response(HTTPStatus.OK if told is not None else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
                """The log is for what is downloaded."""

        return Handler
