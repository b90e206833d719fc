"""Flyball installed by its chart on the local cluster, and an InferenceService of the CPU engine on it.

Everything carries names of this run; what an earlier, killed run left is removed first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyball_engine.contract import MetricName, ObjectiveSpec, Refusal
from flyball_lab.harness import cpu_image
from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_operator.api.names import GROUP, LABEL_SERVICE_UID, PLURAL
from support import remnants
from support.audit import Audit
from support.cluster import Object, apply, condition, delete, get, items, kubectl

#: Full resource name: KServe's kind has the same one.
RESOURCE = f"{PLURAL}.{GROUP}"
MODEL = "chat"
#: The API that a long test has served for a while.
EXTERNAL_METRICS = "v1beta1.external.metrics.k8s.io"
#: Tokens of prompts and answers of a load of all sizes.
PROMPTS: tuple[int, ...] = (1400, 200, 900, 60)
ANSWER = 16
RELEASE = "flyball-e2e"
#: Name of the service whose overload is shed, and within how many seconds its first tokens shall come: the load beyond
#: it leaves that to no engine on one core. What clients and the cluster take of the processors then hardly matters.
SHEDDING = "shedding"
SHEDDING_DEADLINE = 6.0
#: Two engines are up in a minute or so on an idle machine; this is for a busy one.
ENGINE_START_SECONDS = 600.0


def images(*names: str, root: Path = ROOT) -> dict[str, str]:
    """References of these images (`operator`, `plugin`, `engine-cpu`; all), built and imported if they are not yet."""
    done = subprocess.run(
        [root / "hack/images", *(names or ("all",))], stdout=subprocess.PIPE, text=True, check=True, timeout=1800
    )
    return dict(line.split("=", 1) for line in done.stdout.split())


def helm(*args: str, stdin: str | None = None) -> str:
    """Run helm; its error output is the message of the failure."""
    done = subprocess.run(["helm", *args], input=stdin, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.strip()
    return done.stdout


@dataclass
class Flyball:
    """An installed release: its own namespace, the one namespace it watches, and the repository it is made from."""

    namespace: str
    watched: str
    refs: dict[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    release: str = RELEASE
    root: Path = ROOT
    audit: Audit = field(default_factory=Audit)

    def install(self, **changes: Any) -> None:
        """`helm upgrade --install` with these values on top of the run's, and wait for the operator."""
        self.values |= changes
        chart = str(self.root / "charts/flyball")
        helm(
            "upgrade", "--install", self.release, chart, "-n", self.namespace, "--take-ownership",
            "--force-conflicts", "--wait", "--timeout", "5m", "-f", "-", stdin=json.dumps(self._values()),
        )  # fmt: skip

    def _values(self) -> dict[str, Any]:
        operator, plugin = (_split(self.refs[name]) for name in ("operator", "plugin"))
        return {
            "image": operator,
            "plugin": {"image": plugin},
            "prometheus": {"url": "http://prometheus.monitoring:9090"},
            "watch": {"scope": "Namespaced", "namespaces": [self.watched]},
        } | self.values

    def operator_pods(self) -> list[Object]:
        """The operator's pods that are not on their way out."""
        pods = items("pods", namespace=self.namespace, selector=f"app.kubernetes.io/instance={self.release}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    @contextmanager
    def away(self) -> Iterator[None]:
        """The operator scaled to nothing for as long as the block lasts."""
        selector = f"app.kubernetes.io/instance={self.release}"
        scale = ("scale", "deployment", "-n", self.namespace, "-l", selector)
        kubectl(*scale, "--replicas=0")
        try:
            eventually(lambda: not self.operator_pods(), expecting="no operator")
            yield
        finally:
            kubectl(*scale, "--replicas=1")

    def leader(self) -> str:
        """Name of the pod that holds the lease; empty when nobody does."""
        leases = items("leases.coordination.k8s.io", namespace=self.namespace)
        holders = [(lease["spec"].get("holderIdentity") or "") for lease in leases]
        return next((holder.split("_")[0] for holder in holders if holder), "")

    def refused(self) -> list[str]:
        """What the API server refused to the operator's account for want of rights or by a policy, by the audit log."""
        account = f"system:serviceaccount:{self.namespace}:"
        return [
            f"{line['verb']} {line['requestURI']}"
            for line in self.audit.entries(account)
            if line["user"]["username"].startswith(account) and _is_refused(line.get("responseStatus", {}))
        ]

    def writes(self) -> list[tuple[str, str]]:
        """(pod, resource) of every write but Leases and Events, in the order the API server took them."""
        account = f"system:serviceaccount:{self.namespace}:"
        found = []
        for entry in self.audit.entries(account):
            resource = (entry.get("objectRef") or {}).get("resource", "")
            verb = entry["verb"] in ("create", "update", "patch", "delete")
            if entry["user"]["username"].startswith(account) and verb and resource not in ("leases", "events", ""):
                pods = entry["user"].get("extra", {}).get("authentication.kubernetes.io/pod-name", ["?"])
                if not resource.startswith("selfsubject"):
                    found.append((pods[0], resource))
        return found

    def logs(self) -> str:
        """Everything the operator's running pods logged."""
        return "\n".join(
            kubectl("logs", pod["metadata"]["name"], "-n", self.namespace, "--tail=-1") for pod in self.operator_pods()
        )


def _is_refused(status: Object) -> bool:
    """For want of rights, reads too, or by a ValidatingAdmissionPolicy."""
    return status.get("code") == 403 or "ValidatingAdmissionPolicy" in status.get("message", "")


def scrape(pod: Object, port: int) -> str:
    """The metrics of a pod, as Prometheus would read them."""
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{port}/metrics", timeout=30) as response:
        text: str = response.read().decode()
    return text


def _split(ref: str) -> dict[str, str]:
    repository, tag = ref.rsplit(":", 1)
    registry, _, name = repository.partition("/")
    return {"registry": registry, "repository": name, "tag": tag}


@contextmanager
def installed(**values: Any) -> Iterator[Flyball]:
    """Flyball in namespaces of this run, removed at the end with all it made: then nobody waits for the last pod."""
    remove_remnants(wait=True)
    flyball = Flyball(namespace=f"{RELEASE}-system", watched=f"{RELEASE}-work", refs=images(), values=values)
    for name, level in ((flyball.namespace, "restricted"), (flyball.watched, "restricted")):
        labels = {"pod-security.kubernetes.io/enforce": level}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    try:
        flyball.install()
        yield flyball
    finally:
        if not os.environ.get("FLYBALL_KEEP"):
            remove_remnants(wait=False)


def remove_remnants(*, wait: bool) -> None:
    """Remove what a run of these tests made, also one that was killed half-way. `wait`: until all of it is gone."""
    remnants.sweep()
    # No namespace ends while an API is said to be there and nobody serves it.
    kubectl("delete", "apiservices.apiregistration.k8s.io", EXTERNAL_METRICS, "--ignore-not-found")
    with suppress(AssertionError):
        kubectl("delete", RESOURCE, "--all", "-n", f"{RELEASE}-work", "--ignore-not-found", "--timeout=60s", timeout=90)
    with suppress(AssertionError):
        helm("uninstall", RELEASE, "-n", f"{RELEASE}-system", "--ignore-not-found", *(["--wait"] if wait else []))
    names = (f"{RELEASE}-work", f"{RELEASE}-system")
    kubectl("delete", "namespace", *names, "--ignore-not-found", "--wait=false")
    if wait:
        eventually(lambda: not any(get("namespace", name, namespace=name) for name in names), expecting="no remnants")


def inference_service(name: str = "chat", *, image: str, **spec: Any) -> Object:
    """An InferenceService of the CPU engine, small enough to run beside another."""
    whole: dict[str, Any] = {
        "model": {"uri": "file:///models/tiny", "servedName": MODEL},
        "engine": {
            "image": image,
            "args": ["--max-model-len=2048", *cpu_image.arguments()],
            # One core, whichever is free: engines beside each other would all bind their threads to the same ones.
            "env": [
                {"name": "OMP_NUM_THREADS", "value": "1"},
                {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"},
            ],
        },
        "replicas": 1,
        "objectives": [
            {"name": "ttft", "metric": "TimeToFirstToken", "threshold": "5s", "target": "90"},
            {"name": "tpot", "metric": "TimePerOutputToken", "threshold": "200ms", "target": "90"},
        ],
        "batching": {"maxNumSeqs": 64, "maxNumBatchedTokens": 2048},
        "rollout": {"startupTimeout": "10m", "drainTimeout": "20s"},
        "podTemplate": {"resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "5Gi"}}},
    }
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": whole | spec,
    }


def in_time(first: str, per_token: str) -> list[Object]:
    """The objectives of nine in ten requests: a first token, and the others, within these times."""
    return [
        {"name": "first-token", "metric": "TimeToFirstToken", "threshold": first, "target": "90"},
        {"name": "per-token", "metric": "TimePerOutputToken", "threshold": per_token, "target": "90"},
    ]


def ask_to_shed(flyball: Flyball, name: str, objectives: list[Object]) -> Service:
    """Ask for a service whose overload is shed."""
    tuning = {"mode": "Auto", "overload": "Shed"}
    asked = inference_service(name, image=flyball.refs["engine-cpu"], objectives=objectives, tuning=tuning)
    apply(asked, namespace=flyball.watched)
    return Service(name, flyball.watched)


@contextmanager
def shedding_service(flyball: Flyball, name: str, objectives: list[Object]) -> Iterator[Service]:
    """A service of a scenario's own whose overload is shed, gone at its end."""
    service = ask_to_shed(flyball, name, objectives)
    service.expect_governed()
    yield service
    delete(RESOURCE, name, namespace=service.namespace)


@dataclass(frozen=True)
class Kept:
    """Requests that kept an objective and that did not, by an engine's count."""

    met: int
    violated: int

    def __sub__(self, before: Kept) -> Kept:
        return Kept(self.met - before.met, self.violated - before.violated)

    @property
    def share(self) -> float:
        return self.met / (self.met + self.violated)


@dataclass(frozen=True)
class Service:
    """An InferenceService on the cluster, by name, with what tests ask of it."""

    name: str
    namespace: str

    def read(self) -> Object:
        """The object as the API server has it."""
        found = get(RESOURCE, self.name, namespace=self.namespace)
        assert found is not None, f"InferenceService {self.namespace}/{self.name} is gone"
        return found

    @property
    def uid(self) -> str:
        return str(self.read()["metadata"]["uid"])

    def pods(self) -> list[Object]:
        """Pods of this very service, those on their way out included."""
        return items("pods", namespace=self.namespace, selector=f"{LABEL_SERVICE_UID}={self.uid}")

    def pod(self) -> Object:
        """The one pod that is not on its way out."""
        (pod,) = (pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"])
        return pod

    def url(self) -> str:
        """The OpenAI endpoint behind the Service's cluster IP, which this machine reaches."""
        service = get("service", self.name, namespace=self.namespace)
        assert service is not None
        (port,) = service["spec"]["ports"]
        return f"{port['name']}://{service['spec']['clusterIP']}:{port['port']}"

    def streams(self, concurrency: int, *, pause: float = 0.0) -> StreamLoad:
        """Load of prompts of all sizes, with short answers."""
        return StreamLoad(
            url=self.url(),
            model=MODEL,
            concurrency=concurrency,
            prompt_tokens=PROMPTS,
            max_tokens=ANSWER,
            pause=pause,
        )

    def read_back(self, pod: Object | None = None) -> Object:
        """What the engine of a pod says of its setpoint."""
        ip = (pod or self.pod())["status"]["podIP"]
        with urllib.request.urlopen(f"http://{ip}:8001/v1/setpoint", timeout=30) as response:
            answer: Object = json.load(response)
        return answer

    def effective(self) -> dict[str, int]:
        """The live limits of the one pod's one engine core."""
        limits: dict[str, int] = self.read_back()["cores"][0]["effective"]
        return limits

    def setpoints(self, *outcomes: str) -> int:
        """How many setpoints the one pod's engine counted with these outcomes, such as `expired`."""
        text, wanted = scrape(self.pod(), 8001), "|".join(outcomes)
        found = re.findall(rf'^{MetricName.RETUNES}{{.*outcome="(?:{wanted})".*}} (\S+)$', text, flags=re.MULTILINE)
        return int(sum(map(float, found)))

    def refused_setpoints(self) -> int:
        """How many setpoints the engine refused, such as those of a leader that no longer leads."""
        return self.setpoints(*Refusal)

    def kept(self, objective: ObjectiveSpec) -> Kept:
        """Requests that the one pod's engine has counted against an objective since it was asked for."""
        text = scrape(self.pod(), 8001)
        found = re.findall(
            rf'^{MetricName.OBJECTIVE_REQUESTS}{{objective="{re.escape(objective.id)}",outcome="(\w+)"}} (\S+)$',
            text,
            flags=re.MULTILINE,
        )
        counts = {outcome: float(number) for outcome, number in found}
        return Kept(met=int(counts["met"]), violated=int(counts["violated"]))

    def obeyed_epoch(self) -> int:
        """Epoch of the leader whose setpoint the engine runs under: it rises with each, also when no limit changes."""
        applied = self.read_back()["cores"][0]["applied"]
        return int(applied["epoch"]) if applied else 0

    def tuning(self) -> dict[str, Any]:
        """`status.tuning`."""
        tuning: dict[str, Any] = self.read().get("status", {}).get("tuning", {})
        return tuning

    def condition(self, type_: str) -> Object:
        return condition(self.read(), type_)

    def expect_condition(
        self, type_: str, status: str, *, reason: str | None = None, edited: bool = False, within: float = 120
    ) -> Object:
        """Wait for a condition, by status and if given by reason; of an edited spec, for one that is about the edit."""

        def seen() -> Object | None:
            service = self.read()
            found = condition(service, type_)
            right = found.get("status") == status and (reason is None or found.get("reason") == reason)
            old = edited and found.get("observedGeneration") != service["metadata"]["generation"]
            return found if right and not old else None

        return eventually(seen, expecting=f"{type_}={status} ({reason or 'any reason'}) of {self.name}", within=within)

    def expect_governed(self, *, within: float = ENGINE_START_SECONDS) -> None:
        """Wait until the service serves and every Ready pod confirmed its setpoint."""
        self.expect_condition("Ready", "True", within=within)

        def confirmed() -> bool:
            applied, _, ready = self.tuning().get("appliedPods", "").partition("/")
            return applied == ready != "0" and bool(self.tuning()["generation"])

        eventually(confirmed, expecting=f"every pod of {self.name} confirmed its setpoint")
