"""Mutating admission policies of the API server, bound to one namespace for as long as a test needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, apply, delete, kubectl

_GROUP = "admissionregistration.k8s.io/v1"
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


@contextmanager
def mutating(place: str, patches: str) -> Iterator[str]:
    """A policy that makes these patches to the Deployments of a namespace; returns its name once it acts."""
    rules = [
        {
            "apiGroups": ["apps"],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["deployments"],
        }
    ]
    spec: Object = {
        "matchConstraints": {"resourceRules": rules},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patches}}],
    }
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place}}}
    _apply("MutatingAdmissionPolicy", place, spec)
    _apply("MutatingAdmissionPolicyBinding", place, {"policyName": place, "matchResources": here})
    try:
        eventually(lambda: _mutates(place), expecting="the policy to act")
        yield place
    finally:
        remove(place)


def remove(place: str) -> None:
    """Remove the policy of this namespace, and return once it has stopped to act."""
    for kind in ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy"):
        delete(kind, place, namespace=place)
    with suppress(AssertionError):
        eventually(lambda: not _mutates(place), expecting="the policy to be gone", within=30)


def _apply(kind: str, name: str, spec: Object) -> None:
    apply({"apiVersion": _GROUP, "kind": kind, "metadata": {"name": name}, "spec": spec}, namespace=name)


def _mutates(place: str) -> bool:
    dry = ("--image=as.asked/engine:1", "--dry-run=server", "-o", "yaml")
    found = kubectl("create", "deployment", "probe", "-n", place, *dry)
    return MIRRORED in found or "test/added" in found
