"""What runs of tests make outside of namespaces, and namespaces: marked with the run, so that a later one clears up.

A run that is killed removes nothing. The next one removes what it left, and touches nothing of a run that goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from flyball_operator.api.objects import annotation, being_deleted, moment

Object = dict[str, Any]

#: Its value names a process: see `this_run`.
LABEL: Final = "flyball.test/run"
#: In the order in which they are removed: what may keep others from going comes first.
KINDS: Final = (
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
    "nodes",
    "persistentvolumes",
    "storageclasses.storage.k8s.io",
    "namespaces",
)
_CRDS: Final = "customresourcedefinitions.apiextensions.k8s.io/"
#: They are gone once others have cleared up, be it in minutes.
_SLOW: Final = ("nodes/", "persistentvolumes/", "namespaces/")
#: Of a release of the chart, which carries the chart's labels and not ours.
_OF_CHART: Final = "app.kubernetes.io/name=flyball,app.kubernetes.io/managed-by=Helm"
_RELEASE_NAMESPACE: Final = "meta.helm.sh/release-namespace"
#: What another machine made is a dead run's after this. Nobody here sees whether that run goes on.
_OLD: Final = timedelta(days=1)


@cache
def this_run() -> str:
    """Names this process: its machine's start, its namespace of processes, its number in that and its own start.

    Processes that fork from it later keep its name.
    """
    return f"{_here()}-{os.getpid()}-{_started(os.getpid())}"


def mark(manifest: Object) -> Object:
    """The object, marked as this run's."""
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), LABEL: this_run()}}}


def is_over(run: str, made: datetime, now: datetime) -> bool:
    """Whether a run has ended, as far as this process can see. `made`: when it made what is asked about."""
    here, _, process = run.rpartition("-")[0].rpartition("-")
    if here != _here():
        return now - made > _OLD
    return not process.isdecimal() or _started(int(process)) != run.rpartition("-")[2]


def sweep() -> list[str]:
    """Remove what runs left that are over. Gives what was asked to go; namespaces and volumes may be there for longer.

    A cluster that others made may have more of what looks like ours, and is left as it is.
    """
    if os.environ.get("FLYBALL_CLUSTER") == "external":
        return []
    now = datetime.now(UTC)
    marked = _listed(KINDS, LABEL)
    dead = [one for one in marked if not being_deleted(one) and is_over(_run(one), _made(one), now)]
    dead += _of_lost_releases({one["metadata"]["name"] for one in dead if one["kind"] == "Namespace"})
    found = sorted({_reference(one) for one in dead}, key=lambda one: KINDS.index(one.partition("/")[0]))
    crds, slow = ([one for one in found if one.startswith(kinds)] for kinds in (_CRDS, _SLOW))
    _delete([one for one in found if one not in (*crds, *slow)])
    for crd in crds:
        _release(crd.removeprefix(_CRDS))
    _delete(crds)
    _delete(slow, wait=False)
    return found


def _delete(references: list[str], *, wait: bool = True) -> None:
    if references:
        _kubectl("delete", *references, f"--wait={str(wait).lower()}", "--ignore-not-found")


def _release(kind: str) -> None:
    """Take the finalizers of what a dead run has left of a kind: who was to remove them has no right to any more."""
    for one in json.loads(_kubectl("get", kind, "--all-namespaces", "-o", "json"))["items"]:
        metadata = one["metadata"]
        where = ["-n", metadata["namespace"]] if "namespace" in metadata else []
        if metadata.get("finalizers"):
            named = (kind, metadata["name"], *where)
            _kubectl("patch", *named, "--type=merge", "-p", json.dumps({"metadata": {"finalizers": None}}))


def _of_lost_releases(gone: set[str]) -> list[Object]:
    """What releases of the chart have outside of namespaces where their own goes, or is not there. The CRD stays."""
    kinds = [kind for kind in KINDS if kind.endswith(("admissionregistration.k8s.io", "rbac.authorization.k8s.io"))]
    released = _listed(kinds, _OF_CHART)
    # Listed after these: a namespace is there before the release in it.
    there = {one["metadata"]["name"] for one in _listed(["namespaces"], "")} - gone
    return [one for one in released if (home := annotation(one, _RELEASE_NAMESPACE)) and home not in there]


def _listed(kinds: Iterable[str], selector: str) -> list[Object]:
    chosen = ["-l", selector] if selector else []
    served = ",".join(kind for kind in kinds if kind in _served())
    found: list[Object] = json.loads(_kubectl("get", served, *chosen, "-o", "json"))["items"]
    return found


@cache
def _served() -> frozenset[str]:
    """Kinds outside of namespaces that this cluster has: an earlier Kubernetes lacks some policies."""
    return frozenset(_kubectl("api-resources", "--namespaced=false", "--verbs=list", "-o", "name").split())


def _kubectl(*command: str) -> str:
    done = subprocess.run(["kubectl", *command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.strip()
    return done.stdout


def _reference(found: Object) -> str:
    group = found["apiVersion"].rpartition("/")[0]
    (kind,) = (one for one in KINDS if _is_of(found["kind"].lower(), group, one))
    return f"{kind}/{found['metadata']['name']}"


def _is_of(singular: str, group: str, kind: str) -> bool:
    plural, _, its_group = kind.partition(".")
    return its_group == group and plural in (f"{singular}s", f"{singular}es", f"{singular[:-1]}ies")


def _run(found: Object) -> str:
    return str(found["metadata"]["labels"][LABEL])


def _made(found: Object) -> datetime:
    return moment(found["metadata"]["creationTimestamp"]) or datetime.max.replace(tzinfo=UTC)


@cache
def _here() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot[:13]}.{Path('/proc/self/ns/pid').stat().st_ino}"


def _started(process: int) -> str:
    """When a process began, in ticks of the machine's clock; empty where there is none of that number."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # Its name, in brackets, may have any characters in it.
    return stat.rpartition(")")[2].split()[19]
