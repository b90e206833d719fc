"""A service whose number of replicas somebody else sets: a rule of the scaling bench, by what Prometheus says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flyball_lab.benches.scaling.rules import PERIOD, Saturation
from flyball_lab.harness.prometheus_api import PrometheusApi
from support.cluster import KubectlError, condition, kubectl
from support.live import RESOURCE, Service


@contextmanager
def scaled_by(rule: Saturation, service: Service, prometheus: PrometheusApi) -> Iterator[list[str]]:
    """The rule is asked every period for as long as the block lasts; gives the looks that came to nothing, and why."""
    failed: list[str] = []
    ends = threading.Event()

    def follow() -> None:
        while not ends.wait(PERIOD):
            try:
                _scale(rule, service, prometheus)
            except (KubectlError, OSError, AssertionError) as error:
                failed.append(str(error))

    thread = threading.Thread(target=follow, name="rule")
    thread.start()
    try:
        yield failed
    finally:
        ends.set()
        thread.join()


def _scale(rule: Saturation, service: Service, prometheus: PrometheusApi) -> None:
    """As many as the rule says, by the pods that serve and are scraped."""
    current = int(service.read()["spec"]["replicas"])
    serving = [
        pod["metadata"]["name"]
        for pod in service.pods()
        if "deletionTimestamp" not in pod["metadata"] and condition(pod, "Ready").get("status") == "True"
    ]
    of_cache, of_queue = (
        _by_pod(prometheus, f"{name}{{namespace='{service.namespace}'}}")
        for name in ("vllm:kv_cache_usage_perc", "vllm:num_requests_waiting")
    )
    usage = [(of_cache[pod], of_queue[pod]) for pod in serving if pod in of_cache and pod in of_queue]
    if usage and (wanted := rule.number(usage, current)) != current:
        kubectl("scale", f"{RESOURCE}/{service.name}", f"--replicas={wanted}", "-n", service.namespace)


def _by_pod(prometheus: PrometheusApi, query: str) -> dict[str, float]:
    found = prometheus.instant(query, time.time())
    return {labels["pod"]: next(iter(values.values())) for labels, values in found}
