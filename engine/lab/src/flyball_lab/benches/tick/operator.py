"""The tuner of the operator over a fleet, with what each tick took as a line of JSON.

The tuner, its cache, the writer of status and the clients of Prometheus and of the engines are
the operator's own. What stands in is the API server: it keeps what is written and shows it to the cache, in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

from flyball_engine.contract import CONTRACT_VERSION
from flyball_engine.signing import Signer
from flyball_operator.api import names
from flyball_operator.app.cached_services import CachedServices
from flyball_operator.engines.client import EngineClient, engine_session
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.status import TunerStatus
from flyball_operator.prometheus.client import PrometheusClient
from flyball_operator.prometheus.reader import PrometheusReader
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.observe.signals import Attainment, Identity, Observation, PodOutcomes, Signals, Unobserved
from flyball_operator.tuning.ports import EventType
from flyball_operator.tuning.tuner import Tuner, collect_garbage_seldom

#: Pods of each service: five thousand where there are a thousand services.
PODS: Final = 5
#: Services that are scraped at most: two hundred pods, since a scrape that is late changes what the tuner does. Of the
#: others is said what is of these.
SCRAPED: Final = 200 // PODS
NAMESPACE: Final = "team"
#: Seconds for a whole read: on a machine with other work, too, ticks that hold are not what is to be measured.
READ_SECONDS: Final = 60.0
#: Reading and deciding, without a pause in between, would be another load than the operator's.
TICK_SECONDS: Final = 5.0


def uid_of(service: int) -> str:
    """The UID of a service by its number. UIDs begin with all digits, and as that of the service that is scraped."""
    return f"{service % SCRAPED % 16:x}e4f1ce0-0000-4000-8000-{service:012d}"


def address_of(pod: int) -> str:
    """The address of a pod by its number: one of loopback's."""
    return f"127.{1 + pod // 62500}.{pod // 250 % 250}.{1 + pod % 250}"


def service(number: int) -> dict[str, Any]:
    """An accepted service, as the API server shows it."""
    objectives = [
        {"name": "first-token", "metric": "TimeToFirstToken", "threshold": "500ms", "target": "99"},
        {"name": "per-token", "metric": "TimePerOutputToken", "threshold": "30ms", "target": "99"},
    ]
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": f"chat-{number}",
            "namespace": NAMESPACE,
            "uid": uid_of(number),
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {
            "model": {"uri": "hf://Qwen/Qwen3-8B"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0"},
            "objectives": objectives,
            "batching": {"maxNumSeqs": 128, "maxNumBatchedTokens": 2048},
            "tuning": {"mode": "Auto"},
        },
        "status": {"conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted"}]},
    }


def pod(number: int, port: int) -> dict[str, Any]:
    """A Ready pod with that control port, as the API server shows it."""
    owner = number // PODS
    engine = {"name": names.CONTAINER_ENGINE, "containerID": f"containerd://{number}", "restartCount": 0}
    control = {"name": names.PORT_CONTROL, "containerPort": port, "protocol": "TCP"}
    return {
        "metadata": {
            "name": f"chat-{owner}-{number % PODS}",
            "namespace": NAMESPACE,
            "uid": f"90d00000-0000-4000-8000-{number:012d}",
            "resourceVersion": "1",
            "labels": {names.LABEL_SERVICE_UID: uid_of(owner), names.LABEL_SERVICE: f"chat-{owner}"},
            "ownerReferences": [{"uid": f"replicas-{owner}", "controller": True}],
        },
        "spec": {"containers": [{"name": engine["name"], "ports": [control]}]},
        "status": {
            "podIP": address_of(number),
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [engine],
        },
    }


def know_pods(cache: Cache, count: int, port: int) -> None:
    """Put so many pods into the cache, and what leads from them to their services."""
    owners = range(math.ceil(count / PODS))
    cache.replace_deployments([_between(f"deployment-{owner}", owner, uid_of(owner)) for owner in owners], 1)
    cache.replace_replica_sets([_between(f"replicas-{owner}", owner, f"deployment-{owner}") for owner in owners], 1)
    cache.replace_pods([pod(number, port) for number in range(count)], 1)


def _between(uid: str, owner: int, controller: str) -> dict[str, Any]:
    owners = [{"uid": controller, "controller": True}]
    metadata = {"name": f"chat-{owner}", "namespace": NAMESPACE, "uid": uid, "ownerReferences": owners}
    return {"metadata": metadata}


@dataclass
class InMemoryCluster:
    """The API server, who leads, and what was said, in memory.

    `all_reported`: seconds until each service had a status, not a number before.
    """

    cache: Cache
    objects: dict[str, dict[str, Any]]
    epoch: int = 1
    writes: int = 0
    events: int = 0
    began: float = field(default_factory=time.monotonic)
    all_reported: float = math.nan
    reported: set[str] = field(default_factory=set)

    def may_act(self) -> bool:
        """Nobody else leads."""
        return True

    def raise_epoch(self, above: int) -> None:
        """Engines say nothing that calls for it."""

    async def apply(self, _resource: object, body: dict[str, Any], **_: object) -> dict[str, Any]:
        """The watch brings back what was written."""
        self.writes += 1
        found = self.objects[body["metadata"]["uid"]]
        kept = [item for item in found["status"]["conditions"] if item["type"] == "Accepted"]
        status = body["status"] | {"conditions": kept + body["status"]["conditions"]}
        metadata = found["metadata"] | {"resourceVersion": str(int(found["metadata"]["resourceVersion"]) + 1)}
        written = found | {"status": status, "metadata": metadata}
        self.objects[metadata["uid"]] = written
        self.reported.add(metadata["uid"])
        if math.isnan(self.all_reported) and len(self.reported) == len(self.objects):
            self.all_reported = time.monotonic() - self.began
        self.cache.observe_service(written, deleted=False)
        return written

    def tuned(self) -> int:
        """Services whose engines run under the law's limits."""
        conditions = (item for found in self.objects.values() for item in found["status"]["conditions"])
        return sum(item["type"] == "Tuned" and item["status"] == "True" for item in conditions)

    # What is posted is that of the protocol, whose parameter has the name of the API's field.
    async def post(self, service: object, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002, ARG002 – see above
        """Count what is said."""
        self.events += 1


@dataclass
class Metered:
    """The operator's reader, with what the ticks between two reads took (implements `tuner.SignalReader`)."""

    reader: PrometheusReader
    client: Counting
    prometheus: int
    around: InMemoryCluster
    before: dict[str, float] = field(default_factory=dict)
    row: dict[str, float] = field(default_factory=dict)

    async def read(self, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        """Say what was taken since the read before, and read."""
        now = {
            "wall": time.monotonic(),
            "operator": time.process_time(),
            "prometheus": _processor(self.prometheus),
            "writes": float(self.around.writes),
            "queries": float(self.client.queries),
        }
        if self.before:
            taken = {f"{name} of the tick": now[name] - self.before[name] for name in now}
            tuned = {"tuned": self.around.tuned(), "seconds to all reports": self.around.all_reported}
            print(json.dumps({**taken, **self.row, **tuned, **_memory()}), flush=True)
        self.before = now
        found = await self.reader.read(pods)
        seen = sum(isinstance(observation, Signals) for observation in found.values())
        self.row = {"observed": seen, "of": len(pods)}
        return found

    async def attainment(self) -> Mapping[Identity, Attainment | Unobserved] | Unobserved:
        """Read, which is the end of reading."""
        found = await self.reader.attainment()
        self.row["read seconds"] = time.monotonic() - self.before["wall"]
        self.row["operator while it reads"] = time.process_time() - self.before["operator"]
        self.row["prometheus while it reads"] = _processor(self.prometheus) - self.before["prometheus"]
        return found

    async def pod_outcomes(self, windows: Mapping[Identity, int]) -> Mapping[Identity, PodOutcomes | Unobserved]:
        """Read."""
        return await self.reader.pod_outcomes(windows)


class Counting(PrometheusClient):
    """A client that counts its queries."""

    queries = 0

    def query(self, text: str, at: float | None = None) -> Any:
        """As the client has it."""
        self.queries += 1
        return super().query(text, at)


def _processor(process: int) -> float:
    """Processor seconds of a process until now."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory() -> dict[str, float]:
    text = Path("/proc/self/status").read_text()
    found = {name: re.search(rf"{name}:\s+(\d+) kB", text) for name in ("VmRSS", "VmHWM")}
    return {f"{name} MiB": int(match[1]) / 1024 for name, match in found.items() if match is not None}


async def _work(asked: argparse.Namespace) -> None:
    cache = Cache()
    objects = {uid_of(number): service(number) for number in range(asked.services)}
    cache.replace_services(objects.values(), 1)
    know_pods(cache, PODS * asked.services, asked.port)
    around = InMemoryCluster(cache, objects)
    client = Counting(asked.url, timeout=READ_SECONDS)
    with closing(PrometheusReader(client, timeout=READ_SECONDS)) as reader:
        async with engine_session() as session:
            signer = Signer(Ed25519PrivateKey.generate())
            engines = EngineClient(
                session, lambda: [signer], may_act=around.may_act, wall=time.time, clock=time.monotonic
            )
            api = cast("KubeApi", around)
            dependencies = Dependencies(
                client=engines,
                leadership=around,
                writer=TunerStatus(api, clock=time.monotonic, now=lambda: datetime.now(UTC)),
                events=around,
                metrics=TunerMetrics(CollectorRegistry()),
                wall=time.time,
                clock=time.monotonic,
            )
            metered = Metered(reader, client, asked.prometheus, around)
            tuner = Tuner(
                services=CachedServices(cache), reader=metered, dependencies=dependencies, tick_seconds=TICK_SECONDS
            )
            await tuner.run()


def main() -> None:
    """Work until it is ended."""
    parser = argparse.ArgumentParser(description=f"contract {CONTRACT_VERSION}")
    parser.add_argument("--url", required=True)
    parser.add_argument("--prometheus", type=int, required=True, help="its process")
    parser.add_argument("--services", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    collect_garbage_seldom()
    asyncio.run(_work(asked))


if __name__ == "__main__":
    main()
