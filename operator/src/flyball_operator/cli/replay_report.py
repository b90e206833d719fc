"""How `flyball replay` shows what the law would have done: text, and JSON with units in the names. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from flyball_engine.figures import format_duration, percent
from flyball_operator.cli.explanation import decision_lines, limit_lines, model_lines, wrapped
from flyball_operator.cli.replayed import Ran, Replay, ReplayedChange, Tick
from flyball_operator.cli.terminal import printable
from flyball_operator.cli.time_range import rfc3339
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.reasons import ConditionState, Reason
from flyball_operator.tuning.report import conditions

_SCRAPED = ConditionState("True", Reason.SCRAPED, "")


def as_text(replay: Replay, *, step: float) -> str:
    """Head, a block for each change, and a summary. `step` in seconds; there is a tick at least."""
    parts = (_head(replay, step), _changes(replay), _summary(replay), _end(replay))
    return "\n".join(printable(line) for part in parts for line in part)


def as_json(replay: Replay, *, step: float) -> dict[str, Any]:
    """The same, and each tick; `ran` has the least and the most of each limit over the engines."""
    meta, ticks = replay.service.metadata, replay.ticks
    alike, known = replay.alike
    state = replay.state
    return {
        "service": {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid},
        "from": rfc3339(ticks[0].decision.at),
        "to": rfc3339(ticks[-1].decision.at),
        "step_seconds": step,
        "mode": replay.spec.mode.value,
        "start": "resumed" if replay.resumed else "cold",
        "decisions": [_row_json(replay, row) for row in replay.rows],
        "summary": {
            "ticks": len(ticks),
            "holds": dict(sorted(replay.holds.items())),
            "not_observed": dict(sorted(replay.missing.items())),
            "not_observed_ratio": round(replay.missing.total() / len(ticks), 4),
            "engines_ran_the_same_ticks": alike,
            "engines_ran_known_ticks": known,
            "objectives_not_counted": [objective.name for objective in replay.uncounted],
            "binding": replay.binding,
            "model": status_codec.model_status(state.step_time).model_dump(),
            "setpoint": status_codec.setpoint_status(state.policy).model_dump(exclude_none=True),
            "capacity": _capacity(replay),
        },
        "ticks": [_tick_json(tick) for tick in ticks],
    }


def _row_json(replay: Replay, row: ReplayedChange) -> dict[str, Any]:
    shown = row.status(replay.spec).model_dump(exclude_none=True)
    return {**shown, "ran": _ran_json(row.ran)}


def _tick_json(tick: Tick) -> dict[str, Any]:
    decision = tick.decision
    return {
        "time": rfc3339(decision.at),
        "hold": None if decision.hold is None else decision.hold.value,
        "trigger": decision.trigger,
        "setpoint": status_codec.setpoint_status(decision.policy).model_dump(exclude_none=True),
        "ran": _ran_json(tick.ran),
    }


def _ran_json(ran: Ran) -> Mapping[str, list[int]] | None:
    return {name: [int(least), int(most)] for name, (least, most) in ran.items()} if ran else None


def _head(replay: Replay, step: float) -> Iterator[str]:
    meta, ticks = replay.service.metadata, replay.ticks
    begun = "going on from what status holds" if replay.resumed else "starting cold"
    yield f"{meta.namespace}/{meta.name}: {rfc3339(ticks[0].decision.at)} to {rfc3339(ticks[-1].decision.at)}"
    yield f"  a tick every {format_duration(step)}, mode Auto as a shadow, {begun}"
    yield "what it would have done"


def _changes(replay: Replay) -> Iterator[str]:
    if not replay.rows:
        yield "  nothing: the limits would have stayed as they were"
    for row in replay.rows:
        yield from decision_lines(row.status(replay.spec))
        yield from wrapped(f"engines ran: {_ran(row.ran)}", indent=4)


def _ran(ran: Ran) -> str:
    """Limits as the engines tell them, `-` between the least and the most where they differ."""
    parts = [
        f"{name} {least:.0f}" if least == most else f"{name} {least:.0f}-{most:.0f}"
        for name, (least, most) in ran.items()
    ]
    return ", ".join(parts) or "not known"


def _summary(replay: Replay) -> Iterator[str]:
    ticks = len(replay.ticks)
    yield "summary"
    yield from wrapped(f"{number(ticks, 'tick')}, {number(len(replay.rows), 'change')}: {_counted(replay.holds)}")
    missing = replay.missing
    why = f": {_counted(missing)}" if missing else ""
    yield from wrapped(f"not observed: {percent(missing.total() / ticks)} of the ticks{why}")
    alike, known = replay.alike
    if known:
        yield from wrapped(
            f"engines ran the limits that the law held at {percent(alike / known)} of the ticks: "
            "what was observed is of the limits that ran"
        )
    else:
        yield "  what engines ran is not known: Prometheus has no flyball_limit of them"
    for objective in replay.uncounted:
        shown = f"{objective.metric.value} within {format_duration(objective.seconds)}"
        yield from wrapped(f"{objective.name} ({shown}) was never counted: nothing is known of how it was met")
    if capacity := _capacity(replay):
        yield from wrapped(f"capacity: {capacity}")


def _end(replay: Replay) -> Iterator[str]:
    state, status = replay.state, status_codec.model_status(replay.state.step_time)
    yield "model of a step's time at the end"
    yield from model_lines(status)
    yield "limits that it would hold at the end"
    yield from limit_lines(
        status_codec.setpoint_status(state.policy), state.step_time.model, replay.binding, replay.spec.stages
    )


def _capacity(replay: Replay) -> str:
    verdict = conditions.capacity_verdict(
        replay.state.balance,
        objectives=replay.spec.objectives,
        metrics=_SCRAPED,
        known=None,
        lengths=replay.state.workload.lengths,
    )
    return verdict.message


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def number(count: int, what: str) -> str:
    """So many of them, in words that agree."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
