"""What must hold at every moment, whatever fails: looked at once a second beside a scenario."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from subprocess import SubprocessError
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from flyball_operator.api.names import LABEL_SERVICE_UID
from support.cluster import Object
from support.growth import Sample
from support.live import RELEASE, Flyball, Service, scrape
from support.node import held

#: Of the service's start: its limits stay between one and these.
CEILINGS = {"max_num_active_seqs": 64, "max_num_scheduled_tokens": 2048}
#: Looks between two at what the operators hold.
EVERY = 10
#: What does not answer says nothing: a fault is on.
_UNANSWERED = (
    OSError,
    AssertionError,
    SubprocessError,
    KeyError,
    IndexError,
    ValueError,
    client.ApiException,
    HTTPError,
)


@dataclass
class Watch:
    """Looks at a service's pod, its engine and the operators. `broken`: what did not hold, in words.

    `kills`: how often the engine was killed, and so may have been restarted. `checks`: how often each was looked at.
    `held`: what the operators hold, by name of the figure.
    """

    service: Service
    flyball: Flyball
    broken: list[str] = field(default_factory=list)
    checks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("pod", "engine", "leaders", "held"), 0))
    held: dict[str, list[Sample]] = field(default_factory=lambda: {"memory": [], "tasks": [], "files": []})
    kills: int = 0
    _last: tuple[int, int] = (0, 0)
    _end: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._api = client.CoreV1Api(config.new_client_from_config())  # type: ignore[no-untyped-call]
        self._chosen = f"{LABEL_SERVICE_UID}={self.service.uid}"
        status = self.service.pod()["status"]["containerStatuses"][0]
        self._uid, self._restarts = self.service.pod()["metadata"]["uid"], status["restartCount"]

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look once a second while the block lasts."""
        thread = threading.Thread(target=self._look_on, name="invariants")
        thread.start()
        try:
            yield
        finally:
            if not thread.is_alive():
                self._breaks("nobody looked on: an error ended the looks")
            self._end.set()
            thread.join()

    def _look_on(self) -> None:
        looks = 0
        while not self._end.wait(1.0):
            looks += 1
            for look in (
                self._look_at_pod,
                self._look_at_leaders,
                *((self._look_at_held,) if not looks % EVERY else ()),
            ):
                with suppress(*_UNANSWERED):
                    look()

    def _breaks(self, what: str) -> None:
        self.broken.append(f"{time.strftime('%H:%M:%S')} {what}")

    def _look_at_pod(self) -> None:
        pods = self._pods(self.service.namespace, self._chosen)
        pod = next((pod for pod in pods if pod["metadata"]["uid"] == self._uid), None)
        self.checks["pod"] += 1
        if pod is None or len(pods) > 1 or "deletionTimestamp" in pod["metadata"]:
            self._breaks(f"pods are {[one['metadata']['name'] for one in pods]}, not the one from the start")
            return
        restarts = pod["status"]["containerStatuses"][0]["restartCount"] - self._restarts
        if restarts > self.kills:
            self._breaks(f"the engine was restarted {restarts} times, and killed {self.kills} times")
            self._restarts += 1
        self._look_at_engine(self.service.read_back(pod)["cores"][0])

    def _look_at_engine(self, core: Object) -> None:
        self.checks["engine"] += 1
        for knob, ceiling in CEILINGS.items():
            if not 1 <= core["effective"][knob] <= ceiling:
                self._breaks(f"{knob} is {core['effective'][knob]}, outside of 1 to {ceiling}")
        # An engine that was started anew has none yet.
        if (applied := core["applied"]) is None:
            return
        epoch, generation = applied["epoch"], applied["generation"]
        if epoch < self._last[0] or generation < self._last[1]:
            self._breaks(f"(epoch, generation) fell from {self._last} to {(epoch, generation)}")
        self._last = epoch, generation

    def _look_at_leaders(self) -> None:
        pods = self._operators()
        # Twice: between two questions one may have given the Lease to the other.
        leading = [pod for pod in pods if _figure(pod, "flyball_operator_leader")]
        self.checks["leaders"] += 1
        if len(leading) > 1 and all(_figure(pod, "flyball_operator_leader") for pod in leading):
            self._breaks(f"{[pod['metadata']['name'] for pod in leading]} all say that they lead")

    def _look_at_held(self) -> None:
        for pod in self._operators():
            now = held(pod, container="operator")
            figures = {"memory": now.memory, "tasks": _figure(pod, "flyball_operator_tasks"), "files": now.files}
            self.checks["held"] += 1
            for name, figure in figures.items():
                life = pod["status"]["containerStatuses"][0]["containerID"]
                self.held[name].append(Sample(life, now.age, figure))

    def _operators(self) -> list[Object]:
        pods = self._pods(self.flyball.namespace, f"app.kubernetes.io/instance={RELEASE}")
        return [pod for pod in pods if all(one["ready"] for one in pod["status"]["containerStatuses"])]

    def _pods(self, namespace: str, chosen: str) -> list[Object]:
        answer: Any = self._api.list_namespaced_pod(
            namespace, label_selector=chosen, _preload_content=False, _request_timeout=5
        )
        found: list[Object] = json.loads(answer.data)["items"]
        return found


def _figure(pod: Object, name: str) -> float:
    """One of an operator's own figures."""
    return next(float(line.split()[1]) for line in scrape(pod, 8080).splitlines() if line.startswith(f"{name} "))
