"""The pod template of workers: pods of a group that run parts of the engine core which their leader serves.

It is made of the leader's, once for each revision, which keeps it. So an operator that makes another one rolls no pod.
Pure.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from flyball_engine.launching import AWAIT_LEADER_MODULE
from flyball_operator.api import names
from flyball_operator.api.objects import Object

#: What asks an engine whether it answers, and where. Of a worker the end of its process tells.
_OF_AN_API: Final = ("ports", "startupProbe", "readinessProbe", "livenessProbe")
_OF_SCRAPES: Final = (names.ANNOTATION_SCRAPE, names.ANNOTATION_SCRAPE_PORT, names.ANNOTATION_SCRAPE_SCHEME)


def render(template: Object) -> Object:
    """The template of workers of a leader with this one.

    They are Ready when they run. The leader is not before each of them has loaded its part of the model. When one of
    them ends, its group is made anew. One that is told to end does so after its leader, which finishes what runs.
    """
    made = deepcopy(template)
    metadata = made["metadata"]
    metadata["labels"] = {**metadata["labels"], names.LABEL_WORKER: "true"}
    metadata["annotations"] = {key: it for key, it in metadata["annotations"].items() if key not in _OF_SCRAPES}
    for container in made["spec"]["containers"]:
        if container["name"] == names.CONTAINER_ENGINE:
            for field in _OF_AN_API:
                container.pop(field, None)
            container["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-m", AWAIT_LEADER_MODULE]}}}
    return made
