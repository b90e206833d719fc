"""Why the chart's policy (`templates/inject.yaml`) leaves a pod of others without the plugin: its conditions, in words.

Pure.
"""

from __future__ import annotations

from typing import Final

from flyball_engine.contract import Env
from flyball_operator.api import names
from flyball_operator.api.objects import Object
from flyball_operator.api.workload import Workload

#: What the policy sets. The API server takes no variable with both a value and a source.
_VARIABLES: Final = frozenset({"PYTHONPATH", "VLLM_PLUGINS", Env.SERVICE_UID, Env.PUBLIC_KEYS_FILE, Env.CONTROL_PORT})


def obstacle(pod: Object, workload: Workload) -> str:
    """What of a pod keeps the policy from it, and how to mend that; empty if nothing does."""
    containers, first = pod["spec"]["containers"], pod["spec"].get("initContainers") or []
    if any(container["name"] == names.CONTAINER_PLUGIN for container in first):
        return ""
    name = workload.container or containers[0]["name"]
    engine = next((container for container in containers if container["name"] == name), None)
    if engine is None:
        return f"has no container {name}: correct spec.workload.container"
    for variable in engine.get("env") or ():
        if variable["name"] in _VARIABLES and "valueFrom" in variable:
            return f"sets {variable['name']} by valueFrom: set a value"
    ports = [port for container in (*containers, *first) for port in container.get("ports") or ()]
    if any(port["containerPort"] == workload.control_port for port in ports):
        return f"uses port {workload.control_port} itself: choose another spec.workload.controlPort"
    if any(port.get("name") == names.PORT_CONTROL for port in ports):
        return f"has a port {names.PORT_CONTROL} of its own: rename it"
    return ""
