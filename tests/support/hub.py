"""A small hub of models on loopback: the routes that the real client asks for, and the faults of real hubs.

`python3 hub.py FOLDER PORT` serves the files of a folder to everybody. Its faults are set by PUT.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "5f0b02c75b57c5855da9ae460ce51323ea669d8a"


@dataclass
class Hub:
    """One model at two names of one commit. Files that end in `.safetensors` are LFS files, as on a real hub.

    `token`: needed for everything; empty for none. `away`: the status of every answer. `damaged`: how often a file
    still comes with another last byte. `holds`: a file of which so many bytes come, and no more until `go_on`.
    `asked`: paths that were asked for, with the range.
    """

    files: Mapping[str, bytes]
    model: str = "org/tiny"
    commit: str = COMMIT
    token: str = ""
    away: int = 0
    damaged: dict[str, int] = field(default_factory=dict)
    holds: dict[str, int] = field(default_factory=dict)
    go_on: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""

    def gets(self, name: str) -> list[str]:
        """Ranges that were asked for of this file, empty for all of it."""
        return [asked for path, asked in self.asked if path.endswith(f"/resolve/{self.commit}/{name}")]


def server_of(hub: Hub, address: tuple[str, int]) -> ThreadingHTTPServer:
    """The hub's server, which does not serve yet."""
    server = ThreadingHTTPServer(address, type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    return server


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub, as long as the block lasts."""
    server = server_of(hub, ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.asked.append((path, self.headers.get("Range", "")))
        if hub.away:
            self._refuse(hub.away)
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._refuse(401, "GatedRepo")
        elif path.startswith(f"/api/models/{hub.model}/revision/"):
            self._list(path.rpartition("/")[2])
        elif path.startswith(f"/{hub.model}/resolve/{hub.commit}/"):
            self._file(path.partition(f"{hub.commit}/")[2])
        else:
            self._refuse(404, "RepoNotFound")

    def do_PUT(self) -> None:
        """Set faults, by the fields of the hub; without a file that is held, held ones go on."""
        for name, value in json.loads(self.rfile.read(int(self.headers["Content-Length"]))).items():
            setattr(self.hub, name, value)
        if not self.hub.holds:
            self.hub.go_on.set()
        self._send(HTTPStatus.OK, json.dumps(self.hub.asked).encode())

    def _list(self, revision: str) -> None:
        if revision not in ("main", self.hub.commit):
            self._refuse(404, "RevisionNotFound")
            return
        siblings = [_sibling(name, body) for name, body in self.hub.files.items()]
        self._send(
            HTTPStatus.OK, json.dumps({"id": self.hub.model, "sha": self.hub.commit, "siblings": siblings}).encode()
        )

    def _file(self, name: str) -> None:
        body = self.hub.files.get(name)
        if body is None:
            self._refuse(404, "EntryNotFound")
            return
        if self.hub.damaged.get(name, 0) > 0:
            self.hub.damaged[name] -= 1
            body = body[:-1] + bytes([body[-1] ^ 1])
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        status = HTTPStatus.PARTIAL_CONTENT if "Range" in self.headers else HTTPStatus.OK
        extent = {"Content-Range": f"bytes {begin}-{len(body) - 1}/{len(body)}"} if begin else {}
        held = self.hub.holds.get(name)
        self._send(status, body[begin:], extent, held=None if held is None else max(0, held - begin))

    def _refuse(self, status: int, code: str = "") -> None:
        self._send(HTTPStatus(status), b"", {"X-Error-Code": code} if code else {})

    def _send(
        self, status: HTTPStatus, body: bytes, headers: Mapping[str, str] | None = None, *, held: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "X-Repo-Commit": self.hub.commit,
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if held is not None and not self.hub.go_on.is_set():
            self.wfile.write(body[:held])
            self.wfile.flush()
            self.hub.go_on.wait()
            body = body[held:]
        try:
            self.wfile.write(body)
        except OSError:
            # The client was killed.
            self.close_connection = True


def _sibling(name: str, body: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()
    found: dict[str, Any] = {"rfilename": name, "size": len(body), "blobId": blob}
    if name.endswith(".safetensors"):
        found["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130}
    return found


if __name__ == "__main__":
    given = Path(sys.argv[1])
    found = {str(path.relative_to(given)): path.read_bytes() for path in given.rglob("*") if path.is_file()}
    server_of(Hub(found), ("", int(sys.argv[2]))).serve_forever()
