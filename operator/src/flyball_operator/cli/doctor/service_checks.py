"""What is checked of the namespaces with services, and of the services. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from flyball_operator.api import names
from flyball_operator.api.engine_container import engine_container, plugin_image
from flyball_operator.api.objects import Object, annotation, controller, moment
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.cli.advice import ADVICE
from flyball_operator.cli.doctor import mends
from flyball_operator.cli.doctor.checks import known_operators, listed, unread
from flyball_operator.cli.doctor.findings import Finding, fail, ok, warn
from flyball_operator.cli.doctor.installation import Installation, Operator, Tenant, Unread, services
from flyball_operator.cli.doctor.reachable import Caller, blocking
from flyball_operator.cli.found_service import unattended_since
from flyball_operator.keys.public_keys import RECHECK_SECONDS
from flyball_operator.kube.namespace_leases import LEASE_SECONDS
from flyball_operator.reconcile.plan.adoption import OutdatedReason
from flyball_operator.reconcile.plan.cause import CauseReason
from flyball_operator.reconcile.plan.pods import serves
from flyball_operator.reconcile.plan.routing import RoutedReason
from flyball_operator.reconcile.plan.unwatched import NAMESPACE_NOT_WATCHED
from flyball_operator.tuning.observe.signals import Missing
from flyball_operator.tuning.reasons import Reason

_GET: Final = "kubectl get inferenceservices.serving.flyball.dev"
_FIRST_ACCEPTED: Final = "first mend the service, as said above"
#: Of MetricsAvailable: Prometheus was asked, and what it has of the engines is not enough.
_SCRAPES: Final = frozenset({Missing.NOT_SCRAPED, Missing.STALE, Missing.PARTIAL, Missing.TOO_FEW_SAMPLES})
#: Of Tuned: somebody wants it so.
_CHOSEN: Final = frozenset({Reason.DISABLED, Reason.RECOMMEND_ONLY, Reason.PAUSED, Reason.PAUSE_UNCLEAR})
_PROMETHEUS: Final = frozenset(Missing) - _SCRAPES
#: In which the operator looks at its ConfigMaps of public keys again.
_KEYS_MINUTES: Final = round(RECHECK_SECONDS / 60)


def prometheus(installation: Installation) -> Iterator[Finding]:
    """The operator is told of a Prometheus, and reaches it: as conditions of services say."""
    check = "prometheus"
    for one in known_operators(installation):
        if not one.settings.get("FLYBALL_PROMETHEUS_URL"):
            yield warn(check, f"{one.where} is told of no Prometheus", "set prometheus.url in the chart's values")
    by_reason: dict[str, list[Object]] = {}
    seen = False
    for service, condition in _of_metrics(installation):
        seen = seen or condition["reason"] in (Reason.SCRAPED, Reason.SCRAPED_TWICE, *_SCRAPES)
        if condition["reason"] in _PROMETHEUS:
            by_reason.setdefault(str(condition["reason"]), []).append(service)
    for reason, found in sorted(by_reason.items()):
        said = _condition(found[0], ConditionType.METRICS_AVAILABLE)["message"]
        urls = {one.settings.get("FLYBALL_PROMETHEUS_URL", "") for one in known_operators(installation)}
        mend = mends.PROMETHEUS[reason].replace("{url}", listed(sorted(urls)))
        yield fail(check, f"{reason} for {_named(found)}: {said}", mend)
    if not by_reason and seen:
        yield ok(check, "answers the operator")
    elif not by_reason and installation.services_asked:
        yield warn(check, "no service says whether it answers", f"{_GET} -A; a service with Ready pods tells")


def scraping(installation: Installation) -> Iterator[Finding]:
    """Prometheus has the series of each service's pods, once."""
    check, good = "scraping", 0
    for service, condition in _of_metrics(installation):
        said = f"{_where(service)}: {condition['reason']}: {condition['message']}"
        if condition["reason"] in _SCRAPES:
            level = fail if condition["status"] == "False" else warn
            yield level(check, said, _scrape_mend(installation, service))
        elif condition["reason"] == Reason.SCRAPED_TWICE:
            yield warn(check, said, "switch one of the named jobs off")
        elif condition["reason"] == Reason.SCRAPED:
            good += 1
    if good:
        yield ok(check, f"{good} services are scraped")


def _scrape_mend(installation: Installation, service: Object) -> str:
    """Where pods lack what jobs of annotations go by, that is why."""
    for tenant, found in services(installation):
        if found is not service or isinstance(tenant.pods, Unread):
            continue
        bare = [
            pod["metadata"]["name"]
            for pod in _pods_of(tenant, service)
            if annotation(pod, names.ANNOTATION_SCRAPE) != "true"
        ]
        if bare:
            return mends.scraped(service, bare)
    return "docs/scraping.md, When nothing is seen, has the step"


def network_policies(installation: Installation) -> Iterator[Finding]:
    """No NetworkPolicy holds the operator off the control port of engines."""
    check, good = "network-policies", 0
    for tenant in _tenants(installation):
        if isinstance(tenant.policies, Unread):
            yield unread(check, f"those of {tenant.name} cannot be listed", tenant.policies)
            continue
        looked = [
            one for one in _responsible(installation, tenant) if any(_pods_of(tenant, it) for it in tenant.services)
        ]
        held = [said for one in looked for said in _held_off(installation, tenant, one)]
        yield from held
        # Without an operator or pods there is nobody to hold off.
        good += bool(looked) and not held
    if good:
        yield ok(check, f"in {good} namespaces none blocks the control port")


def _held_off(installation: Installation, tenant: Tenant, operator: Operator) -> Iterator[Finding]:
    caller = Caller(operator.namespace, installation.namespace_labels.get(operator.namespace), operator.labels)
    if isinstance(tenant.pods, Unread) or isinstance(tenant.policies, Unread):
        return
    for service in tenant.services:
        for pod in _pods_of(tenant, service)[:1]:
            port = engine_container(pod).control_port
            if found := blocking(tenant.policies, pod, port, names.PORT_CONTROL, caller):
                yield fail(
                    "network-policies",
                    f"{_where(service)}: {listed(found)} lets {operator.where} not in at port {port}",
                    _opened(
                        [one for one in tenant.policies if one["metadata"]["name"] in found], pod, operator, caller
                    ),
                )


def _opened(policies: Sequence[Object], pod: Object, operator: Operator, caller: Caller) -> str:
    """Opens one of the policies: one that stays as it is patched, if there is one."""
    port = engine_container(pod).control_port
    others = [one for one in policies if not _by_operator(one)]
    if others:
        return mends.let_in(others[0], caller, port)
    own = policies[0]
    rule = {"from": operator.ingress_peers or (), "ports": [{"port": port}]}
    made = {**own, "spec": {**own["spec"], "ingress": [rule] if operator.ingress_peers else []}}
    meant = not blocking([made], pod, port, names.PORT_CONTROL, caller)
    return mends.open_own(own, operator, meant=meant)


def _by_operator(found: Object) -> bool:
    """Whether an operator made it for a service."""
    owner = controller(found)
    return owner is not None and owner.get("kind") == names.KIND


def plugin_versions(installation: Installation) -> Iterator[Finding]:
    """Pods have the plugin that the operator would give them."""
    check, good = "plugin", 0
    for tenant in _tenants(installation):
        wanted = {one.settings.get("FLYBALL_PLUGIN_IMAGE") for one in _responsible(installation, tenant)} - {None}
        if isinstance(tenant.pods, Unread):
            yield unread(check, f"pods of {tenant.name} cannot be listed", tenant.pods)
            continue
        if len(wanted) != 1:
            continue
        (image,) = wanted
        for service in tenant.services:
            found = {plugin_image(pod) for pod in _pods_of(tenant, service)} - {""}
            other = found - {image}
            good += bool(found) and not other
            if other:
                meta = service["metadata"]
                adopt = (
                    f"kubectl annotate --overwrite inferenceservices.serving.flyball.dev {meta['name']}"
                    f' -n {meta["namespace"]} {names.ANNOTATION_ADOPT}="$(date +%s)"'
                )
                foreign = "workload" in (service.get("spec") or {})
                yield warn(
                    check,
                    f"{_where(service)} runs {listed(sorted(other))}, the operator has {image}",
                    "restart the pods: new ones have the operator's" if foreign else adopt,
                )
    if good:
        yield ok(check, f"pods of {good} services have the operator's")


def signing_keys(installation: Installation) -> Iterator[Finding]:
    """Engines have the public keys that the operator signs by."""
    check, good = "signing-key", 0
    for one in known_operators(installation):
        if not (one.settings.get("FLYBALL_SIGNING_KEY_SECRET") or one.settings.get("FLYBALL_SIGNING_KEY_FILE")):
            yield fail(check, f"{one.where} has no signing key", "set signingKey in the chart's values")
    for tenant in _tenants(installation):
        keeps = [one for one in _responsible(installation, tenant) if one.settings.get("FLYBALL_SIGNING_KEY_SECRET")]
        # Of one that no operator has looked at, another check says so.
        governed = [one for one in tenant.services if _governed(one) and _condition(one, ConditionType.ACCEPTED)]
        if not keeps or not governed:
            continue
        mend = f"wait: the operator writes it within {_KEYS_MINUTES} minutes; else see {mends.log_command(keeps[0])}"
        where = f"ConfigMap {tenant.name}/{names.PUBLIC_KEYS}"
        if isinstance(tenant.keys, Unread):
            yield unread(check, f"{where} cannot be read", tenant.keys)
        elif tenant.keys is None:
            yield fail(check, f"{where} is not there: engines refuse setpoints", mend)
        elif (tenant.keys["metadata"].get("labels") or {}).get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:
            label = f"{names.LABEL_MANAGED_BY}: {names.MANAGED_BY}"
            said = f"{where} is not the operator's: it lacks the label {label}, so engines refuse the next key"
            again = f"the operator makes it again within {_KEYS_MINUTES} minutes"
            yield fail(check, said, f"kubectl delete configmap {names.PUBLIC_KEYS} -n {tenant.name}   # {again}")
        elif not (tenant.keys.get("data") or {}).get(names.PUBLIC_KEYS_KEY):
            yield fail(check, f"{where} has no {names.PUBLIC_KEYS_KEY}: engines refuse setpoints", mend)
        else:
            good += 1
    if good:
        yield ok(check, f"{good} namespaces have the public keys")


def releases(installation: Installation) -> Iterator[Finding]:
    """Each namespace with services is looked after by a release that is there."""
    check, good = "namespaces", 0
    if isinstance(installation.tenants, Unread):
        yield unread(check, "services cannot be listed", installation.tenants, "or name a namespace: -n NAME")
        return
    known = {one.release for one in known_operators(installation)}
    for tenant in installation.tenants:
        if isinstance(tenant.lease, Unread):
            yield unread(check, f"the Lease of {tenant.name} cannot be read", tenant.lease)
            continue
        if tenant.lease is None or isinstance(installation.operators, Unread):
            continue
        holder = str((tenant.lease.get("spec") or {}).get("holderIdentity") or "")
        if holder and holder not in known:
            yield _unfound(check, installation, tenant.name, holder, tenant.lease)
        elif beside := _named_beside(installation, tenant.name, holder):
            said = f"{tenant.name} is looked after by {holder}; {beside[0].release} names it, too, and leaves it alone"
            yield warn(check, said, mends.leaving(beside[0], tenant.name))
        else:
            good += 1
    if good:
        yield ok(check, f"{good} are looked after by a release that is there")


def _named_beside(installation: Installation, namespace: str, holder: str) -> list[Operator]:
    """Operators that are told to look after a namespace which another has."""
    found = known_operators(installation)
    return [one for one in found if holder and one.release != holder and namespace in one.namespaces]


def _unfound(check: str, installation: Installation, namespace: str, holder: str, lease: Object) -> Finding:
    """Of a release that holds a namespace. Its Lease is worth deleting only where the release is surely gone."""
    said = f"{namespace} is looked after by {holder}, which"
    if installation.searched is not None:
        return warn(
            check, f"{said} is not in namespace {installation.searched}", "look again without --operator-namespace"
        )
    renewed = moment(lease["spec"].get("renewTime"))
    age = None if renewed is None else (installation.now - renewed).total_seconds()
    if age is not None and age < LEASE_SECONDS:
        return warn(
            check,
            f"{said} was not found, though it renewed its Lease {max(age, 0.0):.0f} s ago",
            f"kubectl get lease {names.NAMESPACE_LEASE} -n {namespace} -o yaml",
        )
    return fail(
        check,
        f"{said} was not found",
        f"install it anew, or: kubectl delete lease {names.NAMESPACE_LEASE} -n {namespace}",
    )


def rollouts(installation: Installation) -> Iterator[Finding]:
    """Which services cannot get the pods that are asked for, by their spec or by this operator's template."""
    check, good, total = "rollouts", 0, 0
    for tenant, service in services(installation):
        accepted = _condition(service, ConditionType.ACCEPTED)
        if accepted.get("status") != "True" or _unattended(installation, tenant):
            continue  # said by another check
        total += 1
        stalled, outdated = (
            _condition(service, kind) for kind in (ConditionType.STALLED, ConditionType.TEMPLATE_OUTDATED)
        )
        failed = outdated.get("reason") == OutdatedReason.ADOPTION_FAILED
        told = outdated if failed else stalled
        if told.get("status") != "True":
            waits = _waits_for(service)
            good += waits is None
            if waits is not None:
                yield waits
            continue
        cause = f"; {stalled['reason']}: {stalled['message']}" if failed and stalled.get("status") == "True" else ""
        said = f"{_where(service)}: {told['reason']}: {told['message']}{cause}"
        yield fail(check, said, ADVICE.get(told["reason"], mends.explain(service)))
    if good:
        yield ok(check, f"{good} of {total} services have none that failed or waits")


def _waits_for(service: Object) -> Finding | None:
    """What a rollout waits for that has not failed: it is over once that is there, or the time for it is."""
    progressing = _condition(service, ConditionType.PROGRESSING)
    message, reason = progressing.get("message", ""), progressing.get("reason", "")
    cause = next((one for one in CauseReason if one == reason or f"{one}: " in message), None)
    if cause is None or progressing["status"] != "True":
        return None
    return warn("rollouts", f"{_where(service)}: {reason}: {message}", mends.of_service(service, cause))


def governance(installation: Installation) -> Iterator[Finding]:
    """Which services are not governed, and why."""
    check, good, total = "services", 0, 0
    for tenant, service in services(installation):
        total += 1
        found = _ungoverned(installation, tenant, service)
        good += found is None
        if found is not None:
            yield found
    if total == 0 and installation.services_asked and not isinstance(installation.tenants, Unread):
        yield ok(check, "there are none")
    elif good:
        yield ok(check, f"{good} of {total} are governed")


def _ungoverned(installation: Installation, tenant: Tenant, service: Object) -> Finding | None:
    """Why a service is not governed; None if it is, or is about to be."""
    return next(_reasons(installation, tenant, service), None)


def _reasons(installation: Installation, tenant: Tenant, service: Object) -> Iterator[Finding]:
    check, where = "services", _where(service)
    accepted = _condition(service, ConditionType.ACCEPTED)
    tuned = _condition(service, ConditionType.TUNED)
    if not accepted:
        yield _unseen(installation, tenant, where)
    elif since := _unattended(installation, tenant):
        said = f"{where}: no operator has looked after {tenant.name} since {since}: its status is of then"
        yield fail(check, said, _watching(installation, tenant.name))
    elif accepted["reason"] == NAMESPACE_NOT_WATCHED:
        yield fail(check, f"{where}: {accepted['message']}", "restore it, then helm upgrade")
    elif accepted["status"] != "True":
        yield fail(check, f"{where}: {accepted['reason']}: {accepted['message']}", _mend(service, accepted))
    if not _governed(service):
        yield warn(check, f"{where}: spec.engine.governed is false: plain vLLM", "set it to true")
    if tuned.get("reason") in _CHOSEN:
        yield warn(check, f"{where}: {tuned['reason']}: {tuned['message']}", _mend(service, tuned))
    elif tuned.get("status") == "False" and tuned["reason"] != Reason.LEARNING:
        yield fail(check, f"{where}: {tuned['reason']}: {tuned['message']}", _mend(service, tuned))


def _mend(service: Object, condition: Mapping[str, Any]) -> str:
    return mends.of_service(service, str(condition["reason"]))


def _unseen(installation: Installation, tenant: Tenant, where: str) -> Finding:
    """Of a service that no operator has looked at. An operator that does not run is the reason before any setting."""
    check, said, first = "services", f"{where}: no operator has looked at it", "first mend the operator, as said above"
    looked = _responsible(installation, tenant)
    if not looked and not isinstance(installation.operators, Unread):
        return fail(check, f"{said}: none was found", first)
    if looked and not any(one.ready for one in looked):
        return fail(check, f"{said}: {listed(one.where for one in looked)} is not Ready", first)
    return fail(check, said, _watching(installation, tenant.name))


def _watching(installation: Installation, namespace: str) -> str:
    """Lets the only operator look after a namespace; of several it is not known which one shall."""
    found = list(known_operators(installation))
    several = f"mend the operator of {namespace}, or add it to watch.namespaces of one"
    return mends.watching(found[0], namespace) if len(found) == 1 else several


def gateways(installation: Installation) -> Iterator[Finding]:
    """Of services that name gateways, whether requests find them there."""
    check, good, total = "gateways", 0, 0
    for _, service in services(installation):
        routed = _condition(service, ConditionType.ROUTED)
        total += bool(routed)
        if not routed or routed["status"] != "False":
            good += routed.get("status") == "True"
            continue
        said = f"{_where(service)}: {routed['reason']}: {routed['message']}"
        level = warn if routed["reason"] == RoutedReason.ROUTE_PENDING else fail
        yield level(check, said, ADVICE.get(routed["reason"], _FIRST_ACCEPTED))
    if total == 0 and installation.services_asked and not isinstance(installation.tenants, Unread):
        yield ok(check, "no service names one")
    elif good:
        yield ok(check, f"{good} of {total} services are found by the gateways that they name")


def _governed(service: Object) -> bool:
    return bool((service["spec"].get("engine") or {}).get("governed", True))


def _unattended(installation: Installation, tenant: Tenant) -> str:
    """Since when no operator has looked after a namespace; empty where one does, or it is not known."""
    return unattended_since(tenant.lease if isinstance(tenant.lease, dict) else None, installation.now)


def _of_metrics(installation: Installation) -> Iterator[tuple[Object, Mapping[str, Any]]]:
    """Services with what is said of their metrics, but for what was said when an operator still looked."""
    for tenant, service in services(installation):
        found = _condition(service, ConditionType.METRICS_AVAILABLE)
        if found and not _unattended(installation, tenant):
            yield service, found


def _condition(service: Object, kind: ConditionType) -> Mapping[str, Any]:
    """The condition, with all that is read of it; empty where there is none."""
    for found in (service.get("status") or {}).get("conditions") or ():
        if found.get("type") == kind:
            return {"status": "Unknown", "reason": "", "message": "", **found}
    return {}


def _tenants(installation: Installation) -> Iterable[Tenant]:
    return () if isinstance(installation.tenants, Unread) else installation.tenants


def _responsible(installation: Installation, tenant: Tenant) -> list[Operator]:
    """The operator that looks after a namespace; all of them where its Lease does not say."""
    found = list(known_operators(installation))
    holder = tenant.lease["spec"].get("holderIdentity") if isinstance(tenant.lease, dict) else None
    return [one for one in found if one.release == holder] or found


def _pods_of(tenant: Tenant, service: Object) -> list[Object]:
    """Those that serve: what only works for another pod is neither scraped nor written to."""
    if isinstance(tenant.pods, Unread):
        return []
    uid = service["metadata"].get("uid")
    labelled = (pod for pod in tenant.pods if (pod["metadata"].get("labels") or {}).get(names.LABEL_SERVICE_UID) == uid)
    return [pod for pod in labelled if serves(pod)]


def _where(service: Object) -> str:
    return f"{service['metadata']['namespace']}/{service['metadata']['name']}"


def _named(found: Iterable[Object]) -> str:
    return listed(_where(one) for one in found)
