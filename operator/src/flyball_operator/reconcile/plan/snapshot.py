"""Everything a plan is made from, read at one moment. Same snapshot, same plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final

from flyball_engine.model_cache import Progress
from flyball_operator.api.desire import Desire
from flyball_operator.api.objects import NAMED_KINDS, UNWATCHED_KINDS, Kind, Object, controlled_by
from flyball_operator.reconcile.plan.adoption import NEVER, Turn
from flyball_operator.reconcile.plan.fields import Path
from flyball_operator.reconcile.plan.groups import as_deployment
from flyball_operator.reconcile.plan.network_policy import IngressPeers

#: Seconds between two lists of everything, where the operator is told no other.
RESYNC_SECONDS: Final = 300.0
#: Seconds after which what the API server refused is asked for again: nobody tells of a right, or of room.
REFUSED_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Config:
    """What this operator was started with and pods are rendered from.

    `plugin_image`: image of the init container that brings the engine plugin. `public_key`: PEM that engines verify
    setpoints with; empty where `publishes_keys`, so that another key changes no template. Then the operator brings keys
    to engines by the ConfigMap `names.PUBLIC_KEYS` alone. Without image or keys governed services are not accepted.
    `resync_seconds`: seconds until what others changed after each apply is applied again. `ingress_peers`: who may
    connect to engine pods; None makes no NetworkPolicy. `version`: of this operator.
    """

    plugin_image: str = ""
    public_key: str = ""
    publishes_keys: bool = False
    resync_seconds: float = RESYNC_SECONDS
    ingress_peers: IngressPeers | None = None
    version: str = ""

    @property
    def named_kinds(self) -> tuple[Kind, ...]:
        """Watched kinds of which a service owns one of its own name. NetworkPolicies need the setting."""
        watched = (kind for kind in NAMED_KINDS if kind not in UNWATCHED_KINDS)
        return tuple(kind for kind in watched if kind is not Kind.NETWORK_POLICY or self.ingress_peers is not None)


@dataclass(frozen=True)
class Attempt:
    """The last applies of an object, as this process remembers them.

    `of` is the generation and a digest of what was applied, and `at` is when it was last. `results` are sets of fields
    that were found changed after an earlier apply of the same. `doubt`: what was said of the object, where it was tried
    again and another controller may change it back later; else empty.
    """

    of: tuple[int, str]
    results: frozenset[tuple[Path, ...]]
    at: datetime
    doubt: str = ""


@dataclass(frozen=True)
class DryRun:
    """What the API server last made of an apply, by a dry run.

    `of` names what is applied and what to, and `at` is when it was asked. `mutated`: fields that would differ from what
    is applied even then, because admission changes them.
    """

    of: str
    at: datetime
    mutated: frozenset[Path]


@dataclass(frozen=True)
class WorkloadPods:
    """What a `spec.workload` chooses: pods that have not ended. `tuned`: those that are this service's."""

    chosen: tuple[Object, ...] = ()
    tuned: tuple[Object, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The service, everything of its name or UID, and the moment.

    `objects`: the one object of the service's name per kind, its own or foreign; the claim of the name that is made for
    its model, and the ConfigMap of the name for its adapters, where it asks for them.
    `revisions`: those that it controls.
    `pods`: its own (`membership`). `jobs`: those that it controls, and `job_pods` theirs. `progress`: of
    downloads, by the UID of these.
    `events`: of the pod, the Job, the Job's pod, the claim and the StatefulSets that wait without their status saying
    why (`event_causes`).
    `slices`: EndpointSlices of the Service of that name. `epoch`: the leadership under which the status is written.
    `status_written`: when this process last wrote the status. `refused`: the API server's words when it refused the
    last attempt to write what this generation asks for. `attempts`: the last applies of each object. `dry_runs`: what
    the API server would make of an apply. `turn`: whether the service may adopt this operator's template by itself.
    `adoption_refused`: the API server's words when it refused that just now. `job_refused`, `claim_refused` and
    `adapters_refused`: when it refused a Job, the claim or the ConfigMap. `route_refused`: when it refused the route or
    the pool, or could not say. `route_changed`: that others change them after each apply. `unreadable`: kinds of
    `ROUTE_KINDS` and the LeaderWorkerSet that could not be read, with its words; none where it has no such kind. The
    ConfigMap is in it where it may not be read.
    `workload`: pods that others make, None where Flyball makes them; then there are no objects of the service's name.
    """

    desire: Desire
    now: datetime
    config: Config
    objects: Mapping[Kind, Object] = field(default_factory=dict)
    revisions: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    jobs: tuple[Object, ...] = ()
    job_pods: tuple[Object, ...] = ()
    progress: Mapping[str, Progress] = field(default_factory=dict)
    events: tuple[Object, ...] = ()
    slices: tuple[Object, ...] = ()
    epoch: int = 0
    status_written: datetime | None = None
    refused: str = ""
    attempts: Mapping[Kind, Attempt] = field(default_factory=dict)
    dry_runs: Mapping[Kind, DryRun] = field(default_factory=dict)
    turn: Turn = NEVER
    adoption_refused: str = ""
    job_refused: str = ""
    claim_refused: str = ""
    adapters_refused: str = ""
    route_refused: str = ""
    route_changed: str = ""
    unreadable: Mapping[Kind, str] = field(default_factory=dict)
    workload: WorkloadPods | None = None

    def own(self, kind: Kind) -> Object | None:
        """The object of this kind, if it is this service's own."""
        found = self.objects.get(kind)
        return found if found is not None and controlled_by(found, self.desire.meta.uid) else None

    @cached_property
    def pods_owner(self) -> Object | None:
        """The service's own object that makes its pods: a Deployment, or a LeaderWorkerSet in the shape of one."""
        groups = self.own(Kind.LEADER_WORKER_SET)
        return as_deployment(groups, self.pods, self.events) if groups is not None else self.own(Kind.DEPLOYMENT)
