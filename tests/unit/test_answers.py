"""What is made of Prometheus' answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flyball_engine.contract import StepKind
from flyball_operator.prometheus.answers import (
    Figures,
    StepKey,
    figures,
    name_of,
    pod_outcomes_of,
    ran_of,
    scrapes_of,
    signals_of,
    step_key,
    step_window,
)
from flyball_operator.prometheus.queries import (
    CELLS,
    COMPUTED_PROMPT_TOKENS,
    COMPUTED_PROMPT_TOKENS_SQUARED,
    COUNTED,
    DRAFTS,
    ENDED,
    NAMESPACE,
    OPEN,
    SCRAPED,
    UID,
    targets,
)
from flyball_operator.prometheus.vector import BadVectorError, parsed, vector_of
from flyball_operator.tuning.observe.signals import (
    CellKey,
    DraftSums,
    Missing,
    ObjectiveCounts,
    PodCounts,
    PromptSums,
    RequestLoad,
    Signals,
    StepWindow,
    Sums,
    Unobserved,
)

CHAT = ("team", "uid-1")


def cell(bucket: str = "64", kind: str = "decode", **sums: float) -> dict[StepKey, float]:
    return {(name, bucket, kind): value for name, value in sums.items()}


def decodes(bucket: str = "64") -> dict[StepKey, float]:
    """A cell without prompts, as Prometheus tells it: of sums that are zero nothing."""
    return cell(bucket, steps=10, seconds=0.2, seconds_squared=0.004, tokens=480, decodes=480, kv_tokens=9600)


SEEN: dict[StepKey, float] = {(CELLS, "", ""): 42}


class TestSteps:
    def test_a_sum_that_is_not_told_is_zero(self) -> None:
        found = step_window(decodes() | SEEN, 100.0, 15)
        assert isinstance(found, StepWindow)
        sums = Sums(steps=10, seconds=0.2, seconds_squared=0.004, tokens=480, decodes=480, kv_tokens=9600)
        assert found == StepWindow(start=85.0, end=100.0, cells={CellKey(64, StepKind.DECODE): sums})

    def test_no_steps_are_not_unknown_steps(self) -> None:
        idle = step_window(SEEN, 100.0, 15)
        assert isinstance(idle, StepWindow)
        assert idle.cells == {}
        unseen = step_window({}, 100.0, 15)
        assert isinstance(unseen, Unobserved)
        assert unseen.reason is Missing.TOO_FEW_SAMPLES

    def test_what_was_computed_of_prompts_is_known_where_an_engine_tells_of_it(self) -> None:
        told: dict[StepKey, float] = {
            (COMPUTED_PROMPT_TOKENS, "", ""): 440.0,
            (COMPUTED_PROMPT_TOKENS_SQUARED, "", ""): 161_600.0,
        }
        found = step_window(decodes() | SEEN | told, 100.0, 15)
        assert isinstance(found, StepWindow)
        assert found.prompts == PromptSums(tokens=440.0, squares=161_600.0)
        older = step_window(decodes() | SEEN, 100.0, 15)
        assert isinstance(older, StepWindow)
        assert older.prompts is None

    def test_drafts_are_known_by_position_from_the_first_on_as_far_as_all_of_one_is(self) -> None:
        told: dict[StepKey, float] = {
            (DRAFTS, position, state): value
            for position, values in (("2", (90.0, 80.0, 20.0)), ("1", (100.0, 80.0, 50.0)), ("4", (1.0, 1.0, 1.0)))
            for state, value in zip(DraftSums._fields, values, strict=True)
        }
        found = step_window(decodes() | SEEN | told, 100.0, 15)
        assert isinstance(found, StepWindow)
        assert found.drafts == (DraftSums(100.0, 80.0, 50.0), DraftSums(90.0, 80.0, 20.0))
        labels = {"field": DRAFTS, "position": "2", "state": "drafted"}
        assert step_key(labels) == (DRAFTS, "2", "drafted")

    def test_a_cell_without_time_or_tokens_is_left_out(self) -> None:
        found = step_window(cell("128", "mixed", steps=3, prefill_tokens=100) | decodes() | SEEN, 100.0, 15)
        assert isinstance(found, StepWindow)
        assert list(found.cells) == [CellKey(64, StepKind.DECODE)]

    @pytest.mark.parametrize(("bucket", "kind"), [("many", "decode"), ("64", "other")])
    def test_a_cell_that_is_none_is_left_out(self, bucket: str, kind: str) -> None:
        wrong = cell(bucket, kind, steps=1, seconds=1, seconds_squared=1, tokens=1)
        found = step_window(wrong | SEEN, 100.0, 15)
        assert isinstance(found, StepWindow)
        assert found.cells == {}

    def test_their_order_is_not_that_of_the_series(self) -> None:
        one, other = decodes("128") | decodes("2") | SEEN, SEEN | decodes("2") | decodes("128")
        found = [step_window(series, 100.0, 15) for series in (one, other)]
        assert [list(window.cells) for window in found if isinstance(window, StepWindow)] == [
            [CellKey(2, StepKind.DECODE), CellKey(128, StepKind.DECODE)]
        ] * 2


def sample(value: object = "1.5", **labels: Any) -> dict[str, Any]:
    return {"metric": {NAMESPACE: "team", UID: "uid-1", **labels}, "value": [100.0, value]}


class TestFigures:
    def test_they_are_by_service_and_job(self) -> None:
        found = figures(vector_of([sample(field="running"), sample("2", job="pods", field="running")]), name_of)
        assert found == Figures(100.0, {CHAT: {"": {"running": 1.5}, "pods": {"running": 2.0}}})

    def test_a_label_that_is_not_there_is_empty(self) -> None:
        assert figures(vector_of([sample(field=CELLS)]), step_key).of(CHAT) == {"": {(CELLS, "", ""): 1.5}}

    def test_what_has_no_uid_is_of_no_service(self) -> None:
        assert figures(vector_of([{"metric": {NAMESPACE: "team"}, "value": [100.0, "1"]}]), name_of) == Figures()

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "much"])
    def test_what_is_no_number_is_not_there(self, value: str) -> None:
        assert figures(vector_of([sample(value)]), name_of) == Figures()


def answer(result: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


class TestVectors:
    def test_an_answer_is_what_was_recorded_of_it(self) -> None:
        assert [*parsed(answer([sample(field="running")]))] == vector_of([sample(field="running")])

    @pytest.mark.parametrize("value", [1.5, None, "1" * 65])
    def test_a_figure_that_is_no_short_text_is_refused(self, value: object) -> None:
        refused([sample(value)])

    @pytest.mark.parametrize(
        "result", [None, {}, [1], [{"metric": [], "value": [1, "1"]}], [{"value": [1, "1"]}], [{"metric": {}}]]
    )
    def test_another_form_is_refused(self, result: object) -> None:
        refused(result)

    @pytest.mark.parametrize("label", ["field", "bucket", "kind", "job", "other", UID, NAMESPACE])
    @pytest.mark.parametrize("value", [5, None, ["a"], {}, True])
    def test_a_label_that_is_no_string_is_refused(self, label: str, value: object) -> None:
        refused([sample(), sample(**{label: value})])

    @pytest.mark.parametrize(
        "whole",
        [b"", b"[", b"{}", b'{"data": {}}', b'{"data": {"result": ["\xff"]}}', b'{"other": ' + b"[" * 100_000],
        ids=["nothing", "cut off", "no data", "no result", "no UTF-8", "nested without end"],
    )
    def test_what_is_no_whole_answer_is_refused(self, whole: bytes) -> None:
        with pytest.raises(BadVectorError):
            [*parsed(whole)]


def refused(result: object) -> None:
    """Both as an answer and as a recording."""
    with pytest.raises(BadVectorError, match="not an instant vector"):
        [*parsed(answer(result))]
    with pytest.raises(BadVectorError, match="not an instant vector"):
        vector_of(result)


def test_limits_that_ran_are_known_where_the_least_and_the_most_are() -> None:
    limits = {("least", "max_num_active_seqs"): 64.0, ("most", "max_num_active_seqs"): 128.0}
    assert ran_of({"": limits | {("least", "other"): 1.0, ("odd", ""): 1.0}}) == {"max_num_active_seqs": (64, 128)}


def test_a_service_is_asked_for_by_strings_that_end_nothing() -> None:
    asked = targets(("team", 'uid"} or up{a="\\'))
    assert asked.endswith('="uid\\"} or up{a=\\"\\\\"')


def test_sums_over_several_targets_of_an_engine_are_those_of_one() -> None:
    sums = {"running": 6, "waiting": 2, "ended": 30, "finished": 30, "prompt_tokens": 60, "generated_tokens": 90}
    load = {**sums, "cores": 2, "series": 4, "pods": 2, "age": 1, "kv_tokens": 1000, "uneven": 1.8}
    found = signals_of(
        CHAT,
        steps=Figures(100.0, {CHAT: {"pods": decodes() | SEEN}}),
        load=Figures(100.0, {CHAT: {"pods": load}}),
        outcomes=Figures(100.0, {CHAT: {"pods": {("", "ttft", "met"): 8.0}}}),
        scrapes=scrapes_of({"pods": load}, 2),
        window=15,
        pods=2,
    )
    assert isinstance(found, Signals)
    assert isinstance(found.load, RequestLoad)
    assert isinstance(found.steps, StepWindow)
    assert (found.cores, found.pods) == (2, 2)
    assert (found.load.running, found.load.finished, found.load.kv_tokens) == (3, 15, 1000)
    assert found.load.uneven == 1.8
    assert found.steps.total().steps == 5
    assert found.outcomes["ttft"].met == 4
    assert "several targets for one engine" in found.twice


class TestOutcomesOfPods:
    def test_a_pod_that_is_scraped_is_there_whether_it_counted_anything_or_not(self) -> None:
        found = pod_outcomes_of({"pods": scraped("a", "b") | counted("a", met=9, violated=1)})
        assert found == {"a": PodCounts({"ttft": ObjectiveCounts(9, 1)}), "b": PodCounts()}

    def test_one_job_is_believed_that_of_the_most_pods(self) -> None:
        whole = scraped("a", "b") | counted("a", met=9) | counted("b", met=8)
        assert pod_outcomes_of({"part": scraped("a") | counted("a", met=90), "whole": whole}) == {
            "a": PodCounts({"ttft": ObjectiveCounts(9, 0)}),
            "b": PodCounts({"ttft": ObjectiveCounts(8, 0)}),
        }

    def test_counts_of_a_pod_that_is_not_scraped_any_more_are_left_out(self) -> None:
        assert pod_outcomes_of({"pods": scraped("a") | counted("gone", met=9)}) == {"a": PodCounts()}

    def test_requests_that_end_with_an_error_are_counted_beside_those_of_objectives(self) -> None:
        ended = {(ENDED, "a", "", "finished"): 7.0, (ENDED, "a", "", "error"): 3.0}
        found = pod_outcomes_of({"pods": scraped("a") | counted("a", met=7) | ended})
        assert found == {"a": PodCounts({"ttft": ObjectiveCounts(7, 0)}, answered=7, failed=3)}

    def test_open_requests_count_once_their_outcome_is_certain(self) -> None:
        more = {
            (OPEN, "waits", "ttft", "violated"): 3.0,
            (OPEN, "waits", "ttft", "met"): 5.0,
            (OPEN, "caught-up", "ttft", "violated"): -2.0,
        }
        said = (
            scraped("waits", "caught-up")
            | counted("waits", met=9, violated=1)
            | counted("caught-up", met=9, violated=2)
        )
        found = pod_outcomes_of({"pods": said | more})
        assert found["waits"].objectives == {"ttft": ObjectiveCounts(14, 4)}
        assert found["caught-up"].objectives == {"ttft": ObjectiveCounts(9, 0)}, "certain before the window began"

    def test_beside_a_plugin_that_does_not_tell_of_open_requests_those_of_no_pod_count(self) -> None:
        said = scraped("earlier", "new") | counted("earlier", met=9) | counted("new", met=9)
        found = pod_outcomes_of({"pods": said | {(OPEN, "new", "ttft", "violated"): 5.0}})
        assert found["new"] == found["earlier"]

    def test_of_nothing_there_is_nothing(self) -> None:
        assert pod_outcomes_of({}) == {}


def scraped(*pods: str) -> dict[tuple[str, str, str, str], float]:
    return {(SCRAPED, pod, "", ""): 1.0 for pod in pods}


def counted(pod: str, **outcomes: float) -> dict[tuple[str, str, str, str], float]:
    return {(COUNTED, pod, "ttft", outcome): value for outcome, value in outcomes.items()}
