"""What is said where no series of a service are found; tests/contract/test_scrape_jobs.py has it with a Prometheus."""

from __future__ import annotations

import threading
from typing import Any

from flyball_operator.prometheus.answers import CountKey, attained_of, scrapes_of
from flyball_operator.prometheus.queries import ENGINES, FIELD, JOB, UID, UP, found
from flyball_operator.prometheus.reader import PrometheusReader
from flyball_operator.prometheus.unseen import Found, rows_of, why
from flyball_operator.prometheus.vector import vector_of
from flyball_operator.tuning.observe.signals import Attainment, Missing, OrderOutcome, Unobserved

CHAT = ("team", "uid-1")


def engines(namespace: str = "team", uid: str = "uid-1", *, job: str = "pods", field: str = ENGINES) -> Found:
    return Found(field, job, namespace, uid)


def test_an_answer_is_read_by_its_labels() -> None:
    sample = {"metric": {FIELD: ENGINES, JOB: "pods", UID: "uid-1"}, "value": [1.0, "2"]}
    assert rows_of(vector_of([sample])) == [engines(namespace="")]


def test_pods_that_answer_without_an_engine_s_family_are_scraped_at_another_port() -> None:
    said = why(CHAT, [engines(field=UP), engines(uid="uid-2")])
    assert said == (
        "job `pods` scrapes pods of this service, but flyball_running is not among what it finds. "
        "Let it scrape port `control` (8001 by default) of the pods, path /metrics; see docs/scraping.md"
    )


def test_what_concerns_the_service_comes_before_what_concerns_others() -> None:
    assert "without the target label namespace" in why(CHAT, [engines(namespace=""), engines(uid="")])
    assert "namespace=elsewhere only" in why(CHAT, [engines("elsewhere"), engines("elsewhere", "uid-2")])


def test_another_namespace_s_series_without_a_uid_say_nothing_of_this_one() -> None:
    said = why(CHAT, [engines("elsewhere", "")])
    assert said.startswith("flyball_running is found for other services, not for UID uid-1 in team.")


def test_of_many_jobs_a_few_are_named() -> None:
    said = why(CHAT, [engines(uid="", job=f"job-{number}") for number in range(7)])
    assert said.startswith("job `job-0`, `job-1`, `job-2`, `job-3`, `job-4` and 2 more scrapes flyball_running without")


class TestJobs:
    def test_the_job_that_sees_the_most_pods_is_believed_then_the_faster_one(self) -> None:
        slow, fast = {"pods": 2.0, "interval": 60.0}, {"pods": 2.0, "interval": 5.0}
        found = scrapes_of({"slow": slow, "fast": fast}, 2)
        assert (found.job, found.interval) == ("fast", 5)
        assert found.twice == "jobs `fast`, `slow` scrape its pods; only `fast` is counted, remove the others"
        assert scrapes_of({"slow": slow, "fast": {"pods": 1.0, "interval": 5.0}}, 2).job == "slow"

    def test_a_job_with_more_pods_than_there_are_is_not_believed_over_one_that_sees_all(self) -> None:
        honest, claimed = {"pods": 2.0, "interval": 5.0}, {"pods": 12.0, "interval": 1.0}
        assert scrapes_of({"podmonitor": honest, "annotations": claimed}, 2).job == "podmonitor"

    def test_one_job_is_nothing_to_speak_of(self) -> None:
        found = scrapes_of({"pods": {"pods": 2.0, "cores": 2.0, "series": 2.0}}, 2)
        assert (found.job, found.interval, found.share, found.twice) == ("pods", 0.0, 1.0, "")
        assert scrapes_of({}, 0).twice == ""

    def test_requests_are_counted_by_the_job_that_counted_the_most(self) -> None:
        assert attained_of({"a": met(10), "b": met(20)}).outcomes["ttft"].met == 20
        assert attained_of({}) == Attainment()

    def test_what_the_order_did_is_told_by_the_same_job_and_only_whole(self) -> None:
        order = {"moved_behind": 12.0, "in_time_after_all": 5.0, "longest_wait": 31.0}
        told: dict[CountKey, float] = {(name, "", ""): value for name, value in order.items()}
        more: dict[CountKey, float] = {(name, "", ""): 9 * value for name, value in order.items()}
        assert attained_of({"a": met(10) | more, "b": met(20) | told}).order == OrderOutcome(**order)
        del told["moved_behind", "", ""]
        found = attained_of({"a": met(10), "b": met(20) | told})
        assert found.order is None, "an engine older than the order counts nothing of it"


def met(requests: float) -> dict[CountKey, float]:
    """So many requests that met their objective."""
    return {("objective", "ttft", "met"): requests}


class SlowToExplain:
    """Prometheus without any series, that does not answer what is scraped at all until it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()

    def query(self, text: str, at: float | None = None) -> Any:
        if text == found():
            self.let.wait(30)
        return []

    def close(self) -> None:
        self.let.set()


async def test_a_service_that_takes_long_to_explain_keeps_no_other_from_being_read() -> None:
    source = SlowToExplain()
    reader = PrometheusReader(source, timeout=0.2)
    try:
        for _ in range(2):
            seen = (await reader.read({CHAT: 1}))[CHAT]
            assert isinstance(seen, Unobserved)
            assert seen.reason is Missing.NOT_SCRAPED
        assert await reader.attainment() == {}
    finally:
        reader.close()
