"""The reader against a real Prometheus with the scrape jobs that clusters have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from flyball_lab.harness.engines import ServedEngine, serving
from flyball_lab.harness.plant import PlantPhase
from flyball_lab.harness.prometheus import ADDRESS, Prometheus, ScrapeJob, prometheus
from flyball_lab.harness.tuners import PATIENCE, TunerEnvironment, until
from flyball_operator.prometheus.client import PrometheusClient
from flyball_operator.prometheus.reader import PrometheusReader
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.observe.signals import Identity, Missing, Observation, RequestLoad, Signals, Unobserved
from support.discovery import INIT, annotation_job, discovered, operator_target, pod_monitor_jobs

CHAT: Identity = ("team", "uid-1")
WINDOW = 3
STEADY = [PlantPhase(3600, 8, 100, 16)]
UID_LABEL = "serving_flyball_dev_service_uid"
#: A window that holds all of a short load.
WIDE = 60


@asynccontextmanager
async def scraped_by(
    folder: Path, *jobs: ScrapeJob, window: int = WINDOW
) -> AsyncIterator[tuple[Prometheus, PrometheusReader]]:
    """Prometheus with these jobs, and a reader of it."""
    with ExitStack() as stack:
        running = stack.enter_context(prometheus(folder, jobs=jobs))
        client = PrometheusClient(running.url, timeout=2.0)
        yield running, stack.enter_context(closing(PrometheusReader(client, timeout=2.0, least_window=window)))


async def read_until(reader: PrometheusReader, holds: Callable[[Observation], bool]) -> Observation:
    """Read until what is seen of the service is as wanted; else say what was seen last."""
    found: Observation | None = None
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                found = (await reader.read({CHAT: 1}))[CHAT]
                if holds(found):
                    return found
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"last seen: {found}") from None


PAUSED = "flyball_operator_tuning_paused"


def busy(found: Observation) -> bool:
    return isinstance(found, Signals) and isinstance(found.load, RequestLoad) and found.load.finished > 3


@asynccontextmanager
async def chat() -> AsyncIterator[ServedEngine]:
    """A pod."""
    engine = TunerEnvironment().engine()
    async with serving(engine):
        yield engine


async def test_the_annotation_job_of_the_community_chart_is_enough(tmp_path: Path) -> None:
    async with chat() as engine, scraped_by(tmp_path, annotation_job(discovered(engine))) as (running, reader):
        engine.load(STEADY)
        found = await read_until(reader, busy)
        assert isinstance(found, Signals)
        assert (found.cores, found.pods) == (1, 1)
        # One target for each port of the engine; none for the init container, which serves nothing.
        urls = [target["url"] for target in running.targets()]
        assert len(urls) == len(set(urls)) == 2, urls
        assert f"http://{engine.ip}:{engine.port}/metrics" in urls
        assert all(target["pod"] == engine.name for target in running.targets())


async def test_containers_beside_the_engine_make_no_target_but_by_ports_of_their_own(tmp_path: Path) -> None:
    beside = [
        {"name": "logs", "image": "logs:1"},
        {"name": "web", "image": "web:1", "ports": [{"containerPort": 9000}]},
    ]
    template = {"containers": beside, "initContainers": [{"name": "fetch", "image": "fetch:1"}]}
    async with chat() as engine:
        targets = discovered(engine, podTemplate=template)
        async with scraped_by(tmp_path, annotation_job(targets)) as (running, reader):
            engine.load(STEADY)
            found = await read_until(reader, busy)
            assert isinstance(found, Signals)
            assert (found.cores, found.pods, found.twice) == (1, 1, "")
            urls = [target["url"] for target in running.targets()]
            assert len(urls) == len(set(urls)) == 3, urls


async def test_a_sidecar_that_a_policy_puts_into_the_pod_changes_no_figures(tmp_path: Path) -> None:
    async with chat() as engine:
        targets = discovered(engine)
        # Without ports, as nobody of ours rendered it: a target at the bare address, which never answers.
        sidecar = {label: value for label, value in targets[0].items() if "container_port" not in label}
        targets.append(sidecar | {"__meta_kubernetes_pod_container_name": "proxy", ADDRESS: engine.ip})
        async with scraped_by(tmp_path, annotation_job(targets)) as (running, reader):
            engine.load(STEADY)
            found = await read_until(reader, busy)
            assert isinstance(found, Signals)
            assert (found.cores, found.pods, found.twice) == (1, 1, "")
            assert len(running.targets()) == 3


async def test_the_chart_s_pod_monitor_is_enough(tmp_path: Path) -> None:
    async with chat() as engine, scraped_by(tmp_path, *pod_monitor_jobs(discovered(engine))) as (running, reader):
        engine.load(STEADY)
        found = await read_until(reader, busy)
        assert isinstance(found, Signals)
        assert (found.cores, found.pods) == (1, 1)
        assert sorted(target["container"] for target in running.targets()) == ["engine", "engine"]


@pytest.mark.parametrize("jobs", [pod_monitor_jobs, lambda targets: [annotation_job(targets)]])
async def test_a_worker_of_a_group_is_no_target(
    tmp_path: Path, jobs: Callable[[list[dict[str, str]]], list[ScrapeJob]]
) -> None:
    async with chat() as engine:
        group = [*discovered(engine), *discovered(engine, worker=True)]
        async with scraped_by(tmp_path, *jobs(group)) as (running, reader):
            engine.load(STEADY)
            found = await read_until(reader, busy)
            assert isinstance(found, Signals)
            assert (found.cores, found.pods, found.twice) == (1, 1, "")
            assert len(running.targets()) == 2


SECURED = {"image": "engine:1", "tls": {"secretName": "chat-tls"}}


async def test_with_tls_the_annotation_job_scrapes_the_control_port_alone(tmp_path: Path) -> None:
    async with chat() as engine:
        port = "__meta_kubernetes_pod_annotation_prometheus_io_port"
        targets = discovered(engine, engine=SECURED)
        assert {target[port] for target in targets} == {"8001"}
        # On loopback it is another one.
        found = [target | {port: str(engine.port)} for target in targets]
        async with scraped_by(tmp_path, annotation_job(found)) as (running, reader):
            engine.load(STEADY)
            seen = await read_until(reader, busy)
            assert isinstance(seen, Signals)
            assert (seen.cores, seen.pods, seen.twice) == (1, 1, "")
            assert [target["url"] for target in running.targets()] == [f"http://{engine.ip}:{engine.port}/metrics"]


async def test_with_tls_the_pod_monitor_scrapes_each_port_by_its_own_scheme(tmp_path: Path) -> None:
    async with chat() as engine:
        targets = discovered(engine, engine=SECURED)
        async with scraped_by(tmp_path, *pod_monitor_jobs(targets)) as (running, reader):
            engine.load(STEADY)
            assert isinstance(await read_until(reader, busy), Signals)
            schemes = {target["endpoint"]: target["url"].partition(":")[0] for target in running.targets()}
            assert schemes == {"http": "https", "control": "http"}


async def times_counted(engine: ServedEngine, reader: PrometheusReader) -> float:
    """How many times the requests of a load are counted, that begins now and ends."""
    plant = engine.engine.plant

    def counted(seen: Observation) -> bool:
        ended = plant.counts.finished > 20 and not plant.running and not plant.waiting
        return (
            ended
            and isinstance(seen, Signals)
            and isinstance(seen.load, RequestLoad)
            and seen.load.finished > 0.8 * plant.counts.finished
        )

    engine.load([PlantPhase(3, 16, 100, 16)])
    found = await read_until(reader, counted)
    assert isinstance(found, Signals)
    assert isinstance(found.load, RequestLoad)
    return found.load.finished / plant.counts.finished


def labelled(job: ScrapeJob) -> ScrapeJob:
    """A job that says container and port, too."""
    named = {"container": "name", "port": "port_name"}
    more = [
        {"source_labels": [f"__meta_kubernetes_pod_container_{known}"], "target_label": label}
        for label, known in named.items()
    ]
    return replace(job, relabelings=[*job.relabelings, *more])


def twice(found: Observation) -> bool:
    return isinstance(found, Signals) and found.twice != ""


async def test_a_pod_that_two_jobs_scrape_counts_once_and_both_are_named(tmp_path: Path) -> None:
    async with chat() as engine:
        containers = [target for target in discovered(engine) if target[INIT] == "false"]
        jobs = labelled(annotation_job(containers)), *pod_monitor_jobs(containers)
        async with scraped_by(tmp_path, *jobs, window=WIDE) as (_, reader):
            found = await read_until(reader, twice)
            assert isinstance(found, Signals)
            assert (found.cores, found.pods) == (1, 1)
            assert found.twice.startswith("jobs `flyball-system/flyball-engines`, `kubernetes-pods` scrape its pods")
            assert await times_counted(engine, reader) < 1.5


async def test_of_two_jobs_the_faster_one_is_believed(tmp_path: Path) -> None:
    async with chat() as engine:
        jobs = annotation_job(discovered(engine), scrape="7s"), *pod_monitor_jobs(discovered(engine))
        async with scraped_by(tmp_path, *jobs) as (_, reader):
            believed = "only `flyball-system/flyball-engines` is counted"
            await read_until(reader, lambda seen: isinstance(seen, Signals) and believed in seen.twice)
            found = (await reader.read({CHAT: 1}))[CHAT]
            assert isinstance(found, Signals)
            assert found.window_seconds < 21, "three scrapes of the slower one would span 21 s"


async def test_targets_that_lead_to_one_engine_count_once_and_their_job_is_named(tmp_path: Path) -> None:
    async with chat() as engine:
        # Each container and each port becomes a target of the one port.
        annotated = [
            target | {"__meta_kubernetes_pod_annotation_prometheus_io_port": str(engine.port)}
            for target in discovered(engine)
        ]
        async with scraped_by(tmp_path, labelled(annotation_job(annotated)), window=WIDE) as (running, reader):
            found = await read_until(reader, twice)
            assert len(running.targets()) == 3
            assert isinstance(found, Signals)
            assert (found.cores, found.pods) == (1, 1)
            assert found.twice.startswith("job `kubernetes-pods` has several targets for one engine")
            assert await times_counted(engine, reader) < 1.5


async def test_a_pod_elsewhere_that_carries_the_uid_counts_for_nobody(tmp_path: Path) -> None:
    world = TunerEnvironment()
    ours, foreign = world.engine("chat-0"), world.engine("chat-9")
    async with serving(ours, foreign):
        targets = [*discovered(ours), *discovered(foreign, namespace="elsewhere")]
        async with scraped_by(tmp_path, annotation_job(targets)) as (running, reader):
            await read_until(
                reader,
                lambda seen: (
                    isinstance(seen, Signals) and sum(target["health"] == "up" for target in running.targets()) == 2
                ),
            )
            found = await read_until(reader, lambda seen: isinstance(seen, Signals))
            assert isinstance(found, Signals)
            assert (found.cores, found.pods) == (1, 1)


@contextmanager
def exposing(registry: CollectorRegistry) -> Iterator[str]:
    """What serves these metrics, and its address."""
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def labels_of(running: Prometheus, series: str) -> list[dict[str, str]]:
    """The labels of series, once there are any."""
    with closing(PrometheusClient(running.url, timeout=2.0)) as client:
        await until("it is scraped", lambda: any(True for _ in client.query(series)))
        return [one.metric for one in client.query(series)]


@pytest.mark.parametrize(
    "jobs",
    [lambda target: pod_monitor_jobs([target], "flyball"), lambda target: [annotation_job([target])]],
    ids=["the chart's PodMonitor", "the community's annotation job"],
)
async def test_a_service_s_series_of_the_operator_keep_its_namespace(
    tmp_path: Path, jobs: Callable[[dict[str, str]], list[ScrapeJob]]
) -> None:
    registry = CollectorRegistry()
    TunerMetrics(registry).paused("team", "chat", True)
    with exposing(registry) as address:
        async with scraped_by(tmp_path, *jobs(operator_target(address))) as (running, _):
            found = await labels_of(running, PAUSED)
    assert [(one["namespace"], one["service"]) for one in found] == [("team", "chat")]


@pytest.mark.parametrize("honoured", [False, True])
async def test_what_a_pod_says_of_itself_counts_only_where_labels_are_honoured(tmp_path: Path, honoured: bool) -> None:
    registry = CollectorRegistry()
    claimed = {"namespace": "team", "pod": "chat-0", UID_LABEL: "uid-1", "engine": "0"}
    Gauge("flyball_running", "", claimed, registry=registry).labels(**claimed).set(7)
    async with chat() as pod:
        # The annotations of any other pod, scraped by the community's job, as it is and without honor_labels.
        with exposing(registry) as address:
            spoofing = discovered(pod, namespace="elsewhere", uid="uid-9")[0] | {"__address__": address}
            job = replace(annotation_job([spoofing]), honor_labels=honoured)
            async with scraped_by(tmp_path, job) as (running, _):
                (found,) = await labels_of(running, "flyball_running")
    whose = ("team", "uid-1") if honoured else ("elsewhere", "uid-9")
    assert (found["namespace"], found[UID_LABEL]) == whose
    assert ("exported_namespace" in found) is not honoured


def without(job: ScrapeJob, *labels: str) -> ScrapeJob:
    """The job without what sets these labels."""
    return replace(job, relabelings=[*job.relabelings, *({"action": "labeldrop", "regex": label} for label in labels)])


LACKING: list[tuple[str, Callable[[ServedEngine], list[ScrapeJob]], str]] = [
    ("nothing is scraped", lambda _: [], "Prometheus has no series flyball_running: no job scrapes port `control`"),
    (
        "no UID",
        lambda pod: [without(annotation_job(discovered(pod)), UID_LABEL)],
        f"job `kubernetes-pods` scrapes flyball_running without the target label {UID_LABEL}",
    ),
    (
        "no pod",
        lambda pod: [without(annotation_job(discovered(pod)), "pod")],
        "job `kubernetes-pods` scrapes flyball_running without the target label pod",
    ),
    (
        "no namespace",
        lambda pod: [without(annotation_job(discovered(pod)), "namespace")],
        "job `kubernetes-pods` scrapes flyball_running without the target label namespace",
    ),
    (
        "another namespace",
        lambda pod: [annotation_job(discovered(pod, namespace="elsewhere"))],
        "has the label namespace=elsewhere only",
    ),
    (
        "another service",
        lambda pod: [annotation_job(discovered(pod, uid="uid-9"))],
        "flyball_running is found for other services, not for UID uid-1 in team",
    ),
]


@pytest.mark.parametrize(("jobs", "said"), [case[1:] for case in LACKING], ids=[case[0] for case in LACKING])
async def test_what_a_job_lacks_is_said(
    tmp_path: Path, jobs: Callable[[ServedEngine], list[ScrapeJob]], said: str
) -> None:
    async with chat() as engine, scraped_by(tmp_path, *jobs(engine)) as (_, reader):
        found = await read_until(reader, lambda seen: isinstance(seen, Unobserved) and said in seen.detail)
        assert isinstance(found, Unobserved)
        assert found.reason is Missing.NOT_SCRAPED
        assert "docs/scraping.md" in found.detail
