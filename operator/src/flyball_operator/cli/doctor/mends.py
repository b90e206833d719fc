"""What mends a finding: a command that runs as it stands where there is one, else a step. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flyball_operator.api import names
from flyball_operator.api.objects import Object
from flyball_operator.cli.advice import advice
from flyball_operator.cli.doctor.installation import Operator
from flyball_operator.cli.doctor.reachable import Caller
from flyball_operator.reconcile.plan.cause import CauseReason
from flyball_operator.tuning.observe.signals import Missing
from flyball_operator.tuning.reasons import Reason

#: Of a pod's labels, those that every version of the chart gives it.
_LASTING: Final = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
#: Has the name of the release.
_INSTANCE: Final = "app.kubernetes.io/instance"
#: The operator's Prometheus: what to change in the chart's values, or at Prometheus.
PROMETHEUS: Final[Mapping[str, str]] = {
    Missing.UNREACHABLE: "set prometheus.url (now {url}) in the chart's values to one that answers, or start it",
    Missing.UNAUTHORIZED: "set prometheus.basicAuth, bearerToken or headers in the chart's values, or renew the Secret",
    Missing.FORBIDDEN: "let the account of prometheus.basicAuth or bearerToken in the chart's values read metrics",
    Missing.TLS_FAILED: "set prometheus.tls in the chart's values as the message says",
    Missing.REDIRECTED: "set prometheus.url (now {url}) in the chart's values to what answers, or credentials",
    Missing.UNUSABLE_FILE: "correct the Secret or ConfigMap that prometheus in the chart's values names",
    Missing.TIMED_OUT: "look at the load of Prometheus, and at the network between",
    Missing.BAD_ANSWER: "set prometheus.url (now {url}) in the chart's values to the root of Prometheus' API",
}
#: The operator's own pods. Where nothing is here, their log tells.
_OF_PODS: Final[Mapping[str, str]] = {
    CauseReason.IMAGE_PULL_FAILED: (
        "set image.registry, image.repository and image.tag in the chart's values to an image that nodes can pull"
    ),
    CauseReason.CONFIG_MISSING: (
        "make the named object in namespace {namespace}, or correct what names it in the chart's values: "
        "signingKey.existingSecret or prometheus"
    ),
    CauseReason.UNSCHEDULABLE: (
        "add a node that fits, or change nodeSelector, tolerations or resources in the chart's values"
    ),
    CauseReason.PODS_REFUSED: "mend the policy or account that the message names",
    CauseReason.QUOTA_EXCEEDED: "raise the quota of namespace {namespace}, or free what it counts",
}
#: Reasons of which another one's step is right.
_AS: Final[Mapping[str, str]] = {
    CauseReason.INVALID_IMAGE_NAME: CauseReason.IMAGE_PULL_FAILED,
    CauseReason.REGISTRY_UNAVAILABLE: CauseReason.IMAGE_PULL_FAILED,
}


def upgrade(operator: Operator, *values: str) -> str:
    """Makes the operator's release anew, with these values in place of its own."""
    return upgrade_of(operator.labels.get(_INSTANCE, operator.name), operator.namespace, *values)


def upgrade_of(release: str, namespace: str, *values: str) -> str:
    """The same by names."""
    command = f"helm upgrade {release} charts/flyball -n {namespace} --reset-then-reuse-values"
    return " ".join((command, *(f"--set {shlex.quote(one)}" for one in values)))


def repair(operator: Operator) -> str:
    """Makes what others removed or changed of the operator's release as its chart has it."""
    return _repaired(upgrade(operator))


def repair_maker(made: Mapping[str, Any]) -> str:
    """The same of the release that made an object; empty where the object names none."""
    notes = made["metadata"].get("annotations") or {}
    release, namespace = notes.get("meta.helm.sh/release-name"), notes.get("meta.helm.sh/release-namespace")
    return _repaired(upgrade_of(release, namespace)) if release and namespace else ""


def _repaired(upgrade: str) -> str:
    # Helm 4 leaves what somebody else has edited, and ends with an error.
    return f"{upgrade} --force-conflicts   # Helm 3: without --force-conflicts"


def log_command(operator: Operator) -> str:
    """Shows the end of an operator's log."""
    return f"kubectl logs deployment/{operator.name} -n {operator.namespace} --tail=20"


def of_pods(operator: Operator, reason: str) -> str:
    """Mends what keeps an operator's pods from being Ready."""
    found = _OF_PODS.get(_AS.get(reason, reason))
    return log_command(operator) if found is None else found.replace("{namespace}", operator.namespace)


def watching(operator: Operator, namespace: str) -> str:
    """Lets an operator look after a namespace."""
    if selector := operator.settings.get("FLYBALL_WATCH_NAMESPACE_SELECTOR"):
        return (
            f"give namespace {namespace} the labels {selector}, and a RoleBinding: docs/operations.md, "
            "Namespaces by their labels"
        )
    if operator.watches(namespace):
        return log_command(operator)
    return upgrade(operator, f"watch.namespaces={{{','.join((*operator.namespaces, namespace))}}}")


def leaving(operator: Operator, namespace: str) -> str:
    """Takes a namespace from those that an operator names."""
    left = [one for one in operator.namespaces if one != namespace]
    if left:
        return upgrade(operator, f"watch.namespaces={{{','.join(left)}}}")
    release = operator.labels.get(_INSTANCE, operator.name)
    uninstall = f"helm uninstall {release} -n {operator.namespace}"
    return f"set watch.namespaces of release {release} to others, or, if that is all it is for: {uninstall}"


def let_in(policy: Object, caller: Caller, port: int) -> str:
    """Opens a port for a caller in a NetworkPolicy."""
    labels = {key: value for key, value in caller.labels.items() if key in _LASTING} or dict(caller.labels)
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": caller.namespace}},
        "podSelector": {"matchLabels": labels},
    }
    rule = {"from": [peer], "ports": [{"port": port}]}
    change: Object = {"op": "add", "path": "/spec/ingress/-", "value": rule}
    if not policy["spec"].get("ingress"):
        change |= {"path": "/spec/ingress", "value": [rule]}
    meta = policy["metadata"]
    patch = shlex.quote(json.dumps([change]))
    return f"kubectl patch networkpolicy {meta['name']} -n {meta['namespace']} --type=json -p {patch}"


def open_own(policy: Object, operator: Operator, *, meant: bool) -> str:
    """Opens a NetworkPolicy that an operator makes of the chart's values, and would make again without a patch.

    `meant`: the operator's settings let it in, so that somebody else has changed the policy.
    """
    meta = policy["metadata"]
    delete = f"kubectl delete networkpolicy {meta['name']} -n {meta['namespace']}"
    if operator.ingress_peers is None:
        return f"{delete}   # networkPolicy.enabled is off in the chart's values: nobody makes it again"
    if meant:
        return f"{delete}   # the operator makes it again, as networkPolicy in the chart's values says"
    return repair(operator)


def scraped(service: Object, pods: Sequence[str]) -> str:
    """Lets jobs that go by annotations scrape these pods of a service."""
    template = (service.get("spec") or {}).get("podTemplate") or {}
    if names.ANNOTATION_SCRAPE in (template.get("annotations") or {}):
        return f"set {names.ANNOTATION_SCRAPE} in spec.podTemplate.annotations to true, or use a PodMonitor"
    command = f"kubectl annotate --overwrite pods {' '.join(pods)} -n {service['metadata']['namespace']}"
    return f"{command} {names.ANNOTATION_SCRAPE}=true   # or use a PodMonitor"


def of_service(service: Object, reason: str) -> str:
    """What to do about a reason of a service's condition."""
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    if reason == Reason.PAUSED:
        return f"flyball resume {name} -n {namespace}"
    said = advice(reason, name=name, namespace=namespace)
    return f"{said} More: {explain(service)}" if said else explain(service)


def explain(service: Object) -> str:
    """Tells all that is known of a service."""
    return f"flyball explain {service['metadata']['name']} -n {service['metadata']['namespace']}"
