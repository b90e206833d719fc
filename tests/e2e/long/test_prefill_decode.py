"""Prefill/decode disaggregation on the cluster: two services, and NIXL that copies KV cache between their pods.

No gateway here knows of such pairs, so a router of the test's own sends each request to both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from flyball_engine.contract import MetricName
from flyball_lab.harness.waiting import eventually
from support.cluster import Object, apply, delete, kubectl, patch
from support.disaggregated import Router
from support.live import ANSWER, MODEL, RESOURCE, Flyball, Service, inference_service, scrape
from support.nixl import nixl_packages
from support.remnants import mark

pytestmark = pytest.mark.cluster

#: Where the engine's image has its packages.
_PACKAGES: Final = "/opt/engine/lib/python3.11/site-packages"
_VOLUME: Final = "flyball-e2e-nixl"
#: The upper bounds of the batching: `inference_service` has them.
MOST_SEQS: Final = 64
MOST_TOKENS: Final = 2048
#: Tokens of prompts.
PROMPTS: Final = (600, 40, 300, 100)


@dataclass(frozen=True)
class PrefillDecodePair:
    """The service whose pods process prompts, and the one whose pods make the answers."""

    prefill: Service
    decode: Service

    def router(self) -> Router:
        return Router(self.prefill.url(), self.decode.url(), MODEL)


def nixl_volume(namespace: str) -> list[Object]:
    """A claim of the folder of this machine, which is the node, that has NIXL."""
    ends = {"storageClassName": "", "accessModes": ["ReadOnlyMany"]}
    return [
        mark(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": _VOLUME},
                "spec": {
                    **ends,
                    "capacity": {"storage": "1Gi"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": namespace, "name": _VOLUME},
                    "hostPath": {"path": str(nixl_packages())},
                },
            }
        ),
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": _VOLUME, "namespace": namespace},
            "spec": {**ends, "volumeName": _VOLUME, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]


def of_role(name: str, role: str, metric: str, *, image: str) -> Object:
    """One of the two services, as the guide has them, with NIXL mounted among the engine's packages."""
    asked = inference_service(
        name, image=image, objectives=[{"name": "time", "metric": metric, "threshold": "2s", "target": "90"}]
    )
    spec: dict[str, Any] = asked["spec"]
    # A prompt whose KV cache cannot be loaded is processed, and its request is not lost.
    recompute = {"loadFailurePolicy": "Recompute"} if role == "Consumer" else {}
    spec["engine"]["kvTransfer"] = {"role": role, "connector": "NixlConnector", **recompute}
    address = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    spec["engine"]["env"].append(address)
    claim = {"name": "nixl", "persistentVolumeClaim": {"claimName": _VOLUME, "readOnly": True}}
    spec["podTemplate"] |= {
        "volumes": [claim],
        "volumeMounts": [
            {"name": "nixl", "mountPath": f"{_PACKAGES}/{one.name}", "subPath": one.name, "readOnly": True}
            for one in sorted(nixl_packages().glob("*nixl*"))
        ],
    }
    return asked


@pytest.fixture
def pair(flyball: Flyball) -> Iterator[PrefillDecodePair]:
    """Both, governed; gone at the end."""
    manifests = "\n---\n".join(map(json.dumps, nixl_volume(flyball.watched)))
    kubectl("apply", "-f", "-", stdin=manifests)
    image = flyball.refs["engine-cpu"]
    made = PrefillDecodePair(Service("chat-prefill", flyball.watched), Service("chat-decode", flyball.watched))
    apply(of_role(made.prefill.name, "Producer", "TimeToFirstToken", image=image), namespace=flyball.watched)
    apply(of_role(made.decode.name, "Consumer", "TimePerOutputToken", image=image), namespace=flyball.watched)
    try:
        for service in (made.prefill, made.decode):
            service.expect_governed()
        yield made
    finally:
        for service in (made.prefill, made.decode):
            delete(RESOURCE, service.name, namespace=flyball.watched)
        kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=manifests)


def limits(service: Service) -> tuple[int, int]:
    """Requests and tokens of a step."""
    effective = service.effective()
    return int(effective["max_num_active_seqs"]), int(effective["max_num_scheduled_tokens"])


def counted(service: Service, name: str) -> float:
    (value,) = re.findall(rf"^{name} (\S+)$", scrape(service.pod(), 8001), flags=re.MULTILINE)
    return float(value)


@pytest.mark.timeout(1800)
def test_each_half_follows_its_own_limit_under_load_and_no_request_is_lost(
    pair: PrefillDecodePair, note_figure: Callable[[str], None]
) -> None:
    prefill, decode = pair.prefill, pair.decode
    pods = [service.pod()["metadata"]["uid"] for service in (prefill, decode)]
    with pair.router().load(2, prompts=PROMPTS, max_tokens=ANSWER) as load:
        fix(prefill, "maxNumScheduledTokens", 256)
        fix(decode, "maxNumActiveSeqs", 4)
        # Where prompts are processed the law leaves the requests alone, and where answers are made the tokens.
        for service, wanted in ((prefill, (MOST_SEQS, 256)), (decode, (4, MOST_TOKENS))):
            eventually(lambda: limits(service) == wanted, expecting=f"{service.name} runs under {wanted}")  # noqa: B023
        before = load.answered
        eventually(
            lambda: load.answered >= before + 60, expecting="requests are answered under these limits", within=600
        )
    load.expect_nothing_lost()
    given, loaded = (counted(decode, name) for name in (MetricName.PROMPT_TOKENS, MetricName.CACHED_PROMPT_TOKENS))
    assert loaded > 0.8 * given, "NIXL leaves the last token of each prompt, and what it could not load"
    assert [service.pod()["metadata"]["uid"] for service in (prefill, decode)] == pods, "no pod was started anew"
    assert [restarts(service) for service in (prefill, decode)] == [0, 0]
    note_figure(f"{load.answered} requests, none lost; {loaded / given:.1%} of the prompts' tokens loaded")


def fix(service: Service, limit: str, value: int) -> None:
    """Fix a limit."""
    bounds = {limit: {"min": value, "max": value}}
    patch(RESOURCE, service.name, {"spec": {"tuning": {"bounds": bounds}}}, namespace=service.namespace)


def restarts(service: Service) -> int:
    return sum(int(one["restartCount"]) for one in service.pod()["status"]["containerStatuses"])
