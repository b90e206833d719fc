"""A plain Deployment of vLLM, which others make, and the service that tunes it by a label."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from flyball_lab.harness import cpu_image
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from support.audit import Audit
from support.cluster import Object, apply, delete, dry_created, get, items, kubectl, patch
from support.live import ENGINE_START_SECONDS, MODEL, RESOURCE, Flyball, Service, in_time, scrape

#: Of the service and the Deployment.
NAME = "llm"
EXAMPLES = ROOT / "docs/examples/existing-engines"
#: What the engine is started with, as in the example: room enough that an objective bounds a batch, and not this.
START = {"max_num_active_seqs": 256, "max_num_scheduled_tokens": 2048}
#: What the owner of the engines has.
_OWNED = ("deployments", "replicasets", "pods")
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
        """The pod that is not on its way out, whether or not it is the service's."""
        found = items("pods", namespace=self.namespace, selector=f"app={self.name}")
        (staying,) = (pod for pod in found if "deletionTimestamp" not in pod["metadata"])
        return staying

    def limits(self) -> dict[str, int]:
        """What the engine runs under."""
        effective = self.read_back(self.theirs())["cores"][0]["effective"]
        return {knob: int(effective[knob]) for knob in START}

    def expect_start_values(self) -> None:
        """Wait until the engine is as it was started."""
        eventually(lambda: self.limits() == START, expecting="the engine's start values", within=60)

    def expect_stock(self) -> None:
        """The pod is as it would be without Flyball, and so is its engine."""
        pod = self.theirs()
        assert not {names.LABEL_SERVICE, names.LABEL_SERVICE_UID} & pod["metadata"]["labels"].keys()
        assert "initContainers" not in pod["spec"]
        metrics = scrape(pod, 8000)
        assert "vllm:num_requests_running" in metrics
        assert "flyball" not in metrics

    def label_template(self, service: str | None) -> None:
        """As its owner labels the Deployment's pod template, or takes the label away: its pods are made anew."""
        labels = {"metadata": {"labels": {names.LABEL_SERVICE: service}}}
        patch("deployment", self.name, {"spec": {"template": labels}}, namespace=self.namespace)

    def expect_rolled_out(self) -> None:
        """Wait until the Deployment's pods are those of its newest template, and Ready."""
        seconds = ENGINE_START_SECONDS
        status = ("rollout", "status", f"deployment/{self.name}", f"--timeout={seconds:.0f}s", "-n", self.namespace)
        kubectl(*status, timeout=seconds + 30)

    def expect_unwritten(self, audit: Audit) -> None:
        """Of the owner's objects Flyball wrote none, by the audit log and by who manages their fields."""
        theirs = get("deployment", self.name, namespace=self.namespace, managed=True)
        assert theirs is not None
        assert not [entry for entry in theirs["metadata"]["managedFields"] if "flyball" in entry["manager"]]
        written = audit.writes(self.namespace)
        assert any(write.resource == "inferenceservices" and write.name == self.name for write in written)
        assert not [write for write in written if write.name.startswith(self.name) and write.resource in _OWNED]

    def remove(self) -> None:
        """Delete the service and the Deployment."""
        delete(RESOURCE, self.name, namespace=self.namespace)
        delete("deployment", self.name, namespace=self.namespace)


def plain_deployment(name: str, image: str) -> Object:
    """The example with the CPU engine: its image's own command, one small pod that the namespace admits."""
    deployment = example("deployment")
    deployment["metadata"]["name"] = name
    deployment["spec"]["replicas"] = 1
    deployment["spec"]["selector"] = {"matchLabels": {"app": name}}
    deployment["spec"]["template"]["metadata"]["labels"] = {"app": name, names.LABEL_SERVICE: name}
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
            f"--max-num-seqs={START['max_num_active_seqs']}",
            f"--max-num-batched-tokens={START['max_num_scheduled_tokens']}",
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


def ask(flyball: Flyball, name: str = NAME, *, labelled: bool = True) -> Existing:
    """Ask for the service, and then for the Deployment. The release has the policy (`inject.enabled`).

    `labelled`: the pod template names the service from the beginning.
    """
    service = example("service")
    service["metadata"]["name"] = name
    service["spec"]["workload"]["selector"] = {"matchLabels": {"app": name}}
    service["spec"]["objectives"] = in_time("5s", "500ms")
    apply(service, namespace=flyball.watched)
    deployment = plain_deployment(name, flyball.refs["engine-cpu"])
    expect_injection(deployment, flyball.watched)
    if not labelled:
        del deployment["spec"]["template"]["metadata"]["labels"][names.LABEL_SERVICE]
    apply(deployment, namespace=flyball.watched)
    return Existing(name, flyball.watched)
