"""The engine in a pod: which container it is, where its control port is, and which plugin it has. Pure.

The pod says all itself: the port named `control` is the plugin's, whoever brought that in.
"""

from __future__ import annotations

from typing import NamedTuple

from flyball_engine.contract import CONTROL_PORT
from flyball_operator.api import names
from flyball_operator.api.objects import Object


class EngineContainer(NamedTuple):
    """Name of the container, and number of its control port."""

    name: str
    control_port: int


def engine_container(pod: Object) -> EngineContainer:
    """The container with the port `control`; without one `engine`, or else the first."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    for container in containers:
        for port in container.get("ports") or ():
            if port.get("name") == names.PORT_CONTROL:
                return EngineContainer(str(container["name"]), int(port["containerPort"]))
    named = [str(container.get("name") or "") for container in containers]
    engine = names.CONTAINER_ENGINE if not named or names.CONTAINER_ENGINE in named else named[0]
    return EngineContainer(engine, CONTROL_PORT)


def plugin_image(pod: Object) -> str:
    """The image of the plugin in a pod or a pod template; empty without it."""
    containers = (pod.get("spec") or {}).get("initContainers") or ()
    return next((str(one.get("image", "")) for one in containers if one.get("name") == names.CONTAINER_PLUGIN), "")
