"""An API server over HTTP that holds objects as they are put there, for commands that begin with a kubeconfig.

It knows gets, lists by labels, watches, JSON patches, dry runs, rights by resource, and reviews of access. It decides
nothing else. Of a dry run of any other patch it makes a merge.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from flyball_lab.harness.manifests import Object
from flyball_operator.kube.resources import NAMESPACES, Resource
from support.memory_api import chosen

#: Runs a command with these arguments; what it printed.
Command = Callable[..., Any]


class StoredApi:
    """What the server holds, and who may not do what."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        """By path: objects, documents such as /version, and logs, which are texts."""
        self.forbidden: set[str] = set()
        """Plurals that the person who asks may neither get, list nor create."""
        self.denied: set[tuple[str, str]] = set()
        """Verbs and resources that reviews deny."""
        self.reviewed: set[str] = set()
        """Accounts that were asked about."""
        self.requests: list[tuple[str, str]] = []
        """Methods and paths, in their order."""
        self.interfering = 0
        """So many patches find that somebody else has just changed the object."""
        self.away = False
        """Whether each request is answered with 503."""
        self.invalid = ""
        """Why dry runs are refused; empty where they are not."""
        self.watched: Queue[Object | None] = Queue()
        """What a watch sends, one after another; None ends it."""

    def put(self, resource: Resource, body: Object) -> None:
        """Hold an object, and the namespace that it is in."""
        meta = body["metadata"]
        self.documents[resource.path(meta.get("namespace"), meta["name"])] = body
        if (namespace := meta.get("namespace")) is not None:
            self.documents.setdefault(NAMESPACES.path(None, namespace), {"metadata": {"name": namespace}})

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        """Status and document."""
        self.requests.append((method, path))
        if self.away:
            return 503, {"message": "not now", "reason": "ServiceUnavailable"}
        if any(f"/{plural}" in path for plural in self.forbidden):
            return 403, {"message": f"{path} is forbidden", "reason": "Forbidden"}
        if method != "GET":
            return self._written(method, path, body, dry="dryRun" in query)
        if path in self.documents:
            return 200, self.documents[path]
        found = list(self._listed(path, query.get("labelSelector", [""])[0]))
        if not found and path.rpartition("/")[2].islower() and self._names_an_object(path):
            return 404, {"message": f"{path} not found", "reason": "NotFound"}
        return 200, {"items": found, "metadata": {"resourceVersion": "1"}}

    def _written(self, method: str, path: str, body: Any, *, dry: bool) -> tuple[int, Object]:
        if dry:
            return self._dry(path, body)
        return self._patched(path, body) if method == "PATCH" else (201, self._reviewed(body))

    def _dry(self, path: str, body: Object) -> tuple[int, Object]:
        """What would be stored."""
        if self.invalid:
            return 422, {"message": self.invalid, "reason": "Invalid"}
        found = self.documents.get(path)
        return (
            (201, {**body, "metadata": {**body["metadata"], "uid": "new"}})
            if found is None
            else (200, merged(found, body))
        )

    def _patched(self, path: str, patch: list[Object]) -> tuple[int, Object]:
        """RFC 6902; a resource version that is put in place of another one is a conflict, as the API server has it."""
        if path not in self.documents:
            return 404, {"message": f"{path} not found", "reason": "NotFound"}
        body = copy.deepcopy(self.documents[path])
        version = str(body["metadata"].get("resourceVersion", ""))
        for step in patch:
            *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:])
            node = body
            for part in parents:
                node = node[part]
            if step["op"] == "remove":
                del node[last]
            else:
                node[last] = step["value"]
        if self.interfering or body["metadata"].get("resourceVersion", "") != version:
            self.interfering = max(0, self.interfering - 1)
            return 409, {"message": f"{path}: the object has been modified", "reason": "Conflict"}
        body["metadata"]["resourceVersion"] = str(int(version) + 1)
        self.documents[path] = body
        return 200, body

    def _reviewed(self, body: Object) -> Object:
        spec = body["spec"]
        # A SelfSubjectAccessReview names no user.
        if "user" in spec:
            self.reviewed.add(spec["user"])
        asked = (spec["resourceAttributes"]["verb"], spec["resourceAttributes"]["resource"])
        return {"status": {"allowed": asked not in self.denied}}

    @staticmethod
    def _names_an_object(path: str) -> bool:
        """Whether a path ends with a name: after its version there are pairs of a plural and a name."""
        parts = path.strip("/").split("/")
        return len(parts[2 if parts[0] == "api" else 3 :]) % 2 == 0

    def _listed(self, path: str, selector: str) -> Iterator[Object]:
        root, _, plural = path.rpartition("/")
        for held, document in self.documents.items():
            within = held.startswith(f"{root}/") and held.rpartition("/")[0].endswith(f"/{plural}")
            labels = (document.get("metadata") or {}).get("labels") or {} if within else {}
            if within and chosen(labels, selector):
                yield document


def merged(found: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(found) if isinstance(found, dict) else {}
    for key, value in patch.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = merged(kept.get(key), value)
    return kept


@contextmanager
def served(api: StoredApi, folder: Path, *, namespace: str = "default") -> Iterator[Path]:
    """A kubeconfig of the server on loopback, whose context names this namespace."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """A read."""
            self._answer(None)

        def do_POST(self) -> None:
            """A review."""
            self._answer(self._body())

        def do_PATCH(self) -> None:
            """A JSON patch."""
            self._answer(self._body())

        def _body(self) -> Any:
            return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: Any) -> None:
            url = urlsplit(self.path)
            if "watch=true" in url.query:
                self._watch(url.path)
                return
            status, document = api.answer(self.command, url.path, parse_qs(url.query), body)
            # Logs are no JSON.
            content = document.encode() if isinstance(document, str) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _watch(self, path: str) -> None:
            api.requests.append(("WATCH", path))
            self.send_response(200)
            self.end_headers()
            # Without a length the response lasts until the connection is closed.
            while (event := api.watched.get()) is not None:
                self.wfile.write(json.dumps(event).encode() + b"\n")

        def log_message(self, *_words: object) -> None:
            """Nothing is said of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # A watch that nobody ended waits in its thread.
    server.block_on_close, server.daemon_threads = False, True
    # Ended within a hundredth of a second, where half a second is usual: each command has a server of its own.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(_kubeconfig(server.server_address[1], namespace)))
        yield path
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def proxied(kubeconfig: Path, patched: pytest.MonkeyPatch) -> None:
    """Make it name a host that nobody knows, and the server the environment's proxy: it answers in that host's place.

    The environment names the kubeconfig, too.
    """
    patched.setenv("http_proxy", point_at(kubeconfig, "http://kubernetes.invalid"))
    patched.setenv("KUBECONFIG", str(kubeconfig))
    patched.delenv("no_proxy", raising=False)
    patched.delenv("NO_PROXY", raising=False)


def point_at(kubeconfig: Path, server: str) -> str:
    """Make it name another server. Returns the one that it named."""
    found = yaml.safe_load(kubeconfig.read_text())
    (entry,) = found["clusters"]
    before, entry["cluster"]["server"] = str(entry["cluster"]["server"]), server
    kubeconfig.write_text(yaml.safe_dump(found))
    return before


def _kubeconfig(port: int, namespace: str) -> Object:
    cluster = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    user = {"name": "me", "user": {"token": "none"}}
    context = {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": namespace}}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [user],
        "contexts": [context],
        "current-context": "here",
    }
