"""What became of pod templates, kept in annotations of the Deployment that runs them.

There and nowhere else, because what is decided about a template and the template itself are then one write. No crash
can come between "this one failed" and "so the last good one is back". (ControllerRevisions cannot hold it: the API
server finds their data changed by any patch, since it compares bytes.) Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import Object, annotation, moment
from flyball_operator.reconcile.plan.cause import Cause

#: Of a shortage that has not ended, and of one that has; both with the moment, so that no two notes are the same.
_SINCE: Final = "since "
_UNTIL: Final = "until "


class AdoptedWhy(StrEnum):
    """Why a service took this operator's template by itself."""

    TURN = "turn"
    PLUGIN_MISSING = "plugin-missing"


@dataclass(frozen=True)
class History:
    """Spec hashes, and what became of their templates.

    `asked`: the one asked for, `since` when, and `steps`, how pods shall follow one another. `good`: the last that was
    rolled out whole. `failed`: why the one asked for was given up. It is not tried again for as long as it is asked for
    in the same steps. Which those were is kept with it, empty where an earlier operator gave it up. `shortage`: since
    when one holds the rollout up, or until when the last one did. Pods then have their start-up time anew, because the
    Deployment's own word that it made no progress is about the time before. `in_place`: since when earlier
    pods of this rollout end before new ones start, because no device is free (`in_place`). `adopted` names the template
    that the service last took by itself, `adopted_by` the spec hash without it, of the spec that it was taken for,
    and `adopted_why` an `AdoptedWhy`, or a later operator's. `refused` names the template that it would have taken by
    itself had the API server let it, and `refused_words` are the server's. It is not tried again. `promoted`: why the
    one asked for, which ran on a share of the pods, may have them all; empty where it may not, or was not judged.
    `served`: when a pod of the one asked for was first seen Ready; empty before. It is kept for groups of pods, and for
    a template that is judged on some pods.
    """

    asked: str = ""
    since: str = ""
    steps: str = ""
    good: str = ""
    failed: Cause | None = None
    shortage: str = ""
    in_place: str = ""
    adopted: str = ""
    adopted_by: str = ""
    adopted_why: str = ""
    refused: str = ""
    refused_words: str = ""
    promoted: str = ""
    served: str = ""

    def asking(self, spec_hash: str, steps: str, now: str) -> History:
        """The history once this template is asked for.

        Another one than before is a new attempt, whatever came of it; so is one that failed, in other steps.
        """
        again = self.failed is not None and self.steps not in ("", steps)
        if self.asked == spec_hash and not again:
            return self if self.failed is not None else replace(self, steps=steps)
        kept = replace(self, refused="", refused_words="") if self.asked != spec_hash else self
        return replace(
            kept, asked=spec_hash, since=now, steps=steps, failed=None, shortage="", in_place="", promoted="", served=""
        )

    def adopting(self, template: str, spec_hash: str, why: AdoptedWhy) -> History:
        """The history once the service takes this template by itself."""
        return replace(self, adopted=template, adopted_by=spec_hash, adopted_why=why.value)

    def refusing(self, template: str, words: str) -> History:
        """The history once the API server refused this template, which the service would have taken by itself."""
        return replace(self, refused=template, refused_words=words)

    def promoting(self, why: str) -> History:
        """The history once a template that was judged on a share of the pods may have them all."""
        return replace(self, promoted=why)

    def serving(self, now: str) -> History:
        """The history once a pod of a template that is judged is Ready. The first moment stays."""
        return self if self.served else replace(self, served=now)

    def rolled_out(self) -> History:
        """The history once all pods have the template asked for."""
        return replace(self, good=self.asked, failed=None, shortage="", in_place="", promoted="", served="")

    def replacing_in_place(self, now: str) -> History:
        """The history once earlier pods end first. That stays so until the rollout is over, there or back."""
        return self if self.in_place else replace(self, in_place=now)

    def replaced(self) -> History:
        """The history once pods follow one another as ever: all are there again, or the user says how."""
        return replace(self, in_place="") if self.in_place else self

    def meeting(self, *, shortage: bool, now: str) -> History:
        """The history once it is seen whether a shortage holds the rollout up. Its begin and its end are noted."""
        held = self.shortage.startswith(_SINCE)
        if shortage == held:
            return self
        return replace(self, shortage=(_SINCE if shortage else _UNTIL) + now)

    def short_for(self, now: datetime) -> float:
        """Seconds for which a shortage has held the rollout up; 0 while none does."""
        since = moment(self.shortage.removeprefix(_SINCE)) if self.shortage.startswith(_SINCE) else None
        return 0.0 if since is None else max(0.0, (now - since).total_seconds())

    @property
    def resumed(self) -> datetime | None:
        """When the last shortage ended; None where there was none."""
        return moment(self.shortage.removeprefix(_UNTIL))


def read(deployment: Object | None) -> History:
    """The history in a Deployment's annotations; an empty one where there is none, or it is garbled."""
    if deployment is None:
        return History()
    asked, _, since = annotation(deployment, names.ANNOTATION_ASKED).partition(" ")
    failed, steps = _read_failure(annotation(deployment, names.ANNOTATION_FAILED))
    good = annotation(deployment, names.ANNOTATION_GOOD)
    shortage = annotation(deployment, names.ANNOTATION_SHORTAGE)
    in_place = annotation(deployment, names.ANNOTATION_IN_PLACE)
    adopted = annotation(deployment, names.ANNOTATION_ADOPTED).split(" ", 2)
    by_itself = dict(zip(("adopted", "adopted_by", "adopted_why"), adopted, strict=False))
    refused = _fields(annotation(deployment, names.ANNOTATION_REFUSED), ("template", "message"))
    by_itself |= dict(zip(("refused", "refused_words"), refused, strict=False))
    by_itself["promoted"] = annotation(deployment, names.ANNOTATION_PROMOTED)
    by_itself["served"] = annotation(deployment, names.ANNOTATION_SERVED)
    return History(asked, since, steps, good, failed, shortage, in_place, **by_itself)


def _fields(text: str, fields: tuple[str, ...]) -> tuple[str, ...]:
    """These fields of an object in JSON; none where one lacks."""
    try:
        found = json.loads(text)
        return tuple(str(found[field]) for field in fields)
    except (ValueError, TypeError, KeyError):
        return ()


def _read_failure(text: str) -> tuple[Cause | None, str]:
    try:
        fields = json.loads(text)
        return Cause(reason=str(fields["reason"]), message=str(fields["message"])), str(fields.get("steps", ""))
    except (ValueError, TypeError, KeyError):
        return None, ""


def to_annotations(history: History) -> dict[str, str]:
    """The history as annotations."""
    found = {names.ANNOTATION_ASKED: f"{history.asked} {history.since}"}
    if history.good:
        found[names.ANNOTATION_GOOD] = history.good
    if history.shortage:
        found[names.ANNOTATION_SHORTAGE] = history.shortage
    if history.in_place:
        found[names.ANNOTATION_IN_PLACE] = history.in_place
    if history.promoted:
        found[names.ANNOTATION_PROMOTED] = history.promoted
    if history.served:
        found[names.ANNOTATION_SERVED] = history.served
    if history.adopted:
        found[names.ANNOTATION_ADOPTED] = f"{history.adopted} {history.adopted_by} {history.adopted_why}"
    if history.refused:
        refused = {"template": history.refused, "message": history.refused_words}
        found[names.ANNOTATION_REFUSED] = json.dumps(refused, sort_keys=True)
    if history.failed is not None:
        cause = {"reason": history.failed.reason, "message": history.failed.message}
        if history.steps:
            cause["steps"] = history.steps
        found[names.ANNOTATION_FAILED] = json.dumps(cause, sort_keys=True)
    return found
