"""Three installations on the cluster whose services are well, until outages begin (`outages.py`).

Pods run the simulated engine. The first installation serves all that can break beside others. The second is to lose
Prometheus, one of its namespaces and a ConfigMap of another. The third is there to be scaled to nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from flyball_lab.harness.prometheus_api import PrometheusApi
from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from flyball_lab.simulator.presets import PRESETS
from support.cluster import Object, apply, get, kubectl
from support.live import MODEL, PROMPTS, RELEASE, RESOURCE, Flyball, Service, helm
from support.node import on_node
from support.simulated_pods import simulated_service, simulator

PRESET: Final = PRESETS["cpu-small"]
WORK: Final = f"{RELEASE}-work"
SECOND: Final = f"{RELEASE}-second"
THIRD: Final = f"{RELEASE}-third"
#: Namespaces of the second: of a service, of nobody's rights, and of somebody else's ConfigMap.
UNSEEN, REVOKED, KEYLESS = (f"{SECOND}-{name}" for name in ("unseen", "revoked", "keyless"))
_MONITORS: Final = {"podMonitor": {"operator": True, "engines": True, "labels": {"release": "kube-prometheus-stack"}}}
_RULES: Final = {"prometheusRule": {"enabled": True, "labels": {"release": "kube-prometheus-stack"}}}
PROMETHEUS: Final = {"url": "http://prometheus-operated.monitoring:9090"}
#: Values of the release whose rules are loaded.
OBSERVED: Final[Mapping[str, Any]] = {"prometheus": PROMETHEUS, "metrics": {**_MONITORS, **_RULES}}
#: How much slower an engine is that few requests are to overload, and within how many seconds a first token shall come.
#: A client leaves after twice as long, and comes again.
_SLOWER: Final = 2.0
DEADLINE: Final = 3.0


@dataclass
class Scene:
    """The installations, their Prometheus, and the loads of services by their names."""

    first: Flyball
    second: Flyball
    third: Flyball
    prometheus: PrometheusApi
    loads: dict[str, ExitStack] = field(default_factory=dict)

    def load(self, name: str, streams: int, **more: float) -> None:
        """Let so many clients ask a service from now on, in place of those before."""
        self.end_load(name)
        load = StreamLoad(
            url=service(name).url(), model=MODEL, concurrency=streams, prompt_tokens=PROMPTS, max_tokens=16, **more
        )
        self.loads[name] = ExitStack()
        self.loads[name].enter_context(load.running())

    def end_load(self, name: str) -> None:
        """Nobody asks the service any more."""
        if (load := self.loads.pop(name, None)) is not None:
            load.close()


def service(name: str, namespace: str = WORK) -> Service:
    """A service by its name."""
    return Service(name, namespace)


@contextmanager
def another(like: Flyball, release: str, *namespaces: str) -> Iterator[Flyball]:
    """One more installation, which watches these namespaces; all of it is made here, and removed at the end."""
    home = f"{release}-system"
    watched = [*namespaces] or [home]
    flyball = Flyball(
        namespace=home,
        watched=watched[0],
        refs=like.refs,
        release=release,
        values={
            "crds": {"install": False},
            "prometheus": PROMETHEUS,
            "metrics": _MONITORS,
            "watch": {"scope": "Namespaced", "namespaces": watched},
        },
    )
    every = [home, *namespaces]
    _remove(release, home, every)
    eventually(lambda: not any(get("namespace", one, namespace=one) for one in every), expecting="no remnants")
    try:
        for one in every:
            kubectl("create", "namespace", one)
        flyball.install()
        yield flyball
    finally:
        _remove(release, home, every)


def _remove(release: str, home: str, namespaces: Sequence[str]) -> None:
    for one in namespaces:
        with suppress(AssertionError):
            kubectl("delete", RESOURCE, "--all", "-n", one, "--timeout=60s", timeout=90)
    helm("uninstall", release, "-n", home, "--ignore-not-found")
    kubectl("delete", "namespace", *namespaces, "--ignore-not-found", "--wait=false")


def asked(name: str, image: str, **spec: Any) -> Object:
    """A service of one simulated pod."""
    found = simulated_service(name, PRESET, image=image, objectives=_first_tokens("99"))
    found["spec"] |= spec
    return found


def _first_tokens(target: str) -> list[Object]:
    return [{"name": "ttft", "metric": "TimeToFirstToken", "threshold": f"{DEADLINE:g}s", "target": target}]


def serve(scene: Scene) -> None:
    """All services that are well at first, until they are, and nothing is about to fire."""
    image = scene.first.refs["engine-cpu"]
    for namespace in (WORK, UNSEEN):
        apply(simulator(PRESET, start_seconds=0.0), namespace=namespace)
    shed = {"mode": "Auto", "overload": "Shed"}
    healthy: Sequence[tuple[str, Object]] = (
        # With 1 % to miss, requests that correct a wrong model would count as a slow burn.
        (WORK, asked("shedding", image, tuning=shed, objectives=_first_tokens("90"))),
        (WORK, asked("queueing", image)),
        (WORK, asked("edited", image, rollout={"startupTimeout": "3m", "drainTimeout": "5s"})),
        *((WORK, asked(name, image)) for name in ("well", "unscraped", "closed", "paused", "unrouted")),
        (UNSEEN, asked("unseen", image)),
    )
    for namespace, one in healthy:
        apply(one, namespace=namespace)
    for namespace, one in healthy:
        service(one["metadata"]["name"], namespace).expect_governed()
    for name in ("shedding", "queueing"):
        address = f"http://{service(name).pod()['status']['podIP']}:8000/simulator/slow-down"
        on_node("curl", "-sf", "-X", "PUT", "-H", "content-type: application/json", "-d",
                json.dumps({"factor": _SLOWER}), address)  # fmt: skip
        scene.load(name, 2, pause=2.0)
    scene.load("well", 1, pause=2.0)
    for namespace, one in healthy:
        service(one["metadata"]["name"], namespace).expect_condition("MetricsAvailable", "True", within=600)
    for name in ("shedding", "queueing"):
        service(name).expect_condition("CapacitySufficient", "True", within=600)
