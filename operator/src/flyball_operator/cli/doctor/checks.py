"""What is checked of a cluster and of its operators. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from flyball_operator import __version__
from flyball_operator.api import names
from flyball_operator.api.objects import moment
from flyball_operator.api.served_schema import lacked
from flyball_operator.api.shards import shards
from flyball_operator.cli.doctor import mends
from flyball_operator.cli.doctor.findings import Finding, fail, ok, skip, warn
from flyball_operator.cli.doctor.installation import Installation, Operator, Unread, operator_container
from flyball_operator.reconcile.plan import causes

#: The least minor version of Kubernetes 1 that the chart installs on (`kubeVersion`).
LEAST_MINOR: Final = 31
#: A Lease is renewed every 2 s, and lasts 15 s. What is beyond this is no difference of clocks.
STALE: Final = timedelta(minutes=2)
#: So many of a list are named.
_MOST_NAMED: Final = 3
#: A tag that names a version; local images are tagged by their content.
_VERSION: Final = re.compile(r"v?\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?")


def cluster_version(installation: Installation) -> Iterator[Finding]:
    """The API server's version is one that Flyball works with."""
    check, server = "cluster-version", installation.server
    if isinstance(server, Unread):
        yield unread(check, "not known", server)
        return
    minor = re.match(r"\d+", str(server.get("minor", "")))
    shown = server.get("gitVersion") or "unknown"
    if minor is None:
        yield warn(check, f"the API server names no version ({shown})", "kubectl version")
    elif str(server.get("major")) == "1" and int(minor[0]) < LEAST_MINOR:
        yield fail(check, f"{shown} is too old", f"upgrade the cluster to 1.{LEAST_MINOR} or later")
    else:
        yield ok(check, str(shown))


def crd(installation: Installation) -> Iterator[Finding]:
    """The CustomResourceDefinition is there, served, and of this program's version."""
    check, found, mend = "crd", installation.crd, "flyball crd | kubectl apply --server-side --force-conflicts -f -"
    if isinstance(found, Unread):
        yield unread(check, f"{names.CRD_NAME} cannot be read", found)
        return
    if found is None:
        yield fail(check, f"{names.CRD_NAME} is not there", f"install the chart, or: {mend}")
        return
    conditions = {one["type"]: one for one in (found.get("status") or {}).get("conditions") or ()}
    if (conditions.get("Established") or {}).get("status") != "True":
        yield fail(check, f"{names.CRD_NAME} is not served", f"kubectl describe crd {names.CRD_NAME}")
        return
    yield _schema(check, found, _newer_crd(found, mend))


def _newer_crd(found: Mapping[str, Any], apply: str) -> str:
    """A chart's release upgrades its own CRD. Its annotations outlast it: then the CRD is applied by hand."""
    repair = mends.repair_maker(found)
    return f"{repair}; if that release is gone: {apply}" if repair else apply


def _schema(check: str, found: Mapping[str, Any], mend: str) -> Finding:
    lacks = lacked(found, most=_MOST_NAMED + 1)
    if lacks is None:
        return ok(check, f"{names.CRD_NAME} is that of this program, {__version__}")
    if lacks:
        return fail(check, f"{names.CRD_NAME} is older than this program: it lacks {listed(lacks)}", mend)
    return warn(
        check, f"{names.CRD_NAME} is newer than this program, {__version__}", "install the newer flyball command"
    )


def operators(installation: Installation) -> Iterator[Finding]:
    """There is an operator, and its pods are Ready."""
    check, found = "operator", installation.operators
    if isinstance(found, Unread):
        other = "" if installation.searched else "or name its namespace: --operator-namespace NAME"
        yield unread(check, "Deployments cannot be listed", found, other)
        return
    if not found and installation.searched:
        said = f"no operator was found in namespace {installation.searched}"
        yield fail(check, said, "look again without --operator-namespace; if there is none, install the chart")
    elif not found:
        yield fail(check, "no operator was found", "install the chart: charts/flyball")
    for one in found:
        if not one.replicas:
            mend = f"kubectl scale deployment {one.name} -n {one.namespace} --replicas=1"
            yield fail(check, f"{one.where} is scaled to 0", mend)
        elif one.rolled_out:
            yield ok(check, f"{one.where}: {_ready(one)}")
        else:
            yield _not_rolled_out(check, one, installation)


def _ready(operator: Operator) -> str:
    return f"{operator.ready} of {operator.replicas} pods Ready"


def _not_rolled_out(check: str, operator: Operator, installation: Installation) -> Finding:
    """Of an operator whose pods are not all as they should be. Earlier ones may go on beside one that cannot start."""
    whole, said = operator.ready >= operator.replicas, f"{operator.where}: {_ready(operator)}"
    why = causes.find(operator.pods, operator.deployment, None, operator.events, now=installation.now)
    if whole:
        said += ", but not of its present template"
    if why is not None:
        level = fail if whole or not operator.ready else warn
        return level(check, f"{said}; {why.message}", mends.of_pods(operator, why.reason))
    if whole:
        return warn(check, said, f"kubectl rollout status deployment/{operator.name} -n {operator.namespace}")
    return (warn if operator.ready else fail)(check, said, mends.log_command(operator))


def versions(installation: Installation) -> Iterator[Finding]:
    """The operator is of this program's version, and its plugin of the operator's."""
    check = "versions"
    for one in known_operators(installation):
        release = (one.deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version") or ""
        tag, plugin = _tag(_image(one)), _tag(one.settings.get("FLYBALL_PLUGIN_IMAGE", ""))
        if release and release != __version__:
            yield warn(
                check,
                f"{one.where} is of version {release}, this program of {__version__}",
                f"use the flyball command of version {release}",
            )
        elif not one.settings.get("FLYBALL_PLUGIN_IMAGE"):
            yield fail(check, f"{one.where} has no plugin image: no service is governed", "set plugin.image.repository")
        elif tag != plugin and _VERSION.fullmatch(tag) and _VERSION.fullmatch(plugin):
            yield warn(
                check,
                f"{one.where} runs the operator {tag} with the plugin {plugin}",
                mends.upgrade(one, f"image.tag={release or tag}", f"plugin.image.tag={release or tag}"),
            )
        elif tag and tag == plugin:
            yield ok(check, f"{one.where}: operator and plugin are of one version, {tag}")
        else:
            yield ok(check, f"{one.where} is of version {release or 'unknown'}; its images' tags are not compared")


def _image(operator: Operator) -> str:
    return str((operator_container(operator.deployment) or {}).get("image", ""))


def _tag(image: str) -> str:
    """The tag of an image; empty where it has none, or a digest stands for it."""
    last = image.partition("@")[0].rpartition("/")[2]
    return last.partition(":")[2]


def leases(installation: Installation) -> Iterator[Finding]:
    """Each Lease of the election is held by a process that renews it."""
    check = "leases"
    for one in known_operators(installation):
        if isinstance(one.leases, Unread):
            yield unread(check, f"{one.where}: Leases cannot be read", one.leases)
            continue
        wanted = election(one)
        unheld = [said for name in wanted if (said := _unheld(name, one.leases.get(name), installation)) is not None]
        if unheld:
            yield fail(check, f"{one.where}: {listed(unheld, '; ')}", mends.log_command(one))
        else:
            holders = {one.leases[name]["spec"]["holderIdentity"] for name in wanted}
            yield ok(check, f"{one.where}: {len(wanted)} held, by {listed(sorted(holders))}")


def election(operator: Operator) -> list[str]:
    """Names of the Leases that this operator's replicas elect by."""
    name = operator.settings.get("FLYBALL_LEASE_NAME", "")
    count = operator.settings.get("FLYBALL_SHARDS", "1")
    return [shard.lease(name) for shard in shards(int(count) if count.isdecimal() else 1)]


def _unheld(name: str, lease: Mapping[str, Any] | None, installation: Installation) -> str | None:
    if lease is None:
        return f"Lease {name} is not there"
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity"):
        return f"Lease {name} is held by nobody"
    renewed = moment(spec.get("renewTime"))
    if renewed is not None and installation.now - renewed > STALE:
        return f"Lease {name} was last renewed {spec['renewTime']}"
    return None


def rights(installation: Installation) -> Iterator[Finding]:
    """The operator's account may do all that the operator does."""
    check = "rights"
    for one in known_operators(installation):
        if isinstance(one.denied, Unread):
            yield unread(check, f"{one.where}: rights of its account cannot be asked for", one.denied)
        elif one.denied:
            yield fail(check, f"{one.where}: not granted: {listed(one.denied, '; ')}", mends.repair(one))
        else:
            yield ok(check, f"{one.where}: its account may do what it needs")


def admission(installation: Installation) -> Iterator[Finding]:
    """The chart's admission policies are there, where a cluster wants them."""
    check, found = "admission-policies", installation.admission
    if isinstance(found, Unread):
        yield unread(check, "policies cannot be listed", found)
    elif not found:
        yield warn(
            check,
            "none of Flyball's: the operator's account may change any Deployment where it has rights",
            "set admissionPolicies.operator=true in the chart's values",
        )
    elif isinstance(installation.bindings, Unread):
        yield unread(check, "their bindings cannot be listed", installation.bindings)
    else:
        bound = {one["spec"].get("policyName") for one in installation.bindings}
        loose = [one for one in found if one["metadata"]["name"] not in bound]
        if loose:
            mend = mends.repair_maker(loose[0]) or "helm upgrade the release that made it"
            yield fail(check, f"{_named(loose)}: no binding, so nothing is checked by it", mend)
        else:
            yield ok(check, _named(found))


def _named(policies: Iterable[Mapping[str, Any]]) -> str:
    return listed(sorted(one["metadata"]["name"] for one in policies))


def known_operators(installation: Installation) -> Iterator[Operator]:
    """Those that were found."""
    if not isinstance(installation.operators, Unread):
        yield from installation.operators


def unread(check: str, what: str, found: Unread, other: str = "") -> Finding:
    """What was not checked, and the right that it needs; `other`: what else mends it."""
    return skip(check, f"{what}: {found.why}", ", ".join(filter(None, (f"grant the right: {found.right}", other))))


def listed(items: Any, between: str = ", ") -> str:
    """Some of them by name, and how many more there are."""
    items = list(items)
    more = len(items) - _MOST_NAMED
    return between.join(map(str, items[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
