"""What tests do in the engine's container of a pod, and ask of its engine."""

from __future__ import annotations

import subprocess

import httpx

from flyball_operator.api.names import CONTAINER_ENGINE
from support.cluster import Object
from support.live import MODEL


def run_inside(pod: Object, script: str) -> int:
    """Exit code of a script in the engine's container."""
    meta = pod["metadata"]
    where = [meta["name"], "-n", meta["namespace"], "-c", CONTAINER_ENGINE]
    command = ["kubectl", "exec", *where, "--", "python3", "-c", script]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def answer_of(pod: Object) -> str:
    """What a pod's engine answers to one prompt."""
    body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0}
    url = f"http://{pod['status']['podIP']}:8000/v1/completions"
    found = httpx.post(url, json=body, timeout=120, trust_env=False)
    return str(found.raise_for_status().json()["choices"][0]["text"])
