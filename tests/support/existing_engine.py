"""A plain Deployment of vLLM, which others make, and the service that tunes it by a label."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from flyball_lab.harness import cpu_image
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.cluster import Object, apply, dry_created, items
from support.live import MODEL, Flyball, Service, in_time

#: Of the service and the Deployment.
NAME = "llm"
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


def ask(flyball: Flyball) -> Existing:
    """Ask for the service, and then for the Deployment. The release has the policy (`inject.enabled`)."""
    service = example("service")
    service["spec"]["objectives"] = in_time("5s", "500ms")
    apply(service, namespace=flyball.watched)
    deployment = plain_deployment(flyball.refs["engine-cpu"])
    expect_injection(deployment, flyball.watched)
    apply(deployment, namespace=flyball.watched)
    return Existing(NAME, flyball.watched)
