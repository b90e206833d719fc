"""Pods of the simulated engine, as if it were vLLM: the operator makes, tunes and scales them as any others.

The CPU engine's image has all that the simulator needs but its code. That comes in a ConfigMap, and with it a `python3`
which is found first and starts the simulator in place of the launcher.
"""

from __future__ import annotations

import base64
import io
import zipfile

from flyball_lab.repository import ROOT
from flyball_lab.simulator.presets import EnginePreset
from support.cluster import Object
from support.live import MODEL, inference_service

_LAB = ROOT / "engine/lab/src"
_PACKAGES = ("simulator", "openai", "sizing")
_NAME = "simulator"
_FOLDER = "/simulator"


def simulator(preset: EnginePreset, *, start_seconds: float) -> Object:
    """The ConfigMap: its code, and how it is started."""
    start = (
        "#!/bin/sh\n"
        f"PYTHONPATH={_FOLDER}/lab.zip:$PYTHONPATH exec /opt/engine/bin/python3 -m flyball_lab.simulator serve"
        f" --preset={preset.name} --host=0.0.0.0 --model={MODEL} --start-seconds={start_seconds:g} --drain-timeout=60\n"
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _NAME},
        "data": {"python3": start},
        "binaryData": {"lab.zip": base64.b64encode(_code()).decode()},
    }


def simulated_service(name: str, preset: EnginePreset, *, image: str, **spec: object) -> Object:
    """An InferenceService of such pods; `image` is that of the CPU engine."""
    sizes = preset.sizes
    service = inference_service(
        name,
        image=image,
        batching={"maxNumSeqs": sizes.max_num_seqs, "maxNumBatchedTokens": sizes.max_num_batched_tokens},
        rollout={"startupTimeout": "10m", "drainTimeout": "60s"},
        podTemplate={
            "resources": {"requests": {"cpu": "20m", "memory": "100Mi"}, "limits": {"memory": "1Gi"}},
            "volumes": [{"name": _NAME, "configMap": {"name": _NAME, "defaultMode": 0o555}}],
            "volumeMounts": [{"name": _NAME, "mountPath": _FOLDER, "readOnly": True}],
        },
        **spec,
    )
    service["spec"]["engine"] = {"image": image, "env": [{"name": "PATH", "value": f"{_FOLDER}:/usr/bin:/bin"}]}
    del service["spec"]["replicas"]
    return service


def _code() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        lab = _LAB / "flyball_lab"
        for path in (lab / "__init__.py", *(path for name in _PACKAGES for path in (lab / name).rglob("*.py"))):
            archive.write(path, path.relative_to(_LAB))
    return packed.getvalue()
