"""A registry that this machine and the cluster's node reach under one name.

It is on loopback, where containerd asks for no TLS: in the cluster's namespaces. Here a proxy listens at the same port.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from flyball_lab.harness.ports import free_port
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.binaries import binary
from support.node import daemon_on_node, end_on_node, node_address, on_node


@dataclass(frozen=True)
class NodeRegistry:
    """`address`: host and port. `log`: every request that it was asked."""

    address: str
    log: Path

    def asked(self) -> list[str]:
        """Method and path of each request."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [f"{method} {path}" for line in lines for method, _, path in [_request(line)] if method]

    def stop(self) -> None:
        """It answers nobody from now on."""
        end_on_node(binary("crane"))


def _request(line: str) -> tuple[str, str, str]:
    """Of a line such as `2026/11/28 20:00:00 GET /v2/`."""
    method, space, path = line.split(" ", 2)[-1].partition(" ")
    return (method, space, path) if method in ("GET", "HEAD", "POST", "PUT", "PATCH") else ("", "", "")


@contextmanager
def node_registry(folder: Path) -> Iterator[NodeRegistry]:
    """Such a registry; at the end, the node has none of its images."""
    port, log, stored = free_port(), folder / "registry.log", folder / "registry"
    stored.mkdir()
    options = {"address": f"0.0.0.0:{port}", "disk": stored}
    proxy = [sys.executable, str(ROOT / "tests/support/tcp_proxy.py"), str(port), node_address(), str(port)]
    with (
        daemon_on_node(binary("crane"), options, log, verb="registry serve"),
        subprocess.Popen(proxy) as way,
    ):
        try:
            registry = NodeRegistry(f"127.0.0.1:{port}", log)
            eventually(lambda: _answers(registry.address), expecting="the registry answers")
            yield registry
        finally:
            way.kill()
            _forget(registry.address)


def _answers(address: str) -> bool:
    with suppress(OSError), urlopen(f"http://{address}/v2/", timeout=10) as answer:
        return bool(answer.status == 200)
    return False


def _forget(address: str) -> None:
    """Remove its images from the node."""
    images = on_node("ctr", "-n", "k8s.io", "images", "list", "-q", f"name~=^{address}/").split()
    if images:
        on_node("ctr", "-n", "k8s.io", "images", "rm", *images)
