"""Leaders that keep a signing key, and engines that are brought its public half by a kubelet, in memory."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

from flyball_engine.contract import CONTROL_PORT, MOST_PUBLIC_KEYS
from flyball_engine.control.tokens import load_public_keys
from flyball_engine.signing import Signer, make_key
from flyball_lab.harness.manifests import good
from flyball_operator.api import names
from flyball_operator.api.parse import parse_service
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.engines.client import Address
from flyball_operator.engines.errors import UnreachableError
from flyball_operator.keys.public_keys import PublicKeys
from flyball_operator.keys.rotation import ROUND_SECONDS, KeyRotation, KeySettings
from flyball_operator.keys.trial import Engines
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ClusterError, ForbiddenError
from flyball_operator.kube.events import EventPoster
from flyball_operator.kube.resources import CONFIG_MAPS, EVENTS, SECRETS, Resource
from flyball_operator.tuning.ports import EnginePod
from support.memory_api import CrashError, MemoryApi, Object

HOME, SECRET = "flyball-system", "flyball-signing-key"
PERIOD = timedelta(hours=720)
#: Seconds from a change of a ConfigMap to the pods that mount it.
SYNC_SECONDS = 60.0


class GuardedApi:
    """A process's way to the API server. `error`: its answer to everything; `forbidden`: namespaces without rights."""

    def __init__(self, api: MemoryApi) -> None:
        self.api = api
        self.error: ClusterError | None = None
        self.forbidden: set[str] = set()
        self.secret_reads = 0

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        self.secret_reads += resource is SECRETS
        self._check(resource, namespace)
        return await self.api.get(resource, namespace, name)

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        self._check(resource, namespace)
        return await self.api.create(resource, namespace, body)

    async def apply(self, resource: Resource, body: Object) -> Object:
        self._check(resource, body["metadata"]["namespace"])
        return await self.api.apply(resource, body)

    async def json_patch(self, resource: Resource, namespace: str, name: str, patch: Sequence[Object]) -> Object:
        self._check(resource, namespace)
        return await self.api.json_patch(resource, namespace, name, patch)

    def _check(self, resource: Resource, namespace: str) -> None:
        if self.error is not None:
            raise self.error
        if namespace in self.forbidden and resource is CONFIG_MAPS:
            raise ForbiddenError(f"configmaps in {namespace}")


@dataclass
class Engine:
    """One in a pod of a namespace. `frozen`: its kubelet brings nothing any more. `key`: of its template, if any.

    `mounted`: whether its template has the volume with the public keys.
    """

    namespace: str
    name: str = "chat-0"
    frozen: bool = False
    key: str = ""
    mounted: bool = True
    silent: bool = False
    ready: bool = True
    file: str = ""
    ip: str = "10.0.0.1"
    port: int = CONTROL_PORT

    @property
    def uid(self) -> str:
        return f"{self.namespace}-{self.name}"

    def accepts(self, signer: Signer) -> bool:
        """The file counts alone while there is one."""
        return signer.public_pem in (self.file or self.key)

    def pod(self) -> EnginePod:
        return EnginePod(
            name=self.name, uid=self.uid, ip=self.ip, ready=self.ready, container_id="", restarts=0,
            namespace=self.namespace, control_port=self.port,
        )  # fmt: skip


@dataclass
class KeyWorld:
    """A Secret as the chart leaves it, a leader, and one service with one engine in each namespace."""

    namespaces: tuple[str, ...] = ("team-a", "team-b")
    period: timedelta = PERIOD
    api: MemoryApi = field(default_factory=MemoryApi)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    clock: float = 1000.0
    leads: bool = True
    holds: bool = True
    """Whether the leader has the leases of the namespaces, without which it acts in none."""
    asked: Engines | None = None
    """Who asks engines in place of this world."""

    def __post_init__(self) -> None:
        self.way = GuardedApi(self.api)
        self.engines = [Engine(namespace) for namespace in self.namespaces]
        self.refused: list[str] = []
        self._changed: dict[str, tuple[str, float]] = {}
        self.fill({})
        self.start()

    # What people and the chart do

    def fill(self, data: dict[str, str]) -> None:
        """Set the Secret's data."""
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
        self.api.put(SECRETS, {"metadata": {"name": SECRET, "namespace": HOME}, "data": encoded})

    def data(self) -> dict[str, str]:
        """The Secret's data."""
        found = self.api.one(SECRETS, SECRET, namespace=HOME).get("data") or {}
        return {name: base64.b64decode(text).decode() for name, text in found.items()}

    def published(self, namespace: str) -> str:
        """What the ConfigMap of a namespace holds; empty where there is none."""
        found = self.api.find(CONFIG_MAPS, namespace=namespace)
        return found[0]["data"][names.PUBLIC_KEYS_KEY] if found else ""

    def events(self, namespace: str) -> list[tuple[str, str]]:
        """Reason and message of each."""
        return [(one["reason"], one["message"]) for one in self.api.find(EVENTS, namespace=namespace)]

    # What the operator does

    def start(self) -> None:
        """A leader that knows nothing yet."""
        api = cast("KubeApi", self.way)
        self.public = PublicKeys(
            api,
            services=lambda: [service.metadata for service in self.all() if self.holds],
            events=EventPoster(
                api,
                instance="pod-1",
                clock=lambda: self.clock,
                now=lambda: self.now,
                new_id=lambda: str(self.api.writes),
            ),
            clock=lambda: self.clock,
        )
        self.rotation = KeyRotation(
            api,
            self.public,
            where=KeySettings(HOME, SECRET, self.period),
            services=self,
            rotates=lambda: self.leads,
            now=lambda: self.now,
            clock=lambda: self.clock,
            make=make_key,
        )

    def all(self) -> Sequence[InferenceService]:
        """One service a namespace."""
        return [
            parse_service(
                good(metadata__namespace=namespace)
                | {"metadata": {"name": "chat", "namespace": namespace, "uid": namespace, "resourceVersion": "1"}}
            )
            for namespace in self.namespaces
        ]

    def pods(self, service_uid: str) -> Sequence[EnginePod]:
        """Its engines' pods."""
        return [engine.pod() for engine in self.engines if engine.namespace == service_uid]

    def pods_of_one_key(self) -> Sequence[str]:
        """Pods that take no other key."""
        return [f"{engine.namespace}/{engine.pod().name}" for engine in self.engines if not engine.mounted]

    async def accepts(self, address: Address, signer: Signer, *, service: str) -> bool:
        """The answer of an engine."""
        (engine,) = (one for one in self.engines if one.uid == address.key)
        assert engine.namespace == service
        if engine.silent:
            raise UnreachableError("no connection")
        return engine.accepts(signer)

    async def look(self) -> None:
        """One look, after which a crashed leader is followed by another; and a setpoint to each engine."""
        try:
            await self.rotation.look(self.asked or self)
        except CrashError:
            self.start()
        self._check()

    async def pass_time(self, seconds: float) -> None:
        """Look every few seconds, while the kubelets do their work."""
        for _ in range(int(seconds / ROUND_SECONDS)):
            await self.look()
            self.skip(ROUND_SECONDS)
            self._bring()

    def skip(self, seconds: float) -> None:
        """Let time pass in which nobody looks."""
        self.now += timedelta(seconds=seconds)
        self.clock += seconds

    def _bring(self) -> None:
        for engine in self.engines:
            text = self.published(engine.namespace)
            seen, since = self._changed.get(engine.uid, ("", 0.0))
            if text != seen:
                self._changed[engine.uid] = (text, self.clock)
            elif engine.mounted and not engine.frozen and self.clock - since >= SYNC_SECONDS:
                engine.file = text

    def _check(self) -> None:
        for namespace in self.namespaces:
            text = self.published(namespace)
            assert not text or len(load_public_keys(text)) <= MOST_PUBLIC_KEYS
            assert "PRIVATE" not in text
        signers = self.rotation.signers()
        for engine in self.engines:
            if (engine.file or engine.key) and signers and not any(map(engine.accepts, signers)):
                self.refused.append(engine.uid)


def public(pem: str) -> str:
    """The public half of a private key."""
    return Signer.parse(pem.encode(), "key").public_pem
