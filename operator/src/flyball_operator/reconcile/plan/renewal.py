"""Which template is asked for: the one kept for this spec, or this operator's own, which a service may adopt by itself.

It adopts in its turn (`adoption`), and at once where a pod of the kept template cannot come up because the plugin's
image of that time is gone: waiting would leave the service a pod short for ever. Either way only from a template that
was rolled out whole, which is the way back. In its turn it adopts no template of an older operator than the one that
made its pods: in a rolling update both lead for a while, and each would replace the other's pods. So would two releases
of one version with other settings. So a template of this version that it had before is not adopted again. Nor is one
replaced that is younger than asked for. One that the API server refuses is noted, and the service keeps what it has.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from flyball_operator.api.engine_container import plugin_image
from flyball_operator.api.objects import Object, digest, moment
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan import causes, history, pod, progress, revision, worker
from flyball_operator.reconcile.plan.adoption import SLOT_SECONDS, Standing
from flyball_operator.reconcile.plan.fields import differences, spelt
from flyball_operator.reconcile.plan.history import AdoptedWhy, History
from flyball_operator.reconcile.plan.revision import Revision
from flyball_operator.reconcile.plan.snapshot import Snapshot


@dataclass(frozen=True)
class Asked:
    """The revision asked for, and the history with what was adopted for it.

    `outdated`: whether this operator would render it otherwise. `settled`: whether it could adopt, were it its turn.
    `newer`: version of the newer operator that rendered it, empty if none did. `adopts`: whether it takes this
    operator's template now. `refused`: whether the API server refused that template. `differing`: fields in
    which another release of this version made the template, where the service had this operator's before. `due`: from
    when on it may adopt in its turn, None where its template is old enough.
    """

    current: Revision
    history: History
    outdated: bool
    settled: bool
    newer: str = ""
    adopts: bool = False
    refused: bool = False
    differing: tuple[str, ...] = ()
    due: datetime | None = None


def asked(service: InferenceService, snapshot: Snapshot, kept: Mapping[str, Revision]) -> Asked:
    """What is asked for now."""
    noted = history.read(snapshot.pods_owner)
    current, rendered = _current(service, snapshot, kept, noted)
    if current.data == rendered:
        return Asked(current, noted, outdated=False, settled=False)
    template = _digest(_rendered(service, snapshot, ""))
    if template == noted.refused:
        return Asked(current, noted, outdated=True, settled=False, refused=True)
    newer = current.version if revision.is_older(snapshot.config.version, current.version) else ""
    differing = _differing(service, snapshot, kept, current, noted, rendered)
    due = _due(snapshot, current)
    may = template != noted.adopted and not newer and not differing and due is None
    settled = may and _settled(service, snapshot, current, noted)
    why = _why(snapshot, current, noted, settled=settled)
    if why is None or template == noted.adopted:
        return Asked(current, noted, outdated=True, settled=settled, newer=newer, differing=differing, due=due)
    if snapshot.adoption_refused:
        noted = noted.refusing(template, snapshot.adoption_refused)
        return Asked(current, noted, outdated=True, settled=False, refused=True)
    noted = noted.adopting(template, revision.spec_hash(service), why)
    return Asked(_current(service, snapshot, kept, noted)[0], noted, outdated=False, settled=False, adopts=True)


def standing(
    service: InferenceService, found: Asked, judged: History, *, failed: bool, full: bool, now: datetime
) -> Standing:
    """How far the service has come with this operator's template. `judged`: the history after this look."""
    if found.refused:
        return Standing.FAILED
    if found.outdated:
        return Standing.OUTDATED if found.settled else Standing.UNSETTLED
    if not _is_adoption(service, judged) or judged.good == found.current.spec_hash:
        return Standing.CURRENT
    if failed:
        return Standing.FAILED
    # With no pod asked for there is nothing to wait for.
    if full:
        return Standing.CURRENT
    return Standing.WAITING if judged.short_for(now) >= SLOT_SECONDS else Standing.ADOPTING


def _current(
    service: InferenceService, snapshot: Snapshot, kept: Mapping[str, Revision], noted: History
) -> tuple[Revision, Object]:
    """The revision asked for, and how this operator would render it."""
    spec_hash = revision.spec_hash(service, noted.adopted)
    rendered = _rendered(service, snapshot, spec_hash)
    return kept.get(spec_hash) or revision.following(
        kept.values(), spec_hash, rendered, snapshot.config.version
    ), rendered


def _rendered(service: InferenceService, snapshot: Snapshot, spec_hash: str) -> Object:
    """The templates that this operator makes, as a revision keeps them."""
    template = pod.render(service, snapshot.config, spec_hash)
    return revision.data_of(template, worker.render(template) if service.spec.parallelism.core_spans_nodes else None)


def _digest(rendered: Object) -> str:
    """Names the templates. One alone is named as it was before there were workers."""
    return digest(rendered if len(rendered) > 1 else rendered["template"])


def _differing(
    service: InferenceService,
    snapshot: Snapshot,
    kept: Mapping[str, Revision],
    current: Revision,
    noted: History,
    rendered: Object,
) -> tuple[str, ...]:
    """Fields in which an operator of this version made the template, where the service had this one's before.

    Settings that change once are adopted once. What failed is no reason to keep it.
    """
    if current.version != snapshot.config.version or noted.failed is not None:
        return ()
    earlier = (one for one in kept.values() if one.number < current.number)
    if not any(one.data == _rendered(service, snapshot, one.spec_hash) for one in earlier):
        return ()
    paths = (*differences(current.data, rendered), *differences(rendered, current.data))
    return tuple(dict.fromkeys(spelt(path).removeprefix("template.") for path in paths))


def _due(snapshot: Snapshot, current: Revision) -> datetime | None:
    """From when on its template is old enough to be replaced in its turn; None where it is."""
    made = moment(current.live["metadata"].get("creationTimestamp")) if current.live is not None else None
    due = made + snapshot.turn.least_age if made is not None else None
    return due if due is not None and snapshot.now < due else None


def _settled(service: InferenceService, snapshot: Snapshot, current: Revision, noted: History) -> bool:
    """Whether all its pods serve with the template asked for, or are back from another operator's that failed."""
    deployment = snapshot.pods_owner
    if deployment is None:
        return False
    if noted.failed is not None:
        return _is_adoption(service, noted)
    return (
        noted.good == current.spec_hash and progress.runs(deployment, current.spec_hash) and progress.full(deployment)
    )


def _why(snapshot: Snapshot, current: Revision, noted: History, *, settled: bool) -> AdoptedWhy | None:
    if snapshot.turn.now and settled:
        return AdoptedWhy.TURN
    gone = plugin_image(current.template) not in ("", snapshot.config.plugin_image) and causes.lacks_plugin(
        snapshot.pods, current.spec_hash, snapshot.events
    )
    # A Deployment that was deleted took its notes along.
    return AdoptedWhy.PLUGIN_MISSING if gone and noted.good in ("", current.spec_hash) else None


def _is_adoption(service: InferenceService, noted: History) -> bool:
    """Whether what is asked for was adopted by itself; not where the user has asked for something else since."""
    return bool(noted.adopted) and noted.adopted_by == revision.spec_hash(service)
