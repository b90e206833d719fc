"""kube-router on the cluster's node: it holds pods to their NetworkPolicies, which nothing else here does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.binaries import binary
from support.cluster import Object
from support.node import daemon_on_node, on_node, sandbox_pid

#: Seconds for a connection; where policies refuse one, the answer comes at once.
_CONNECT_SECONDS: Final = 5
#: kube-router's own clean-up ends by a fault where the kernel has no IPVS. Other chains are left as they are.
_FORGET: Final = r"""
for family in iptables ip6tables; do
  $family-save | grep -v -e KUBE-ROUTER -e KUBE-POD-FW -e KUBE-NWPLCY | $family-restore
done
ipset destroy"""


@contextmanager
def enforced(folder: Path, node: str) -> Iterator[None]:
    """NetworkPolicies hold on the node for as long as the block lasts, from a moment after its beginning on."""
    router, log = binary("kube-router"), folder / "kube-router.log"
    options = {
        "kubeconfig": os.environ["KUBECONFIG"],
        "hostname-override": node,
        "run-firewall": "true",
        "run-router": "false",
        "run-service-proxy": "false",
        "run-loadbalancer": "false",
    }
    try:
        with daemon_on_node(router, options, log) as process:
            yield
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
    finally:
        on_node("sh", "-c", _FORGET)


def connects(pod: Object, to: str, port: int) -> bool:
    """Whether a pod can open a TCP connection to an address."""
    attempt = f"exec 3<>/dev/tcp/{to}/{port}"
    enter = f"timeout {_CONNECT_SECONDS} nsenter --net --target {sandbox_pid(pod)} bash -c '{attempt}'"
    return on_node("sh", "-c", f"{enter} 2>/dev/null && echo open || echo shut").strip() == "open"
