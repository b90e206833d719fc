"""How tests look at a cluster and change it, against an API server that knows three objects."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support import api_requests
from support.cluster import KubectlError, get, items, patch, server_side_apply

POD: dict[str, Any] = {"metadata": {"name": "chat-0", "managedFields": [{"manager": "kubelet"}]}, "spec": {}}
KNOWN: dict[str, tuple[int, dict[str, Any]]] = {
    "/api/v1/namespaces/team/pods/chat-0": (200, {"apiVersion": "v1", "kind": "Pod", **POD}),
    "/api/v1/namespaces/team/pods?labelSelector=a%3Db": (200, {"apiVersion": "v1", "kind": "PodList", "items": [POD]}),
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ours": (200, {"kind": "CRD", "metadata": {}}),
    "/apis/coordination.k8s.io/v1/namespaces/team/leases/one": (403, {"message": "not granted"}),
}


#: Path, query, content type and body of each change.
PATCHED: list[tuple[str, str, str, Any]] = []


class Answers(BaseHTTPRequestHandler):
    """What is known, and 404 for all else."""

    def do_GET(self) -> None:
        status, body = KNOWN.get(self.path, (404, {"message": "not found"}))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_PATCH(self) -> None:
        """Of the pod; what was asked for is kept."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path, _, query = self.path.partition("?")
        status, answer = KNOWN.get(path.removesuffix("/status"), (404, {"message": "not found"}))
        PATCHED.append((path, query, self.headers["Content-Type"], body))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Nowhere."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """The server that KUBECONFIG names."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as serving:
        threading.Thread(target=serving.serve_forever).start()
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{serving.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        api_requests.api.cache_clear()
        yield serving
        api_requests.api.cache_clear()
        serving.shutdown()


@pytest.mark.usefixtures("server")
def test_an_object_is_as_kubectl_gives_it_and_one_that_is_not_there_is_none() -> None:
    for kind in ("pod", "pods"):
        assert get(kind, "chat-0", namespace="team") == {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-0"}, "spec": {},
        }  # fmt: skip
    assert get("crd", "ours", namespace="team") == {"kind": "CRD", "metadata": {}}
    assert get("pod", "chat-1", namespace="team") is None


@pytest.mark.usefixtures("server")
def test_managed_fields_are_there_for_who_asks() -> None:
    found = get("pod", "chat-0", namespace="team", managed=True)
    assert found is not None
    assert found["metadata"]["managedFields"] == [{"manager": "kubelet"}]


@pytest.mark.usefixtures("server")
def test_objects_of_a_list_say_their_kind() -> None:
    (found,) = items("pods", namespace="team", selector="a=b")
    assert found == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-0"}, "spec": {}}


def test_what_is_refused_or_not_answered_is_an_error_and_never_an_absent_object(server: ThreadingHTTPServer) -> None:
    with pytest.raises(KubectlError, match=r"403.*not granted"):
        get("leases.coordination.k8s.io", "one", namespace="team")
    with pytest.raises(KubectlError, match="404"):
        items("events", namespace="team")
    server.shutdown()
    server.server_close()
    with pytest.raises(KubectlError, match="refused"):
        get("pod", "chat-0", namespace="team")


@pytest.mark.usefixtures("server")
def test_a_change_is_what_kubectl_makes_of_it_and_an_absent_object_is_an_error() -> None:
    PATCHED.clear()
    patch("pod", "chat-0", {"status": {"phase": None}}, namespace="team", subresource="status")
    server_side_apply("pod", {"metadata": {"name": "chat-0"}}, namespace="team")
    pod, merged, whole = "/api/v1/namespaces/team/pods/chat-0", "merge-patch+json", "apply-patch+yaml"
    assert list(PATCHED) == [
        (f"{pod}/status", "fieldManager=kubectl-patch", f"application/{merged}", {"status": {"phase": None}}),
        (pod, "fieldManager=test&force=true", f"application/{whole}", {"metadata": {"name": "chat-0"}}),
    ]
    with pytest.raises(KubectlError, match="not found"):
        patch("pod", "chat-1", {}, namespace="team")
