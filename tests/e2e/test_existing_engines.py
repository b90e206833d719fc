"""A plain Deployment of vLLM, which others make: tuned by a label, and given back without a restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from support.cluster import delete, kubectl, patch
from support.engine_starts import EngineStarts
from support.existing_engine import NAME, START, Existing
from support.live import ENGINE_START_SECONDS, RESOURCE, Flyball, in_time

pytestmark = [pytest.mark.cluster, pytest.mark.alone]


@pytest.fixture
def existing(flyball: Flyball, starts: EngineStarts) -> Iterator[Existing]:
    """The Deployment and the service that tunes it; both are gone at the end."""
    starts.ask("existing")
    service = Existing(NAME, flyball.watched)
    yield service
    service.remove()


def same_start(service: Existing) -> Callable[[], None]:
    """Checks that the engine was not restarted since."""
    before = _start(service)

    def check() -> None:
        assert _start(service) == before

    return check


def _start(service: Existing) -> tuple[str, Any]:
    pod = service.theirs()
    return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]


def test_a_plain_deployment_is_tuned_by_a_label_and_given_back_without_a_restart(
    existing: Existing, flyball: Flyball, note_figure: Callable[[str], None]
) -> None:
    existing.expect_governed(within=ENGINE_START_SECONDS)
    not_restarted = same_start(existing)
    assert "does not replace, roll back or scale" in existing.condition("Progressing")["message"]
    with existing.streams(6).running() as load:
        existing.expect_condition("Tuned", "True", within=300)
        change = {"spec": {"objectives": in_time("5s", "100ms")}}
        patch(RESOURCE, existing.name, change, namespace=existing.namespace)

        def smaller() -> bool:
            return any(existing.limits()[knob] < START[knob] for knob in START)

        eventually(smaller, expecting="smaller steps for the objective", within=120)
        note_figure(f"limits of a Deployment of others at an objective of 100 ms for a token: {existing.limits()}")
    assert not load.failures, load.failures[0]

    pod = existing.theirs()["metadata"]["name"]
    uid = existing.uid
    kubectl("label", "pod", pod, f"{names.LABEL_SERVICE}-", f"{names.LABEL_SERVICE_UID}-", "-n", existing.namespace)
    existing.expect_start_values()
    assert pod in existing.expect_condition("Ready", "False", reason="PluginMissing")["message"]
    labels = (f"{names.LABEL_SERVICE}={existing.name}", f"{names.LABEL_SERVICE_UID}={uid}")
    kubectl("label", "pod", pod, *labels, "-n", existing.namespace)
    labelled = time.monotonic()
    eventually(lambda: existing.limits() != START, expecting="the pod is tuned again", within=120)
    note_figure(f"a pod of others runs under limits of the law {time.monotonic() - labelled:.0f} s after its label")
    existing.expect_governed()

    delete(RESOURCE, existing.name, namespace=existing.namespace)
    existing.expect_start_values()
    not_restarted()
    existing.expect_unwritten(flyball.audit)
