"""What `flyball pause` and `flyball resume` change of a service, and what they say of it. Pure.

Tuning is paused by an annotation. So the spec stays as its owner, or a pipeline, has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flyball_operator.api import names
from flyball_operator.api.objects import Object, annotation, unless_changed
from flyball_operator.cli.limits import limits_in_words

#: Characters of a reason: a sentence or two, which events and tables can show.
LONGEST_REASON: Final = 200
_KEYS: Final = (names.ANNOTATION_TUNING, names.ANNOTATION_TUNING_REASON)
_CHANGING_MODE: Final = "Auto"

Patch = list[dict[str, Any]]


def wrong_reason(reason: str) -> str | None:
    """Why this is no reason to note, None if it is one."""
    if not reason.strip() or not reason.isprintable() or len(reason) > LONGEST_REASON:
        return f"--reason: accepted: one line of 1 to {LONGEST_REASON} characters"
    return None


def pausing(service: Object, reason: str | None) -> Patch:
    """The patch after which tuning is paused; empty if it is. The reason of this pause stays where none is given."""
    before = _annotations(service)
    kept = before.get(names.ANNOTATION_TUNING_REASON) if names.ANNOTATION_TUNING in before else None
    return _patch(
        service, {names.ANNOTATION_TUNING: names.TUNING_PAUSED, names.ANNOTATION_TUNING_REASON: reason or kept}
    )


def resuming(service: Object) -> Patch:
    """The patch after which tuning goes on; empty if nothing pauses it."""
    return _patch(service, dict.fromkeys(_KEYS))


def _patch(service: Object, wanted: Mapping[str, str | None]) -> Patch:
    """Brings annotations to these values, None for absent. It is a conflict once the service has changed."""
    before = _annotations(service)
    changes: Patch = []
    for key, value in wanted.items():
        path = f"/metadata/annotations/{key.replace('~', '~0').replace('/', '~1')}"
        if value is None and key in before:
            changes.append({"op": "remove", "path": path})
        elif value is not None and before.get(key) != value:
            changes.append({"op": "add", "path": path, "value": value})
    if changes and "annotations" not in service["metadata"]:
        changes.insert(0, {"op": "add", "path": "/metadata/annotations", "value": {}})
    return [*changes, unless_changed(service)] if changes else []


def _annotations(service: Object) -> Mapping[str, str]:
    return service["metadata"].get("annotations") or {}


def is_paused(service: Object) -> bool:
    """Whether tuning is paused: by the annotation, whatever it says."""
    return names.ANNOTATION_TUNING in _annotations(service)


def as_json(service: Object, *, changed: bool) -> dict[str, Any]:
    """The document of `-o json`."""
    return {
        "namespace": service["metadata"]["namespace"],
        "name": service["metadata"]["name"],
        "paused": is_paused(service),
        "changed": changed,
        "reason": annotation(service, names.ANNOTATION_TUNING_REASON) or None,
        "mode": _mode(service),
        "limits": _setpoint(service),
    }


def as_text(service: Object, *, changed: bool) -> str:
    """What holds now, in a few sentences."""
    meta = service["metadata"]
    where, limits = f"{meta['namespace']}/{meta['name']}", limits_in_words(_setpoint(service))
    if not is_paused(service):
        state = "is resumed" if changed else "was not paused"
        goes_on = f"The limits are {limits}, until the operator decides anew."
        return f"{where}: tuning {state}. {goes_on if _mode(service) == _CHANGING_MODE else _unchanging(service)}"
    reason = annotation(service, names.ANNOTATION_TUNING_REASON)
    state = ("is" if changed else "was already") + " paused" + (f" ({reason})" if reason else "")
    stay = f"The limits stay as they are: {limits}." if _mode(service) == _CHANGING_MODE else _unchanging(service)
    return f"{where}: tuning {state}. {stay} To resume: flyball resume {meta['name']} -n {meta['namespace']}"


def _unchanging(service: Object) -> str:
    return f"Mode {_mode(service)} changes no limits, paused or not: they are {limits_in_words(_setpoint(service))}."


def _mode(service: Object) -> str:
    return str((service["spec"].get("tuning") or {}).get("mode") or _CHANGING_MODE)


def _setpoint(service: Object) -> dict[str, Any]:
    return dict(((service.get("status") or {}).get("tuning") or {}).get("setpoint") or {})
