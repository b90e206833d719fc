"""New revisions on a share of the pods under load: a worse one is aborted, a better one promoted, no request fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flyball_lab.harness.streams import StreamLoad
from support.cluster import Object, apply, delete, patch
from support.live import ENGINE_START_SECONDS, MODEL, RESOURCE, Flyball, Service, in_time, inference_service

pytestmark = pytest.mark.cluster

#: In a pod that runs one at a time most of so many requests wait, and each waits for many answers: far longer than the
#: objective. The other pod, with which it shares two slow cores, is left few.
CONCURRENCY, ANSWER = 24, 24
FIRST_TOKEN = "10s"
WORSE, BETTER = {"maxNumSeqs": 1}, {"maxNumSeqs": 96}
#: Time in which a pod with one place finishes the 50 requests that it is judged by, and time for those that wait in it
#: when it ends.
ROLLOUT = {"canary": {"duration": "3m"}, "drainTimeout": "3m"}
SECONDS = 2 * ENGINE_START_SECONDS


@pytest.fixture
def canaried(flyball: Flyball) -> Iterator[Service]:
    """A service of its own with one replica, whose new revisions are judged."""
    service = Service("canaried", flyball.watched)
    asked = inference_service(service.name, image=flyball.refs["engine-cpu"], objectives=in_time(FIRST_TOKEN, "1s"))
    asked["spec"]["rollout"] |= ROLLOUT
    apply(asked, namespace=service.namespace)
    service.expect_governed()
    yield service
    delete(RESOURCE, service.name, namespace=service.namespace)


@pytest.mark.timeout(3 * SECONDS)
def test_a_worse_revision_is_aborted_and_a_better_one_promoted_without_a_failed_request(
    canaried: Service, note_figure: Callable[[str], None]
) -> None:
    earlier = canaried.pod()["metadata"]["uid"]
    load = StreamLoad(url=canaried.url(), model=MODEL, concurrency=CONCURRENCY, max_tokens=ANSWER)
    with load.running() as totals:
        roll(canaried, WORSE)
        aborted = canaried.expect_condition("Progressing", "False", reason="RolledBack", within=SECONDS)
        note_figure(aborted["message"])
        assert aborted["message"].startswith("CanaryMissedObjectives: ")
        assert earlier in {pod["metadata"]["uid"] for pod in canaried.pods()}, "the earlier pod serves on"
        at_abort = totals.finished
        roll(canaried, BETTER)
        canaried.expect_condition("Ready", "True", reason="Serving", edited=True, within=SECONDS)
        assert earlier not in {pod["metadata"]["uid"] for pod in canaried.pods() if not leaving(pod)}
    totals.expect_nothing_lost()
    note_figure(f"{at_abort} requests finished until the abort, {totals.finished} in all; none failed")


def roll(service: Service, batching: Object) -> None:
    """Ask for a revision with these ceilings, and wait until it is judged."""
    patch(RESOURCE, service.name, {"spec": {"batching": batching}}, namespace=service.namespace)
    service.expect_condition("Progressing", "True", reason="CanaryAnalysis", edited=True)


def leaving(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
