"""docs/operations.md names every reason that the code can give, in the section of its condition, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

import pytest

from flyball_engine.contract import MetricName
from flyball_lab.repository import ROOT
from flyball_operator.api.status import RECONCILER_CONDITIONS, TUNER_CONDITIONS, ConditionType
from flyball_operator.reconcile.plan.acceptance import AcceptedReason
from flyball_operator.reconcile.plan.adoption import OutdatedReason
from flyball_operator.reconcile.plan.cause import CauseReason
from flyball_operator.reconcile.plan.model_reasons import ModelReason
from flyball_operator.reconcile.plan.routing import RoutedReason
from flyball_operator.reconcile.plan.status import ReconcileReason
from flyball_operator.reconcile.plan.unwatched import NAMESPACE_NOT_WATCHED
from flyball_operator.tuning.filters.filters import HoldReason
from flyball_operator.tuning.observe.signals import Missing
from flyball_operator.tuning.reasons import Reason
from flyball_operator.tuning.replicas import ScalingLimit
from flyball_operator.tuning.report.scaling_report import ScalingReason

PAGE = (ROOT / "docs/operations.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
CAUSES = "Causes"
#: Reasons and the sections of which at least one must explain them.
EXPLAINED: tuple[tuple[type[StrEnum], frozenset[str]], ...] = (
    (AcceptedReason, frozenset({ConditionType.ACCEPTED})),
    (CauseReason, frozenset({CAUSES})),
    (ReconcileReason, RECONCILER_CONDITIONS),
    (OutdatedReason, frozenset({ConditionType.TEMPLATE_OUTDATED})),
    (ModelReason, frozenset({ConditionType.MODEL_READY})),
    (RoutedReason, frozenset({ConditionType.ROUTED})),
    (Missing, frozenset({ConditionType.METRICS_AVAILABLE})),
    (Reason, TUNER_CONDITIONS),
    (ScalingLimit, frozenset({ConditionType.SCALING_ACTIVE})),
    (ScalingReason, frozenset({ConditionType.SCALING_ACTIVE})),
)


def rows(section: str) -> dict[str, list[str]]:
    """Meaning and remedy by the reason in the first column of a section's table."""
    lines = re.findall(r"^\| `(\w+)` \|(.+)\|$", SECTIONS[section], flags=re.MULTILINE)
    return {reason: [cell.strip() for cell in rest.split("|")] for reason, rest in lines}


def explained(sections: Iterable[str]) -> set[str]:
    return {reason for section in sections for reason in rows(section)}


def test_every_condition_has_a_section() -> None:
    assert {one.value for one in ConditionType} <= SECTIONS.keys()


@pytest.mark.parametrize(
    ("reason", "sections"),
    [
        pytest.param(member.value, sections, id=f"{kind.__module__.rpartition('.')[2]}-{member.value}")
        for kind, sections in EXPLAINED
        for member in kind
    ],
)
def test_every_reason_is_explained_where_it_is_given(reason: str, sections: frozenset[str]) -> None:
    assert reason in explained(sections)


def test_what_is_no_enumeration_is_explained_too() -> None:
    assert NAMESPACE_NOT_WATCHED in rows(ConditionType.ACCEPTED)
    assert {hold.value for hold in HoldReason} <= set(re.findall(r"`(\w+)`", SECTIONS["Operator's metrics"]))


def test_the_page_explains_no_reason_that_there_is_not() -> None:
    known = {member.value for kind, _ in EXPLAINED for member in kind}
    assert explained([CAUSES, *ConditionType]) <= known | {NAMESPACE_NOT_WATCHED}


@pytest.mark.parametrize("section", [CAUSES, *ConditionType])
def test_every_reason_has_a_meaning_and_something_to_do(section: str) -> None:
    for reason, cells in rows(section).items():
        assert len(cells) == 2, reason
        assert all(cells), reason


def test_every_metric_on_the_page_is_one() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "operator/src").rglob("*.py"))
    operators = set(re.findall(r'"(flyball_operator_\w+)"', sources))
    # Counters are exported with the suffix, whether their name in the source has it or not.
    known = operators | {f"{name}_total" for name in operators} | {name.value for name in MetricName}
    assert set(re.findall(r"\bflyball_\w+", PAGE)) <= known
