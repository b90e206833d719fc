"""A pod with two engine cores (`spec.parallelism.data`): both follow the limits, and requests are spread over both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, apply, delete, patch
from support.live import RESOURCE, Flyball, Service, inference_service

pytestmark = pytest.mark.cluster

NAME = "two-cores"


@pytest.fixture
def two_cores(flyball: Flyball) -> Iterator[Service]:
    """A governed service of one such pod; gone at the end, since each core takes a processor from the others."""
    service = Service(NAME, flyball.watched)
    manifest = inference_service(NAME, image=flyball.refs["engine-cpu"], parallelism={"data": 2})
    manifest["spec"]["podTemplate"]["resources"]["limits"]["memory"] = "8Gi"
    apply(manifest, namespace=flyball.watched)
    service.expect_governed()
    yield service
    delete(RESOURCE, NAME, namespace=flyball.watched)


def cores(service: Service) -> list[Object]:
    found: list[Object] = service.read_back()["cores"]
    return found


def test_both_cores_follow_the_limits_and_no_request_is_lost(two_cores: Service) -> None:
    pod = two_cores.pod()
    bounds = {"maxNumActiveSeqs": {"min": 8, "max": 8}, "maxNumScheduledTokens": {"min": 512, "max": 512}}
    with two_cores.streams(16).running() as totals:
        patch(RESOURCE, NAME, {"spec": {"tuning": {"bounds": bounds}}}, namespace=two_cores.namespace)
        wanted = {"max_num_active_seqs": 8, "max_num_scheduled_tokens": 512}
        eventually(
            lambda: (
                len(cores(two_cores)) == 2
                and all(wanted.items() <= one["effective"].items() for one in cores(two_cores))
            ),
            expecting=f"both cores run under {wanted}",
        )
        eventually(
            lambda: all(sum(sums["steps"] for sums in one["steps"]) > 0 for one in cores(two_cores)),
            expecting="both cores serve requests",
        )
    totals.expect_nothing_lost()
    assert two_cores.pod()["metadata"]["uid"] == pod["metadata"]["uid"]
    two_cores.expect_condition("MetricsAvailable", "True")
