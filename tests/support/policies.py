"""Admission policies of the API server, bound to one namespace for as long as a test needs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flyball_lab.harness.waiting import eventually
from support.cluster import KubectlError, Object, apply, delete, kubectl
from support.remnants import mark

_GROUP = "admissionregistration.k8s.io/v1"
_DEPLOYMENT_RULE = {
    "apiGroups": ["apps"],
    "apiVersions": ["v1"],
    "operations": ["CREATE", "UPDATE"],
    "resources": ["deployments"],
}
_POD_RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
_TOLERATIONS = "/spec/template/spec/tolerations"

#: CEL that makes the JSON patches of a Deployment.
TOLERATES_MORE = (
    "object.spec.template.spec.?tolerations.orValue([]).exists(t, t.key == 'test/added') ? [] : "
    f"(has(object.spec.template.spec.tolerations) ? [] : [JSONPatch{{op: 'add', path: '{_TOLERATIONS}', value: []}}])"
    f" + [JSONPatch{{op: 'add', path: '{_TOLERATIONS}/-',"
    " value: Object.spec.template.spec.tolerations{key: 'test/added', operator: 'Exists'}}]"
)
MIRRORED = "mirror.test/engine:1"
USES_THE_MIRROR = f"[JSONPatch{{op: 'replace', path: '/spec/template/spec/containers/0/image', value: '{MIRRORED}'}}]"
PULLS_ALWAYS = "[JSONPatch{op: 'add', path: '/spec/template/spec/containers/0/imagePullPolicy', value: 'Always'}]"
LABELS_IT = "[JSONPatch{op: 'add', path: '/metadata/labels/test~1added', value: 'yes'}]"
LABELS_THE_TEMPLATE = "[JSONPatch{op: 'add', path: '/spec/template/metadata/labels/test~1added', value: 'yes'}]"


def _sidecar(pod: str, *, name: str = "added", among: str = "containers", more: str = "") -> str:
    """CEL of a container that namespaces of Pod Security `restricted` admit; `pod` is the way to the pod's spec."""
    kind = f"Object.{pod}.{among}.securityContext"
    return (
        f"Object.{pod}.{among}{{name: '{name}', image: 'mirror.test/sidecar:1', {more}securityContext: {kind}{{"
        "allowPrivilegeEscalation: false, runAsNonRoot: true, runAsUser: 1000, "
        f"capabilities: {kind}.capabilities{{drop: ['ALL']}}, "
        f"seccompProfile: {kind}.seccompProfile{{type: 'RuntimeDefault'}}}}}}"
    )


ADDS_A_SIDECAR = (
    "object.spec.template.spec.containers.exists(c, c.name == 'added') ? [] : "
    "[JSONPatch{op: 'add', path: '/spec/template/spec/containers/-', value: " + _sidecar("spec.template.spec") + "}]"
)
ADDS_A_VARIABLE = (
    "has(object.spec.template.spec.containers[0].env) && "
    "object.spec.template.spec.containers[0].env.exists(e, e.name == 'ADDED') ? [] : "
    "(has(object.spec.template.spec.containers[0].env) ? [] : "
    "[JSONPatch{op: 'add', path: '/spec/template/spec/containers/0/env', value: []}]) + "
    "[JSONPatch{op: 'add', path: '/spec/template/spec/containers/0/env/-', "
    "value: Object.spec.template.spec.containers.env{name: 'ADDED', value: 'mirror.test'}}]"
)
STRIPS_THE_COMMAND = (
    "[JSONPatch{op: 'add', path: '/spec/template/spec/containers/0/command', value: ['serve', 'mirror.test']}]"
)
STRIPS_A_LABEL = (
    "'serving.flyball.dev/service' in object.metadata.labels ? "
    "[JSONPatch{op: 'remove', path: '/metadata/labels/serving.flyball.dev~1service'}] : " + LABELS_IT
)
#: Of pods.
INJECTS_A_SIDECAR = "[JSONPatch{op: 'add', path: '/spec/containers/-', value: " + _sidecar("spec") + "}]"
#: As Linkerd does: its proxy is the first of a pod's containers.
INJECTS_LINKERD = (
    "[JSONPatch{op: 'add', path: '/spec/containers/0', value: " + _sidecar("spec", name="linkerd-proxy") + "}]"
)
#: As Istio does with native sidecars: its proxy is an init container that goes on, and probes go through it.
INJECTS_ISTIO = (
    "(has(object.spec.initContainers) ? [] : [JSONPatch{op: 'add', path: '/spec/initContainers', value: []}]) + "
    "[JSONPatch{op: 'add', path: '/spec/initContainers/0', value: "
    + _sidecar("spec", name="istio-proxy", among="initContainers", more="restartPolicy: 'Always', ")
    + "}] + (has(object.spec.containers[0].readinessProbe) ? ["
    "JSONPatch{op: 'replace', path: '/spec/containers/0/readinessProbe/httpGet/path', value: '/app-health'}, "
    "JSONPatch{op: 'replace', path: '/spec/containers/0/readinessProbe/httpGet/port', value: 15020}] : [])"
)
#: A pod that such namespaces admit.
_POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe"},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "probe",
                "image": "as.asked/engine:1",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}
#: What one of them leaves in any object that it acts on.
_MARKS = ("mirror.test", "test/added", "imagePullPolicy: Always")


@contextmanager
def assigning_users(place: str, user: int) -> Iterator[None]:
    """Each new pod of a namespace gets this user, and one that asks for another is refused.

    It is what OpenShift's `restricted-v2` does, as far as users go.
    """
    security = "/spec/securityContext"
    given = ", ".join(
        f"JSONPatch{{op: 'add', path: '{security}/{field}', value: {user}}}" for field in ("runAsUser", "fsGroup")
    )
    rules: Object = {"matchConstraints": {"resourceRules": [_POD_RULE]}, "failurePolicy": "Fail"}
    mutations = [{"patchType": "JSONPatch", "jsonPatch": {"expression": f"[{given}]"}}]
    asked = (f"has(object.spec.securityContext.{field})" for field in ("runAsUser", "runAsGroup", "fsGroup"))
    assigned: Object = {"reinvocationPolicy": "Never", "mutations": mutations}
    assigned["matchConditions"] = [{"name": "asks-for-none", "expression": f"!({' || '.join(asked)})"}]
    refused = {"expression": f"object.spec.securityContext.runAsUser == {user}", "message": "not of the range"}
    _apply("MutatingAdmissionPolicy", place, rules | assigned)
    _apply("ValidatingAdmissionPolicy", place, rules | {"validations": [refused]})
    _apply("MutatingAdmissionPolicyBinding", place, {"policyName": place, "matchResources": _only(place)})
    denied = {"policyName": place, "matchResources": _only(place), "validationActions": ["Deny"]}
    _apply("ValidatingAdmissionPolicyBinding", place, denied)
    try:
        eventually(lambda: "not of the range" in _probe(place, pods=True), expecting="the policy to refuse")
        eventually(lambda: f"runAsUser: {user}" in _probe(place, pods=True, user=None), expecting="the policy to act")
        yield
    finally:
        for way in ("mutating", "validating"):
            for kind in (f"{way}admissionpolicybinding", f"{way}admissionpolicy"):
                delete(kind, place, namespace=place)


@contextmanager
def mutating(place: str, patches: str, *, pods: bool = False) -> Iterator[str]:
    """A policy that makes these patches to the Deployments of a namespace, or to its new pods.

    Returns its name once it acts.
    """
    spec: Object = {
        "matchConstraints": {"resourceRules": [_POD_RULE if pods else _DEPLOYMENT_RULE]},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patches}}],
    }
    _apply("MutatingAdmissionPolicy", place, spec)
    _apply("MutatingAdmissionPolicyBinding", place, {"policyName": place, "matchResources": _only(place)})
    try:
        eventually(lambda: _mutates(place, pods=pods), expecting="the policy to act")
        yield place
    finally:
        remove(place)


@contextmanager
def refusing(place: str, words: str) -> Iterator[str]:
    """A policy that refuses all Deployments of a namespace in these words; returns its name once it acts."""
    spec: Object = {
        "matchConstraints": {"resourceRules": [_DEPLOYMENT_RULE]},
        "failurePolicy": "Fail",
        "validations": [{"expression": "false", "message": words}],
    }
    binding = {"policyName": place, "matchResources": _only(place), "validationActions": ["Deny"]}
    _apply("ValidatingAdmissionPolicy", place, spec)
    _apply("ValidatingAdmissionPolicyBinding", place, binding)
    try:
        eventually(lambda: words in _probe(place), expecting="the policy to act")
        yield place
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            delete(kind, place, namespace=place)


def _only(place: str) -> Object:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place}}}


def remove(place: str) -> None:
    """Remove the policy of this namespace, and return once it has stopped to act."""
    for kind in ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy"):
        delete(kind, place, namespace=place)
    with suppress(AssertionError):
        eventually(lambda: not _mutates(place), expecting="the policy to be gone")


def _apply(kind: str, name: str, spec: Object) -> None:
    apply(mark({"apiVersion": _GROUP, "kind": kind, "metadata": {"name": name}, "spec": spec}), namespace=name)


def _mutates(place: str, *, pods: bool = False) -> bool:
    return any(mark in _probe(place, pods=pods) for mark in _MARKS)


def _probe(place: str, *, pods: bool = False, user: int | None = 1000) -> str:
    """What a dry run of making a Deployment or a pod answers, or why it is refused. `user`: whom the pod runs as."""
    dry = ("-n", place, "--dry-run=server", "-o", "yaml")
    security = _POD["spec"]["securityContext"] | ({} if user is None else {"runAsUser": user})
    pod = {**_POD, "spec": {**_POD["spec"], "securityContext": security}}
    try:
        if pods:
            return kubectl("create", "-f", "-", *dry, stdin=json.dumps(pod))
        return kubectl("create", "deployment", "probe", "--image=as.asked/engine:1", *dry)
    except KubectlError as error:
        return str(error)
