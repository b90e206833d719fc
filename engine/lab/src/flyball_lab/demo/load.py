"""The load: a Job in the cluster whose pod runs the generator of `flyball-bench`, and the line to it.

The Job's container waits for standard input and ends when that closes, so the load never outlives the demo, however the
demo ends.
"""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any, Self

from flyball_lab.benchmark.arguments import arguments
from flyball_lab.benchmark.load import GENERATOR
from flyball_lab.benchmark.points import EngineSetting, Point, PromptMix, WorkloadName
from flyball_lab.demo.errors import DemoError, WaitError
from flyball_lab.demo.kube import kubectl
from flyball_lab.demo.phases import DemoRun, Stream

JOB = "flyball-demo-load"
#: A run's result is one line: some hundred requests with every gap between two tokens.
LINE_LIMIT = 64 * 2**20
#: A whole demo fits in, and a load pod that was forgotten ends.
DEADLINE_SECONDS = 3600


def manifests(*, namespace: str, image: str, cpu: str) -> list[dict[str, Any]]:
    """ConfigMap and Job. `cpu` is what the load has of the engine's cores when it needs it, and no more."""
    metadata = {"name": JOB, "namespace": namespace, "labels": {"app.kubernetes.io/name": JOB}}
    container = {
        "name": "load",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "/demo/generator.py"],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
            {"name": "HF_HUB_OFFLINE", "value": "1"},
        ],
        "stdin": True,
        "stdinOnce": True,
        # Elsewhere clients have processors of their own. Here the engine takes both: its core spins while its worker
        # steps. A load pod with a small share notes tokens late. By the clients one in ten missed per-token under heavy
        # chat, by the engine none.
        "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": cpu, "memory": "3Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "demo", "mountPath": "/demo"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "demo", "configMap": {"name": JOB}}, {"name": "tmp", "emptyDir": {}}],
    }
    job = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        "template": {"metadata": {"labels": metadata["labels"]}, "spec": pod},
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {GENERATOR.name: GENERATOR.read_text()},
        },
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job},
    ]


def point_of(stream: Stream, *, run: DemoRun, url: str, model: str) -> Point:
    """What one stream of a run is to `flyball-bench`: an open loop, or a closed one at an infinite rate."""
    bounded = not math.isinf(stream.rate)
    mix = PromptMix(
        name=WorkloadName.MIXED if stream.spread else WorkloadName.UNIFORM,
        input_tokens=stream.prompt_tokens,
        output_tokens=stream.output_tokens,
        spread=stream.spread,
        seed=run.seed,
        burstiness=stream.burstiness if bounded else None,
    )
    requests = stream.count(run.seconds)
    return Point(
        endpoint=url,
        model=model,
        label=stream.name,
        workload=mix,
        setting=EngineSetting(),
        concurrency=None if bounded else stream.at_a_time or requests,
        rate=stream.rate if bounded else None,
        requests=requests,
    )


class LoadPod:
    """The line to the load pod. Every method raises `DemoError` when the line breaks, naming the pod's log."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def create(cls, *, namespace: str, image: str, cpu: str) -> None:
        """Make the Job, in place of one that an earlier demo left."""
        await kubectl("delete", "job", JOB, "-n", namespace, "--ignore-not-found", "--cascade=foreground")
        objects = {"apiVersion": "v1", "kind": "List", "items": manifests(namespace=namespace, image=image, cpu=cpu)}
        await kubectl("apply", "-f", "-", stdin=json.dumps(objects))

    @classmethod
    async def attach(cls, *, namespace: str, log: Path, limit: float) -> Self:
        """Connect to the Job's pod as soon as it runs, and wait until it can take orders; `limit` in seconds."""
        running = "jsonpath={.status.ready}=1"
        await kubectl("wait", f"job/{JOB}", "-n", namespace, f"--for={running}", f"--timeout={limit:.0f}s")
        process = await asyncio.create_subprocess_exec(
            *("kubectl", "attach", f"job/{JOB}", "-n", namespace, "-i", "--quiet"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log.open("w"),
            limit=LINE_LIMIT,
            start_new_session=True,  # Ctrl-C is for the demo, which then closes the line
        )
        load = cls(process, log)
        await load.order({"hello": True})
        await load.expect("up", limit=limit)
        return load

    async def prepare(self, run: DemoRun, *, url: str, model: str, tokenizer: str) -> None:
        """Have the prompts of a run made."""
        streams = {
            stream.name: arguments(
                point_of(stream, run=run, url=url, model=model), tokenizer=tokenizer, fixed_answers=True
            )
            for stream in run.phase.streams
        }
        await self.order({"prepare": run.name, "streams": streams})
        await self.expect("prepared", limit=120)

    async def start(self, run: DemoRun) -> None:
        """Let a prepared run go."""
        await self.order({"start": run.name})
        await self.expect("started", limit=30)

    async def finish(self, *, limit: float) -> dict[str, Any]:
        """The streams of the run that goes on, by name, each with its requests."""
        streams: dict[str, Any] = (await self.expect("finished", limit=limit))["streams"]
        return streams

    async def close(self) -> None:
        """End the load: the pod's standard input closes, and it ends itself."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def order(self, message: dict[str, Any]) -> None:
        """Send one line."""
        if self._process.stdin is None:
            raise DemoError("the line to the load pod was opened without standard input")
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise self._broken() from error

    async def expect(self, event: str, *, limit: float) -> dict[str, Any]:
        """The next message, which must be `event`; `limit` in seconds."""
        if self._process.stdout is None:
            raise DemoError("the line to the load pod was opened without standard output")
        try:
            async with asyncio.timeout(limit):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise WaitError(f"the load pod has not said {event!r} within {limit:.0f} s; see {self._log}") from error
        if not line:
            raise self._broken()
        message: dict[str, Any] = json.loads(line)
        if message["event"] != event:
            raise DemoError(f"the load generator says {message['event']!r} instead of {event!r}; see {self._log}")
        return message

    def _broken(self) -> DemoError:
        return DemoError(f"the load pod is gone; see {self._log} and `kubectl get events`")
