"""What is exported of every service that is watched: its conditions, and the targets of its objectives.

Read from the cache at each scrape, so nothing is forgotten or left behind. Alerts are made of it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from flyball_operator.api.desire import Desire
from flyball_operator.tuning.spec import tuning_spec


def conditions(services: Iterable[Desire]) -> dict[tuple[str, ...], float]:
    """1 for each condition, by namespace, service, type, status and reason."""
    return {
        (each.meta.namespace, each.meta.name, one.type, one.status, one.reason): 1.0
        for each in services
        for one in each.status.conditions
    }


def targets(services: Iterable[Desire]) -> dict[tuple[str, ...], float]:
    """The share that each objective asks for, by namespace, service, UID, the engines' id and the name in the spec."""
    return {
        (each.meta.namespace, each.meta.name, each.meta.uid, one.id, one.name): 1.0 - one.allowed
        for each in services
        if each.service is not None
        for one in tuning_spec(each.service.spec).objectives
    }
