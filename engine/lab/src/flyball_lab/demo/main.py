"""The demo's course: apply, wait, load by turns, report; `hack/demo` has brought cluster, images and operator up.

The engine pod is never touched between the runs; all that changes is `spec.tuning.mode`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from flyball_engine.contract import Limits
from flyball_lab.benches.figures import keep, of_today
from flyball_lab.demo import picture, report
from flyball_lab.demo.calibration import Calibration
from flyball_lab.demo.errors import DemoError
from flyball_lab.demo.kube import ApiReader, kubectl
from flyball_lab.demo.load import JOB, LoadPod
from flyball_lab.demo.measure import MeasuredRequest, measure, requests_of
from flyball_lab.demo.phases import NORMAL, QUICK, DemoRun, Length, calibration, schedule, warm_up
from flyball_lab.demo.view import Now, View, attained, limits_text, objective_key, setpoint
from flyball_lab.demo.watch import POLL_SECONDS, DemoSnapshot, Watcher
from flyball_lab.repository import ROOT
from flyball_operator.api.names import CRD_NAME
from flyball_operator.api.v1alpha1 import InferenceService, Mode, Objective

EXAMPLE = Path(__file__).with_name("chat.yaml")
#: The engine loads in under a minute on an idle machine; pods that are replaced drain first.
READY_SECONDS = 600
#: The load pod imports vLLM on a share of one core.
LOAD_SECONDS = 300
#: Tuner and engine need a few ticks to put a mode in force.
MODE_SECONDS = 60
#: Beyond its arrivals, a run ends when the queue that it built up is served.
DRAIN_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `hack/demo` decided."""

    engine_image: str
    load_cpu: str
    folder: Path
    length: Length
    anyway: bool
    figures: bool


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A run that is over: its requests, and what was seen before and after it."""

    requests: list[MeasuredRequest]
    before: DemoSnapshot
    after: DemoSnapshot
    began: float


class Demo:
    """One demo, from the manifest to the results."""

    def __init__(self, settings: Settings, reader: ApiReader, console: Console) -> None:
        self.manifest = example(settings.engine_image)
        self.name: str = self.manifest["metadata"]["name"]
        self.namespace: str = self.manifest["metadata"]["namespace"]
        self.settings = settings
        self.watcher = Watcher(reader, namespace=self.namespace, name=self.name)
        self.view = View(console, self.watcher)
        self.record = picture.Record()

    async def run(self) -> report.Results:
        """All of it; the load ends with it, however it ends."""
        await self._apply()
        course = asyncio.create_task(self._course())
        beside = (self.watcher.run(), self.view.show(), self._record())
        tasks = [course, *map(asyncio.create_task, beside)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return course.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _course(self) -> report.Results:
        await LoadPod.create(namespace=self.namespace, image=self.settings.engine_image, cpu=self.settings.load_cpu)
        try:
            snapshot = await self._ready()
            self._step("load pod: importing vLLM")
            log = self.settings.folder / "load.log"
            load = await LoadPod.attach(namespace=self.namespace, log=log, limit=LOAD_SECONDS)
            try:
                return await self._runs(load, snapshot)
            finally:
                await load.close()
        finally:
            await kubectl("delete", "job", JOB, "-n", self.namespace, "--ignore-not-found", "--wait=false")

    async def _record(self) -> None:
        """Note what the runs with objectives look like, until cancelled."""
        while True:
            now, snapshot, objectives = self.view.now, self.watcher.latest, self.view.objectives
            if now.run is not None and objectives:
                name = f"{now.run.phase.title}, {now.run.mode.value}"
                at, core, limits = self.record.due(name, now.elapsed), snapshot.core, snapshot.limits
                if at is not None:
                    moment = picture.Moment(
                        at=at,
                        run=name,
                        running=core.running if core else None,
                        waiting=core.waiting if core else None,
                        seqs=limits.max_num_active_seqs if limits else None,
                        tokens=limits.max_num_scheduled_tokens if limits else None,
                        attained={one.name: attained(snapshot.counters, now.counters, one) for one in objectives},
                    )
                    self.record.moments.append(moment)
            await asyncio.sleep(POLL_SECONDS)

    async def _apply(self) -> None:
        self._step("applying the example")
        await kubectl("apply", "-f", "-", stdin=yaml.safe_dump(namespace(self.namespace)))
        path = self.settings.folder / EXAMPLE.name
        path.write_text(EXAMPLE.read_text().replace("ENGINE_IMAGE", self.settings.engine_image))
        await kubectl("apply", "-f", str(path))
        self.view.say(f"kubectl apply -f {path}")

    async def _ready(self) -> DemoSnapshot:
        self._step(f"waiting for {self.name} to be Ready")
        snapshot = await self.watcher.until(
            lambda snapshot: snapshot.ready, limit=READY_SECONDS, what=f"{self.name} Ready; try kubectl describe"
        )
        self.view.say(
            f"{self.name} is Ready after {self.view.now.elapsed:.0f} s, limits {limits_text(snapshot.limits)}"
        )
        return snapshot

    async def _runs(self, load: LoadPod, snapshot: DemoSnapshot) -> report.Results:
        found = await self._calibrate(load)
        objectives = await self._set_objectives(found)
        results = report.Results(objectives=objectives, pod_before=identity(snapshot), carried=found.carried)
        before = warm_up(self.settings.length, carried=found.carried)
        self.view.say(report.summary(before.phase.title, await self._one(load, before)))
        for run in schedule(self.settings.length, carried=found.carried):
            result = await self._one(load, run)
            results.runs.append(result)
            self.view.say(report.summary(run.phase.title, result))
            self._collect(results)
            results.save(self.settings.folder / "results.json")
        await self._set_mode(Mode.AUTO)
        self._collect(results)
        return results

    async def _calibrate(self, load: LoadPod) -> Calibration:
        """What this machine's engine does; raises `DemoError` if that says too little, unless that is known."""
        alone, few, busy = [await self._play(load, run) for run in calibration()]
        found = Calibration.of(alone.requests, measure(few.requests, ()), measure(busy.requests, ()))
        self.view.say(f"the engine: {found}; loads and objectives are made of that")
        if found.unfair and not self.settings.anyway:
            await self._set_mode(Mode.AUTO)
            raise DemoError(f"{found.unfair}\nCluster and service stay up; hack/demo --down removes them.")
        if found.unfair:
            self.view.say(f"warning: {found.unfair}")
        return found

    async def _set_objectives(self, found: Calibration) -> tuple[Objective, ...]:
        """Give the service thresholds that this machine can keep, and wait until the engine counts by them."""
        wished = list(found.objectives(present(self.watcher.latest).spec.objectives))
        patch = json.dumps({"spec": {"objectives": wished}})
        await kubectl("patch", CRD_NAME, self.name, "-n", self.namespace, "--type=merge", "-p", patch)
        snapshot = await self.watcher.until(
            lambda snapshot: counted(snapshot, wished), limit=MODE_SECONDS, what="the engine counting by new thresholds"
        )
        self.view.objectives = present(snapshot).spec.objectives
        return self.view.objectives

    async def _one(self, load: LoadPod, run: DemoRun) -> report.RunResult:
        played = await self._play(load, run)
        before, after, objectives = played.before, played.after, self.view.objectives
        return report.RunResult(
            phase=run.phase.title,
            mode=run.mode,
            round=run.round,
            began=played.began,
            measured=measure(played.requests, objectives),
            counted={objective.name: attained(after.counters, before.counters, objective) for objective in objectives},
            setpoint=setpoint(after),
        )

    async def _play(self, load: LoadPod, run: DemoRun) -> MeasuredRun:
        self._step(f"{run.phase.title}: switching tuning to {run.mode.value}")
        service = present(self.watcher.latest)
        prepared = load.prepare(
            run,
            url=f"http://{self.name}.{self.namespace}.svc:{service_port(service)}",
            model=service.spec.model.served_name or self.name,
            tokenizer=service.spec.model.uri.removeprefix("file://"),
        )
        await asyncio.gather(prepared, self._set_mode(run.mode))
        before = await self.watcher.fresh()
        await load.start(run)
        began = time.time()
        self.view.now = Now(run=run, counters=before.counters)
        streams = await load.finish(limit=run.seconds + DRAIN_SECONDS)
        after = await self.watcher.fresh()
        return MeasuredRun(requests=requests_of(streams), before=before, after=after, began=began)

    async def _set_mode(self, mode: Mode) -> None:
        patch = f'{{"spec":{{"tuning":{{"mode":"{mode.value}"}}}}}}'
        await kubectl("patch", CRD_NAME, self.name, "-n", self.namespace, "--type=merge", "-p", patch)
        await self.watcher.until(
            lambda snapshot: in_force(snapshot, mode) and snapshot.idle,
            limit=MODE_SECONDS,
            what=f"mode {mode.value} in force on an idle engine (its read-back shows the setpoint of the status)",
        )

    def _collect(self, results: report.Results) -> None:
        latest = self.watcher.latest
        results.decisions = list(self.watcher.decisions.values())
        results.events = [vars(event) for event in self.watcher.events.values()]
        results.model = latest.service.status.tuning.model if latest.service else results.model
        results.pod_after = identity(latest) if latest.pod else None

    def _step(self, text: str) -> None:
        self.view.now = Now(step=text)


def example(image: str) -> dict[str, Any]:
    """The example with its image filled in."""
    manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text().replace("ENGINE_IMAGE", image))
    return manifest


def namespace(name: str) -> dict[str, Any]:
    """A namespace that takes only unprivileged pods."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def present(snapshot: DemoSnapshot) -> InferenceService:
    """The service of a snapshot; raises `DemoError` where it has gone."""
    if snapshot.service is None:
        raise DemoError("the InferenceService is gone: somebody deleted it")
    return snapshot.service


def identity(snapshot: DemoSnapshot) -> report.PodIdentity:
    """Who serves; raises `DemoError` where there is no pod."""
    if snapshot.pod is None:
        raise DemoError("the engine pod is gone")
    return report.PodIdentity(name=snapshot.pod.name, uid=snapshot.pod.uid, restarts=snapshot.pod.restarts)


def service_port(service: InferenceService) -> int:
    """Port of the OpenAI API, from the address in the status."""
    return int(service.status.url.removesuffix("/v1").rpartition(":")[2] or 80)


def counted(snapshot: DemoSnapshot, wished: Sequence[Mapping[str, Any]]) -> bool:
    """True if the service has the wished objectives, and its engine counts by them."""
    if snapshot.service is None or snapshot.engine is None or snapshot.engine.accepted is None:
        return False
    objectives = snapshot.service.spec.objectives
    same = [each.threshold for each in objectives] == [each["threshold"] for each in wished]
    return same and {objective_key(each) for each in objectives} <= {
        each.id for each in snapshot.engine.accepted.objectives
    }


def in_force(snapshot: DemoSnapshot, mode: Mode) -> bool:
    """True if the tuner acts under `mode` and the engine runs under exactly the limits that the status names.

    It refuses requests if and only if status names a deadline. In mode Disabled the limits must be the upper bounds.
    """
    if snapshot.service is None or snapshot.limits is None:
        return False
    tuning, spec = snapshot.service.status.tuning, snapshot.service.spec
    wished = tuning.setpoint.model_dump(include=set(Limits.model_fields), exclude_none=True)
    agreed = wished.items() <= snapshot.limits.model_dump(exclude_none=True).items()
    agreed = agreed and snapshot.gated == (tuning.setpoint.first_token_deadline is not None)
    bounds = spec.tuning.bounds
    highest = (
        bounds.max_num_active_seqs.max or spec.batching.max_num_seqs,
        bounds.max_num_scheduled_tokens.max or spec.batching.max_num_batched_tokens,
    )
    at_most = (snapshot.limits.max_num_active_seqs, snapshot.limits.max_num_scheduled_tokens)
    return tuning.mode is mode and agreed and (mode is not Mode.DISABLED or at_most == highest)


async def main(settings: Settings, console: Console) -> None:
    """Run the demo and print what came of it."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, current_task().cancel)
    settings.folder.mkdir(parents=True, exist_ok=True)
    reader = await ApiReader.open()
    try:
        demo = Demo(settings, reader, console)
        results = await demo.run()
    finally:
        await reader.close()
    path = settings.folder / "results.json"
    results.save(path)
    report.show(results, console)
    drawn = settings.folder / "demo.png"
    console.print("\n".join(picture.as_text(demo.record.moments, console.width)))
    picture.save(demo.record.moments, {one.name: float(one.target) for one in results.objectives}, drawn)
    console.print(f"The picture: {drawn}\nAll figures: {path}\n")
    if settings.figures:
        command = "hack/demo --quick" if settings.length is QUICK else "hack/demo"
        kept = keep("demo", report.figure_table(results), of_today(command, note=report.carried_line(results.carried)))
        console.print(f"The README's table: {kept.relative_to(ROOT)}; hack/gen writes it\n")


def current_task() -> asyncio.Task[Any]:
    """The task that this runs in."""
    task = asyncio.current_task()
    if task is None:
        raise DemoError("must run in a task")
    return task


def parse(arguments: list[str]) -> Settings:
    """Settings from the command line of `hack/demo`."""
    parser = argparse.ArgumentParser(prog="demo")
    parser.add_argument("--engine-image", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--load-cpu", default="800m")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--anyway", action="store_true")
    parser.add_argument("--figures", action="store_true")
    options = parser.parse_args(arguments)
    return Settings(
        engine_image=options.engine_image,
        folder=options.folder,
        load_cpu=options.load_cpu,
        length=QUICK if options.quick else NORMAL,
        anyway=options.anyway,
        figures=options.figures,
    )


def run() -> int:
    """Exit status: 0 done, 1 it could not go on, 130 interrupted."""
    # Where output is piped, lines are as wide as the tables need.
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    try:
        asyncio.run(main(parse(sys.argv[1:]), console))
    except DemoError as error:
        sys.stderr.write(f"hack/demo: {error}\n")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("hack/demo: interrupted; the load is ended, all else stays. Again, or hack/demo --down\n")
        return 130
    return 0
