"""From a snapshot to a plan: the one function the reconciler calls.

Same snapshot, same plan; a plan made after applying one is empty, or says who changes the result. What policies of the
cluster change is in the snapshot, once the API server was asked (`admission.unanswered`). A crash between any
two writes leaves a state from which the next plan goes on. Nothing is ever deleted or changed by name alone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import NAMED_KINDS, Kind, Object, being_deleted, digest, name, uid, unless_changed
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan import (
    adapters,
    admission,
    deployment,
    disruption_budget,
    leader_worker_set,
    model_cache,
    model_claim,
    network_policy,
    revision,
    routing,
    service,
    settling,
    status,
    workload,
)
from flyball_operator.reconcile.plan.acceptance import CONFLICT_SECONDS, Acceptance, AcceptedReason, judge
from flyball_operator.reconcile.plan.adoption import Standing
from flyball_operator.reconcile.plan.event_causes import look_again
from flyball_operator.reconcile.plan.fields import created_entry, differences
from flyball_operator.reconcile.plan.intents import Apply, Claim, Create, Delete, Intent, Plan
from flyball_operator.reconcile.plan.model_cache import ModelState
from flyball_operator.reconcile.plan.rollout import RolloutDecision, decide
from flyball_operator.reconcile.plan.snapshot import REFUSED_SECONDS, Snapshot

#: Seconds until a look at garbage collection, which tells nobody when it is done.
_LEAVING_SECONDS: Final = 2.0
#: Seconds until a look at a LeaderWorkerSet, which is not watched. What its controller does mostly shows in pods.
_GROUPS_SECONDS: Final = 15.0
#: Resyncs before a window opens from which on a service waits for that: one of them is sure to come in this time.
_RESYNCS = 2


def plan(snapshot: Snapshot) -> Plan:
    """What to do about this service now: nothing while it is deleted, garbage collection follows the owner's UID."""
    if snapshot.desire.meta.deletion_timestamp is not None:
        return Plan()
    verdict = judge(snapshot)
    wanted_service = snapshot.desire.service
    if wanted_service is None:
        return _with_status(snapshot, verdict, None, Plan())
    if snapshot.workload is not None:
        return _with_status(snapshot, verdict, None, Plan(requeue_after=workload.LOOK_SECONDS))
    if not verdict.accepted:
        return _with_status(snapshot, verdict, None, Plan(requeue_after=_patience(verdict)))
    rollout = decide(wanted_service, snapshot)
    model = model_cache.state(wanted_service, snapshot)
    intents = tuple(_intents(wanted_service, snapshot, rollout, model))
    undone = admission.undone(snapshot, intents)
    intents = admission.worthwhile(snapshot, intents)
    unanswered = admission.unanswered(snapshot, intents)
    futile = settling.futile(snapshot, (intent for intent in intents if intent not in unanswered))
    # What others change holds up nothing else: a roll-back, or an object to make again, is done first and told then.
    rest = tuple(intent for intent in intents if intent not in futile)
    # A claim may stay for as long as a pod uses it; its watch tells when it is gone.
    leaving = any(being_deleted(found) for kind, found in snapshot.objects.items() if kind in NAMED_KINDS)
    looks = [_LEAVING_SECONDS] if leaving else []
    routed = routing.state(wanted_service, snapshot)
    times = (
        rollout.again,
        routed.again if routed is not None else None,
        look_again((*snapshot.pods, *snapshot.job_pods), snapshot.now),
        _GROUPS_SECONDS if wanted_service.spec.parallelism.nodes > 1 and not rollout.full else None,
        model.again if model is not None else None,
    )
    looks += [seconds for seconds in times if seconds]
    if rollout.standing is Standing.OUTDATED and (opens := snapshot.turn.opens) is not None:
        # The resync would miss a window that is shorter than it. It looks before, too: no key waits for days.
        looks += [opens] if opens <= _RESYNCS * snapshot.config.resync_seconds else []
    looks += settling.looks(snapshot, futile)
    if words := adapters.refusal(snapshot):
        # All else goes on as if the service were accepted: what serves may need it.
        verdict = Acceptance(False, AcceptedReason.REFUSED, words)
        looks.append(REFUSED_SECONDS)
    if words := settling.words(snapshot, futile, undone, routes=True):
        snapshot = replace(snapshot, route_changed=words)
    if not rest and (words := settling.words(snapshot, futile, undone, routes=False)):
        verdict = Acceptance(False, AcceptedReason.CHANGED_BY_OTHERS, words)
    so_far = Plan(
        rest, requeue_after=min(looks, default=None), standing=rollout.standing, adopts=rollout.adopts, due=rollout.due
    )
    return _with_status(snapshot, verdict, rollout, so_far)


def _patience(verdict: Acceptance) -> float | None:
    match verdict.reason:
        case AcceptedReason.NAME_CONFLICT | AcceptedReason.LEADER_WORKER_SET_MISSING:
            return CONFLICT_SECONDS
        case AcceptedReason.EARLIER_SERVICE_LEAVING:
            return _LEAVING_SECONDS
        case _:
            return None


def _intents(
    wanted: InferenceService, snapshot: Snapshot, rollout: RolloutDecision, model: ModelState | None
) -> Iterator[Intent]:
    meta = wanted.metadata
    live = snapshot.objects
    if rollout.current.live is None:
        # First, so that the template a Deployment runs is always among those kept.
        yield Create(Kind.REVISION, revision.render(meta, rollout.current))
    if (peers := snapshot.config.ingress_peers) is not None:
        # Before the Deployment, so that no pod starts unfenced.
        within = wanted.spec.parallelism.nodes > 1
        yield from _ensure(Kind.NETWORK_POLICY, network_policy.render(meta, peers, within=within), live)
    if (listed := adapters.render(wanted)) is not None and not adapters.refusal(snapshot):
        # Likewise, so that no pod starts without its adapters.
        yield from _ensure(Kind.CONFIG_MAP, listed, live)
    runs = model_cache.kept(snapshot, rollout) if model_cache.held(model, snapshot, rollout) else rollout
    if runs is not None:
        over_nodes = wanted.spec.parallelism.nodes > 1
        kind = Kind.LEADER_WORKER_SET if over_nodes else Kind.DEPLOYMENT
        render = leader_worker_set.render if over_nodes else deployment.render
        yield from _ensure(kind, render(wanted, runs, snapshot.pods_owner), live)
    yield from _ensure(Kind.SERVICE, service.render(wanted, model_cache.shown_template(model, snapshot, rollout)), live)
    budget = disruption_budget.render(wanted)
    yield from _keep(Kind.DISRUPTION_BUDGET, budget, snapshot)
    for other in revision.surplus(rollout.kept, {rollout.current.spec_hash, rollout.history.good}):
        if other.live is not None and not being_deleted(other.live):
            yield Delete(Kind.REVISION, name(other.live), uid(other.live))
    # Last, so that a claim, a Job or a route that is refused holds up nothing else.
    if (claim := model_claim.wanted(wanted, snapshot)) is not None:
        yield from _ensure(Kind.VOLUME_CLAIM, claim, live)
    yield from model_cache.intents(wanted, snapshot, model)
    for kind, body in routing.changes(wanted, snapshot):
        yield from _keep(kind, body, snapshot)


def _keep(kind: Kind, wanted: Object | None, snapshot: Snapshot) -> Iterator[Intent]:
    """What brings an object to what is wanted, or removes the service's own where nothing is."""
    if wanted is not None:
        yield from _ensure(kind, wanted, snapshot.objects)
    elif (ours := snapshot.own(kind)) is not None and not being_deleted(ours):
        yield Delete(kind, name(ours), uid(ours))


def _ensure(kind: Kind, wanted: Object, objects: Mapping[Kind, Object]) -> Iterator[Intent]:
    """What brings one object to what is wanted. One on its way out is waited for, then made anew."""
    body = _marked(wanted)
    live = objects.get(kind)
    if live is None:
        yield Create(kind, body)
    elif being_deleted(live):
        return
    elif (index := created_entry(live)) is not None:
        yield _claim(kind, live, index)
    elif fields := tuple(differences(live, body)):
        # The UID makes a patch of another object of this name a conflict. The version does so for an object that has
        # changed since it was read. So a plan is carried out on what it was made from, or not at all.
        identity = {"uid": uid(live), "resourceVersion": live["metadata"]["resourceVersion"]}
        yield Apply(kind, {**body, "metadata": {**body["metadata"], **identity}}, fields)


def _marked(wanted: Object) -> Object:
    """With its digest as an annotation: a live object that has it keeps nothing that a later intent dropped."""
    body = deepcopy(wanted)
    body["metadata"]["annotations"][names.ANNOTATION_INTENT] = digest(wanted)
    return body


def _claim(kind: Kind, live: Object, index: int) -> Claim:
    entries: Sequence[Object] = live["metadata"]["managedFields"]
    claimed = [{**entry, "operation": "Apply"} if i == index else entry for i, entry in enumerate(entries)]
    patch = (
        {"op": "test", "path": "/metadata/uid", "value": uid(live)},
        {"op": "replace", "path": "/metadata/managedFields", "value": claimed},
        unless_changed(live),
    )
    return Claim(kind, name(live), patch)


def _with_status(snapshot: Snapshot, verdict: Acceptance, rollout: RolloutDecision | None, so_far: Plan) -> Plan:
    foreign = snapshot.workload is not None
    wanted = workload.render(snapshot, verdict) if foreign else status.render(snapshot, verdict, rollout)
    change = status.difference(snapshot, wanted)
    if not change.any:
        return so_far
    quiet = _quiet_seconds(snapshot)
    if quiet > 0 and not change.urgent:
        return replace(so_far, requeue_after=min(quiet, so_far.requeue_after or quiet))
    return replace(so_far, status=wanted, events=status.events(snapshot, wanted))


def _quiet_seconds(snapshot: Snapshot) -> float:
    """Seconds for which only urgent changes of the status are written."""
    if snapshot.status_written is None:
        return 0.0
    passed = (snapshot.now - snapshot.status_written).total_seconds()
    # Before the last write is no time to wait from: the clock was set back.
    return status.QUIET_SECONDS - passed if passed >= 0 else 0.0
