"""A plain Deployment of vLLM, which others make: tuned by a label, and given back without a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from flyball_lab.harness import cpu_image
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from support.cluster import Object, apply, delete, dry_created, get, items, kubectl, patch
from support.live import ENGINE_START_SECONDS, MODEL, RESOURCE, Flyball, Service, in_time

pytestmark = pytest.mark.cluster

EXAMPLES = ROOT / "docs/examples/existing-engines"
#: What the engine is started with.
START = {"max_num_active_seqs": 64, "max_num_scheduled_tokens": 2048}
_RESTRICTED = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}


def example(name: str) -> Object:
    """An example of the docs."""
    found: Object = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return found


@dataclass(frozen=True)
class Existing(Service):
    """A service whose pod somebody else made: there is no Service of its name."""

    def url(self) -> str:
        return f"http://{self.theirs()['status']['podIP']}:8000"

    def theirs(self) -> Object:
        """The pod, whether or not it is the service's."""
        (found,) = items("pods", namespace=self.namespace, selector="app=llm")
        return found

    def limits(self) -> dict[str, int]:
        """What the engine runs under."""
        effective = self.read_back(self.theirs())["cores"][0]["effective"]
        return {knob: int(effective[knob]) for knob in START}

    def expect_start_values(self) -> None:
        """Wait until the engine is as it was started."""
        eventually(lambda: self.limits() == START, expecting="the engine's start values", within=60)


def plain_deployment(image: str) -> Object:
    """The example with the CPU engine: its image's own command, one small pod that the namespace admits."""
    deployment = example("deployment")
    deployment["spec"]["replicas"] = 1
    pod = deployment["spec"]["template"]["spec"]
    pod["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}
    pod["volumes"] = [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    (container,) = pod["containers"]
    container |= {
        "image": image,
        "args": [
            "--model=/models/tiny",
            f"--served-model-name={MODEL}",
            "--max-model-len=2048",
            *(f"--{flag}" for flag in ("max-num-seqs=64", "max-num-batched-tokens=2048")),
            *cpu_image.arguments(),
        ],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "5Gi"}},
        "securityContext": _RESTRICTED,
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in (("tmp", "/tmp"), ("shm", "/dev/shm"))],
    }
    return deployment


def expect_injection(deployment: Object, namespace: str) -> None:
    """Wait until the API server knows policy and service: a pod that is made before stays without the plugin."""
    template = deployment["spec"]["template"]
    metadata = {**template["metadata"], "name": "probe"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}

    def injected() -> bool:
        return "initContainers" in dry_created(pod, namespace=namespace).get("spec", {})

    eventually(injected, expecting="the policy brings the plugin into new pods")


@pytest.fixture
def existing(flyball: Flyball) -> Iterator[Existing]:
    """The Deployment and the service that tunes it; both are gone at the end."""
    flyball.install(inject={"enabled": True})
    objectives = in_time("5s", "500ms")
    service = example("service")
    service["spec"]["objectives"] = objectives
    apply(service, namespace=flyball.watched)
    deployment = plain_deployment(flyball.refs["engine-cpu"])
    expect_injection(deployment, flyball.watched)
    apply(deployment, namespace=flyball.watched)
    yield Existing("llm", flyball.watched)
    delete(RESOURCE, "llm", namespace=flyball.watched)
    delete("deployment", "llm", namespace=flyball.watched)


def same_start(service: Existing) -> Callable[[], None]:
    """Checks that the engine was not restarted since."""
    before = _start(service)

    def check() -> None:
        assert _start(service) == before

    return check


def _start(service: Existing) -> tuple[str, Any]:
    pod = service.theirs()
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]


def test_a_plain_deployment_is_tuned_by_a_label_and_given_back_without_a_restart(
    existing: Existing, note_figure: Callable[[str], None]
) -> None:
    existing.expect_governed(within=ENGINE_START_SECONDS)
    not_restarted = same_start(existing)
    assert "does not replace, roll back or scale" in existing.condition("Progressing")["message"]
    with existing.streams(6).running() as load:
        existing.expect_condition("Tuned", "True", within=300)
        change = {"spec": {"objectives": in_time("5s", "100ms")}}
        patch(RESOURCE, existing.name, change, namespace=existing.namespace)

        def smaller() -> bool:
            return any(existing.limits()[knob] < START[knob] for knob in START)

        eventually(smaller, expecting="smaller steps for the objective", within=120)
        note_figure(f"limits of a Deployment of others at an objective of 100 ms for a token: {existing.limits()}")
    assert not load.failures, load.failures[0]

    pod = existing.theirs()["metadata"]["name"]
    uid = existing.uid
    kubectl("label", "pod", pod, f"{names.LABEL_SERVICE}-", f"{names.LABEL_SERVICE_UID}-", "-n", existing.namespace)
    existing.expect_start_values()
    assert pod in existing.expect_condition("Ready", "False", reason="PluginMissing")["message"]
    labels = (f"{names.LABEL_SERVICE}={existing.name}", f"{names.LABEL_SERVICE_UID}={uid}")
    kubectl("label", "pod", pod, *labels, "-n", existing.namespace)
    existing.expect_governed()
    eventually(lambda: existing.limits() != START, expecting="the pod is tuned again", within=120)

    delete(RESOURCE, existing.name, namespace=existing.namespace)
    existing.expect_start_values()
    not_restarted()
    theirs = get("deployment", "llm", namespace=existing.namespace, managed=True)
    assert theirs is not None
    assert not [entry for entry in theirs["metadata"]["managedFields"] if "flyball" in entry["manager"]]
