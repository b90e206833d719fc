"""What is known of a version of vLLM before it runs, and what Flyball makes of what is absent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flyball_engine.contract import Knob
from flyball_engine.vllm import plugin
from flyball_engine.vllm.attributes import Unreadable, first_lack, look, names_of
from flyball_engine.vllm.compat import EVERYTHING, SCHEDULER, Used
from flyball_engine.vllm.means import Means, Way
from flyball_engine.vllm.scheduler_adapter import UngovernableError
from flyball_engine.vllm.support import Support, support
from flyball_lab.tools import versions
from support.plain_scheduler import GovernedCore, PlainConfig, PlainScheduler


class Older:
    kind = "a request"

    def __init__(self) -> None:
        self.first, (self.second, self.third) = 1, (2, 3)
        self.annotated: int = 4
        other = Other()
        other.elsewhere = 5

    @property
    def computed(self) -> int:
        return self.first

    def later(self) -> None:
        self.late = 6


class Newer(Older):
    def __init__(self) -> None:
        super().__init__()
        self.added = 7


@dataclass
class Output:
    tokens: int
    names: list[str] = field(default_factory=list)


class Other:
    elsewhere: int

    def __getattr__(self, name: str) -> int:
        return 0


def test_what_instances_have_is_known_of_a_class() -> None:
    names = names_of(Newer)
    assert {"first", "second", "third", "annotated", "late", "computed", "later", "kind", "added"} <= names
    assert not {"elsewhere", "other"} & names
    assert {"tokens", "names"} <= names_of(Output)
    for instance in (Newer(), Output(1)):
        assert set(vars(instance)) <= names_of(type(instance))


def test_a_class_that_cannot_be_read_is_not_judged() -> None:
    made: dict[str, Any] = {}
    exec("class Made:\n    def __init__(self):\n        self.first = 1\n", made)
    for unreadable in (made["Made"], Other):
        with pytest.raises(Unreadable):
            names_of(unreadable)
    assert look(Used(module=__name__, name="Other", needed=("first",))) is None
    assert look(Used(module=__name__, name="NoSuchClass", needed=("first",))) is None
    assert look(Used(module="no.such.module", name="Older", needed=("first",))) is None
    assert first_lack([Used(module=__name__, name="Other", needed=("first",))]) is None


def used(*needed: str) -> Used:
    return Used(module=__name__, name="Older", needed=needed)


def test_the_first_class_that_lacks_something_is_named_with_all_of_it() -> None:
    assert first_lack([used("first", "computed")]) is None
    assert first_lack([used("first"), used("one", "late", "two")]) == "this vLLM's Older has no one, two"


def test_requests_that_cannot_be_read_leave_plain_vllm_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "STEP", (used("is_prefill_chunk"),))
    monkeypatch.setattr(plugin, "ensure_state_dir", lambda: None)
    monkeypatch.setattr(plugin._Registration, "failure", None)
    plugin.register()
    assert plugin.failure() == "UngovernableError: this vLLM's Older has no is_prefill_chunk"


class WithoutThreshold:
    """A configuration as vLLM's, but for the threshold."""

    max_num_seqs = 16
    max_num_batched_tokens = 256
    enable_chunked_prefill = True

    def get_scheduler_cls(self) -> type[PlainScheduler]:
        return PlainScheduler


def test_a_limit_that_a_version_lacks_is_refused_by_name_and_the_others_are_moved(tmp_path: Path) -> None:
    scheduler = PlainScheduler(PlainConfig())
    scheduler.scheduler_config = WithoutThreshold()  # type: ignore[assignment]
    core = GovernedCore(tmp_path, scheduler)
    assert core._reader.unsupported == {
        Knob.LONG_PREFILL_TOKEN_THRESHOLD: "this vLLM has no long-prefill threshold",
        Knob.NUM_SPECULATIVE_TOKENS: "the engine was started without speculative decoding",
    }
    effective = core.report().state.effective
    assert (effective.max_num_active_seqs, effective.max_num_scheduled_tokens) == (16, 256)
    assert effective.long_prefill_token_threshold is None


def test_a_scheduler_that_cannot_be_read_says_what_it_lacks(tmp_path: Path) -> None:
    scheduler = PlainScheduler()
    del scheduler.kv_cache_manager.usage
    with pytest.raises(UngovernableError, match="this vLLM's KVCacheManager has no usage"):
        GovernedCore(tmp_path, scheduler)


def report(**lacking: Collection[str] | None) -> Support:
    """On a version that has everything we use but for these names, by class; None: a class that cannot be looked at."""
    seen: dict[str, Collection[str] | None] = {}
    for each in EVERYTHING:
        absent = lacking.get(each.name, ())
        names = {*each.needed, *each.optional}
        seen[each.name] = None if absent is None else names - set(absent)
    return support("1.2.3", seen, ["--b", "--a"])


def test_a_version_that_has_everything_is_governed_by_its_own_limits() -> None:
    found = report()
    assert {knob: verdict.how for knob, verdict in found.knobs.items()} == {
        Knob.MAX_NUM_ACTIVE_SEQS: Means.ADMISSION_LIMIT,
        Knob.MAX_NUM_SCHEDULED_TOKENS: Means.STEP_TOKENS,
        Knob.LONG_PREFILL_TOKEN_THRESHOLD: Means.CONFIGURATION,
        Knob.NUM_SPECULATIVE_TOKENS: Means.DRAFTS,
    }
    assert all(
        verdict.works for verdict in (*found.knobs.values(), found.setpoints, found.counting, found.gate, found.queue)
    )
    assert all(there for names in found.names.values() for there in names.values())
    assert found.dropped == ("--a", "--b")
    assert Support.model_validate_json(found.model_dump_json()) == found


def test_what_can_be_done_otherwise_is_and_the_report_says_how() -> None:
    found = report(Scheduler=["max_num_active_reqs"], AsyncMPClient=["call_utility_all_async"])
    assert found.knobs[Knob.MAX_NUM_ACTIVE_SEQS].works
    assert found.knobs[Knob.MAX_NUM_ACTIVE_SEQS].how == Means.SLOTS
    assert (found.setpoints.works, found.setpoints.how) == (True, Way.ONE_BY_ONE)
    assert found.names[SCHEDULER.name]["max_num_active_reqs"] is False


def test_what_cannot_be_done_has_its_reason() -> None:
    found = report(
        SchedulerConfig=["long_prefill_token_threshold"],
        AsyncMPClient=["call_utility_all_async", "core_engines"],
        RequestState=["prompt_len"],
        AsyncLLM=["check_admission"],
    )
    threshold = found.knobs[Knob.LONG_PREFILL_TOKEN_THRESHOLD]
    assert (threshold.works, threshold.how) == (False, "this vLLM has no long-prefill threshold")
    assert found.knobs[Knob.MAX_NUM_SCHEDULED_TOKENS].works
    assert found.setpoints.works is False
    assert (found.queue.works, found.queue.how) == (False, "this vLLM has no such limit of its queue")
    for uncounted in (found.counting, found.gate):
        assert (uncounted.works, uncounted.how) == (False, "this vLLM's RequestState has no prompt_len")


def test_without_what_the_step_hooks_need_no_limit_moves() -> None:
    found = report(Request=["is_prefill_chunk"])
    assert {verdict.how for verdict in found.knobs.values()} == {"this vLLM's Request has no is_prefill_chunk"}
    assert not any(verdict.works for verdict in found.knobs.values())


def test_what_could_not_be_looked_at_is_neither_there_nor_absent() -> None:
    found = report(Scheduler=None, EngineCoreOutput=None, AsyncMPClient=None, AsyncLLM=None)
    verdicts = (*found.knobs.values(), found.setpoints, found.counting, found.queue)
    assert {verdict.works for verdict in verdicts} == {None}
    assert found.knobs[Knob.MAX_NUM_ACTIVE_SEQS].how == "could not be looked at: Scheduler"
    assert set(found.names[SCHEDULER.name].values()) == {None}


def test_the_page_says_of_each_version_what_it_does_and_why_not() -> None:
    older = report(SchedulerConfig=["long_prefill_token_threshold"]).model_copy(update={"vllm": "1.2.0"})
    newer = report(Request=None).model_copy(update={"vllm": "1.10.0", "dropped": ()})
    page = versions.page([newer, older], image="1.2.0", newest="1.10.0")
    assert "Without it, 1.2.0 is tested" in page
    assert "`hack/test --vllm newest` runs them on 1.10.0, which" in page
    lines = page.splitlines()
    assert "|  | 1.2.0 | 1.10.0 |" in lines
    assert "| `long_prefill_token_threshold` | **no** (4) | not known (2) |" in lines
    assert "4. this vLLM has no long-prefill threshold" in lines
    assert "2. could not be looked at: Request" in lines
    assert "| `Request.num_tokens` | yes | not known | not governed |" in lines
    assert "| `--a` | no | yes | the launcher drops it |" in lines


def test_every_name_has_one_home() -> None:
    assert len({each.name for each in EVERYTHING}) == len(EVERYTHING)
    for each in EVERYTHING:
        assert not set(each.needed) & set(each.optional), each.name
