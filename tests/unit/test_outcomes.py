"""Requests counted against objectives: which requests count, against what, and when."""

from __future__ import annotations

import pytest

from flyball_engine.batching.outcomes import End, RequestLedger
from flyball_engine.contract import Metric, ObjectiveSpec
from support.requests import E2E, GAP, TPOT, TTFT, Story


def test_a_fast_answer_meets_every_objective() -> None:
    story = Story(TTFT, TPOT, E2E)
    story.arrives().streams(0.4, 0.44, 0.48)
    story.expect_requests(finished=1)
    for objective in (TTFT, TPOT, E2E):
        story.expect(objective, met=1)
    story.expect_together(met=1)


@pytest.mark.parametrize(
    ("times", "violated"),
    [
        ((0.51, 0.55), TTFT),
        ((0.1, 0.151), TPOT),
        ((0.1, *(0.1 + 0.05 * n for n in range(1, 98)), 5.01), E2E),
    ],
)
def test_one_violated_objective_violates_all_together(times: tuple[float, ...], violated: ObjectiveSpec) -> None:
    objectives = (TTFT, TPOT.model_copy(update={"threshold_seconds": 0.0506}), E2E)
    story = Story(*objectives)
    story.arrives().streams(*times)
    story.expect_together(violated=1)
    for objective in objectives:
        hit = objective.metric is violated.metric
        story.expect(objective, met=int(not hit), violated=int(hit))


def test_a_threshold_is_met_when_hit_exactly() -> None:
    story = Story(TTFT)
    story.arrives().streams(0.5)
    story.expect(TTFT, met=1)


def test_the_wait_for_the_first_token_counts_from_arrival_not_from_the_engine() -> None:
    story = Story(TTFT)
    story.arrives(at=3.0).streams(3.6)
    story.expect(TTFT, violated=1)


def test_a_one_token_answer_has_no_time_per_token_and_counts_on_the_rest() -> None:
    story = Story(TTFT, TPOT)
    story.arrives().streams(0.4)
    story.expect(TTFT, met=1)
    story.expect(TPOT)
    story.expect_together(met=1)


def test_deliveries_may_be_told_at_once_with_their_gaps_counted_apart() -> None:
    ledger = RequestLedger()
    ledger.set_objectives((TTFT, TPOT, GAP))
    request = ledger.opened(0.0)
    sequence = ledger.started(request)
    ledger.ended(request, End.ANSWERED, 0.0)
    ledger.received(sequence, tokens=1, at=0.4, now=0.4)
    ledger.gaps_passed(GAP, met=99, violated=1)
    ledger.caught_up(sequence, tokens=200, gaps=100, at=4.4)
    ledger.done(sequence, prompt=10, cached=0, now=4.4)
    counts = ledger.collect()
    assert counts.objectives[TPOT.id, "met"] == 1, "20 ms per token"
    assert (counts.objectives[GAP.id, "met"], counts.objectives[GAP.id, "violated"]) == (99, 1)
    assert counts.generated_tokens == 201


def test_an_empty_answer_made_its_client_wait_until_its_end() -> None:
    story = Story(TTFT)
    story.arrives().reaches_engine().ends(0.7).closes(End.ANSWERED, 0.7)
    story.expect(TTFT, violated=1)


def test_several_sequences_are_one_request_with_the_first_token_of_any_and_the_pace_of_the_slowest() -> None:
    story = Story(TTFT, TPOT, E2E)
    client = story.arrives().reaches_engine(3)
    client.gets(0.4, 0.42, of=1).ends(0.42, of=1)
    client.gets(0.9, 0.92, of=0).ends(0.92, of=0)
    story.expect_requests()
    client.gets(0.9, 1.1, of=2).ends(1.1, of=2).closes(End.ANSWERED, 1.1)
    story.expect_requests(finished=1)
    story.expect(TTFT, met=1)
    story.expect(TPOT, violated=1)
    story.expect(E2E, met=1)


def test_beams_that_start_while_others_ended_belong_to_the_same_request() -> None:
    story = Story(E2E)
    client = story.arrives()
    for step in range(5):
        client.reaches_engine(2)
        for beam in (2 * step, 2 * step + 1):
            client.gets(step + 0.9, of=beam).ends(step + 0.9, of=beam)
    client.closes(End.ANSWERED, 5.0)
    story.expect_requests(finished=1)
    story.expect(E2E, met=1)


def test_gaps_are_units_of_their_own() -> None:
    story = Story(GAP)
    story.arrives().streams(1.0, 1.09, 1.15, 1.4, 1.45)
    story.expect(GAP, met=3, violated=1)


def test_one_late_token_does_not_fail_a_long_answer_but_a_slow_stream_does() -> None:
    story = Story(GAP)
    story.arrives().streams(0.0, 0.5, *(0.5 + 0.05 * n for n in range(1, 20)))
    story.expect_together(met=1)
    story.arrives().streams(0.0, 0.15, 0.3, 0.45)
    story.expect_together(met=1, violated=1)


def test_tokens_that_come_together_are_one_gap_but_as_many_tokens() -> None:
    story = Story(GAP, TPOT)
    story.arrives().reaches_engine().gets(0.0, 0.16, 0.32, tokens=4).ends(0.32).closes(End.ANSWERED, 0.32)
    story.expect(GAP, violated=2)
    story.expect(TPOT, met=1)
    assert story.counts.generated_tokens == 12


def test_a_client_that_leaves_past_the_first_token_deadline_is_a_violation() -> None:
    story = Story(TTFT, E2E)
    story.arrives().reaches_engine().closes(End.LEFT, 0.6)
    story.expect_requests(abandoned=1)
    story.expect(TTFT, violated=1)
    story.expect(E2E)
    story.expect_together(violated=1)


def test_a_client_that_leaves_before_any_deadline_counts_for_nothing() -> None:
    story = Story(TTFT, E2E)
    story.arrives().reaches_engine().closes(End.LEFT, 0.4)
    story.expect_requests(aborted=1)
    for objective in (TTFT, E2E):
        story.expect(objective)
    story.expect_together()


def test_a_client_that_leaves_in_mid_answer_had_its_first_token_in_time() -> None:
    story = Story(TTFT, E2E)
    story.arrives().reaches_engine().gets(0.4).closes(End.LEFT, 2.0)
    story.expect_requests(aborted=1)
    story.expect(TTFT, met=1)
    story.expect(E2E)
    story.expect_together()


def test_where_first_tokens_are_all_that_is_asked_who_leaves_in_mid_answer_met_it_all() -> None:
    story = Story(TTFT)
    client = story.arrives().reaches_engine().gets(0.4)
    story.expect_open(met=[TTFT], at=0.51)
    client.closes(End.LEFT, 2.0)
    story.expect_open(at=2.0)
    story.expect(TTFT, met=1)
    story.expect_together(met=1)


def test_a_client_that_leaves_past_the_whole_deadline_still_met_the_first_token() -> None:
    story = Story(TTFT, E2E)
    story.arrives().reaches_engine().gets(0.4, 2.0).closes(End.LEFT, 5.1)
    story.expect(TTFT, met=1)
    story.expect(E2E, violated=1)
    story.expect_together(violated=1)


def test_a_client_that_leaves_a_stream_that_was_too_slow_is_a_violation() -> None:
    story = Story(TPOT)
    story.arrives().reaches_engine().gets(0.0, 0.1, 0.2).closes(End.LEFT, 0.2)
    story.expect(TPOT, violated=1)


def test_a_client_that_leaves_a_stalled_stream_is_a_violation_the_wait_counts() -> None:
    story = Story(TPOT, GAP)
    story.arrives().reaches_engine().gets(0.0, 0.01, 0.02).closes(End.LEFT, 30.0)
    story.expect_requests(abandoned=1)
    story.expect_together(violated=1)


def test_a_client_that_leaves_before_the_engine_had_its_prompt() -> None:
    story = Story(TTFT)
    story.arrives().closes(End.LEFT, 0.2)
    story.arrives().closes(End.LEFT, 0.7)
    story.expect_requests(aborted=1, abandoned=1)


def test_that_an_open_request_waits_too_long_is_certain_until_it_ends_and_is_counted() -> None:
    story = Story(TTFT, E2E)
    client = story.arrives().reaches_engine()
    story.expect_open(at=0.5)
    story.expect_open(violated=[TTFT], at=0.51)
    client.gets(0.6, 0.7)
    story.expect_open(violated=[TTFT], at=5.0)
    story.expect(TTFT)
    story.expect_open(violated=[TTFT, E2E], at=5.1)
    client.ends(5.2).closes(End.ANSWERED, 5.2)
    story.expect_open(at=9.0)
    for objective in (TTFT, E2E):
        story.expect(objective, violated=1)


def test_that_a_first_token_came_in_time_is_certain_at_its_deadline_however_long_the_answer() -> None:
    story = Story(TTFT)
    client = story.arrives().reaches_engine().gets(0.4)
    story.expect_open(at=0.5)
    story.expect_open(met=[TTFT], at=0.51)
    client.ends(99.0).closes(End.ANSWERED, 99.0)
    story.expect_open(at=99.1)
    story.expect(TTFT, met=1)


def test_an_answer_that_was_there_in_time_is_met_while_its_client_reads_on() -> None:
    story = Story(E2E)
    client = story.arrives().reaches_engine().gets(0.4).ends(4.0)
    story.expect_open(met=[E2E], at=9.0)
    client.closes(End.ANSWERED, 9.0)
    story.expect(E2E, met=1)


def test_of_what_may_change_yet_and_of_what_may_generate_nothing_nothing_is_certain() -> None:
    story = Story(TTFT, TPOT, GAP)
    story.arrives()
    story.arrives().reaches_engine().gets(0.1, 9.0)
    story.expect_open(met=[TTFT], at=99.0)


@pytest.mark.parametrize("how", [End.REFUSED, End.FAILED])
def test_who_waited_too_long_and_is_refused_or_fails_is_not_counted(how: End) -> None:
    story = Story(TTFT)
    client = story.arrives().reaches_engine()
    story.expect_open(violated=[TTFT], at=9.0)
    client.closes(how, 9.0)
    story.expect_open(at=9.0)
    story.expect(TTFT)


def test_refused_and_failed_requests_are_counted_apart() -> None:
    story = Story(TTFT)
    story.arrives().closes(End.REFUSED, 0.1)
    story.arrives().reaches_engine().gets(0.1).closes(End.FAILED, 0.2)
    story.arrives().reaches_engine().gets(0.1).ends(0.2, failed=True).closes(End.ANSWERED, 0.2)
    story.expect_requests(refused=1, error=2)
    story.expect(TTFT)
    story.expect_together()


def test_a_client_that_leaves_behind_the_last_token_has_its_answer() -> None:
    story = Story(TTFT)
    story.arrives().reaches_engine().gets(0.1).ends(0.1).closes(End.LEFT, 9.0)
    story.expect_requests(finished=1)
    story.expect(TTFT, met=1)


def test_an_answer_in_the_background_ends_with_its_last_sequence() -> None:
    story = Story(E2E)
    client = story.arrives().reaches_engine().gets(0.1)
    client.closes(End.ANSWERED, 0.2)
    story.expect_requests()
    client.gets(6.0).ends(6.0)
    story.expect_requests(finished=1)
    story.expect(E2E, violated=1)


def test_what_generates_nothing_is_not_counted() -> None:
    story = Story(TTFT)
    client = story.arrives()
    story.ledger.forgotten(client.request)
    client.closes(End.ANSWERED, 1.0)
    story.arrives().closes(End.ANSWERED, 1.0)
    story.expect_requests()


def test_requests_count_against_the_objectives_in_force_when_they_end() -> None:
    story = Story(TTFT)
    client = story.arrives().reaches_engine().gets(0.4)
    story.ledger.set_objectives([TPOT])
    client.gets(0.44).ends(0.44).closes(End.ANSWERED, 0.44)
    story.expect(TPOT, met=1)
    assert all(identity == TPOT.id for identity, _ in story.counts.objectives)


def test_an_edit_keeps_the_counts_of_objectives_that_stay() -> None:
    story = Story(TTFT, TPOT)
    story.arrives().streams(0.4, 0.44)
    edited = ObjectiveSpec(metric=Metric.TIME_PER_OUTPUT_TOKEN, threshold_seconds=0.02)
    story.ledger.set_objectives([TTFT, edited])
    story.expect(TTFT, met=1)
    story.expect(edited)
    story.expect_together()


def test_counters_are_there_before_the_first_request() -> None:
    story = Story(TTFT)
    story.expect(TTFT)
    story.expect_together()
    assert set(story.counts.requests.values()) == {0}


def test_requests_are_counted_by_the_adapters_of_the_list_alone() -> None:
    ledger = RequestLedger()

    def served(adapter: str) -> None:
        request = ledger.opened(0.0)
        request.adapter = adapter
        sequence = ledger.started(request)
        ledger.received(sequence, tokens=3, at=0.5, now=0.5)
        ledger.done(sequence, prompt=10, cached=0, now=0.5)
        ledger.ended(request, End.ANSWERED, 0.5)

    ledger.set_adapters(["sql", "law"])
    for adapter in ("sql", "sql", "", "unlisted"):
        served(adapter)
    counts = ledger.collect()
    assert counts.adapters["sql", "finished"] == 2
    assert counts.adapters["law", "finished"] == 0
    assert counts.adapter_tokens == {"sql": 6, "law": 0}
    assert {name for name, _ in counts.adapters} == {"sql", "law"}, "labels are those of the list"
    assert counts.requests["finished"] == 4
    ledger.set_adapters(["sql"])
    assert ledger.collect().adapter_tokens == {"sql": 6}, "what stays keeps its counts"


def test_without_objectives_requests_and_tokens_are_counted_all_the_same() -> None:
    story = Story()
    story.arrives().reaches_engine(2).gets(0.1, 0.2, of=0).gets(0.1, of=1).ends(0.2, of=0, prompt=8, cached=0).ends(
        0.2, of=1, prompt=8, cached=6
    ).closes(End.ANSWERED, 0.2)
    counts = story.counts
    story.expect_requests(finished=1)
    assert not counts.objectives
    assert not counts.all_objectives
    assert (counts.generated_tokens, counts.prompt_tokens, counts.cached_prompt_tokens) == (3, 16, 6)


def test_beyond_the_capacity_the_oldest_request_is_given_up_and_said_to_be() -> None:
    story = Story(TTFT, capacity=2)
    clients = [story.arrives() for _ in range(3)]
    story.expect_requests(uncounted=1)
    for client in clients:
        client.streams(0.1)
    story.expect_requests(uncounted=1, finished=2)


def test_a_fault_in_what_feeds_the_ledger_is_counted_once_per_request() -> None:
    story = Story(TTFT)
    client = story.arrives().reaches_engine()
    story.ledger.lost(client.request)
    story.ledger.lost(client.request)
    client.gets(0.1).ends(0.1).closes(End.ANSWERED, 0.1)
    story.ledger.lost(None)
    story.expect_requests(uncounted=2)
    story.expect(TTFT)
