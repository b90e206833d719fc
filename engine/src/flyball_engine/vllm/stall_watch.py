"""Watches a scheduler for requests that stand still, as far as they should not."""

from __future__ import annotations

from typing import Any

from flyball_engine.batching.setpoint_enforcer import SetpointEnforcer
from flyball_engine.batching.watchdog import Stall
from flyball_engine.vllm.admission import Admission
from flyball_engine.vllm.order import PromptOrder
from flyball_engine.vllm.scheduler_adapter import SchedulerAdapter


class StallWatch:
    """Of one scheduler. Everything here runs on the core's own thread, after a step was planned."""

    def __init__(
        self, adapter: SchedulerAdapter, enforcer: SetpointEnforcer, admission: Admission, order: PromptOrder
    ) -> None:
        self._adapter = adapter
        self._enforcer = enforcer
        self._admission = admission
        self._order = order
        self._left = 0

    def stepped(self, output: Any, *, left: int, now: float) -> Stall | None:
        """A step was planned, which leaves so many prompts unfinished, or fewer: what stands still, if something does.

        The enforcer has returned to the start values then.
        """
        adapter = self._adapter
        if adapter.paused:
            self._enforcer.paused()
            return None
        self._left, tokens = left, output.total_num_scheduled_tokens
        return self._enforcer.watch(
            running=len(adapter.running),
            waiting=0 if tokens else self._kept_waiting(now),
            tokens=tokens,
            names=self.due,
            now=now,
        )

    def due(self) -> list[str]:
        """The running requests that must get tokens now. Prompts have turns: those behind the first wait for it.

        Where data-parallel ranks prefill in the same step, the first waits for that step too, for as many as there are
        in between: longer than the watchdog's patience, if the interval is.
        """
        prefilling = self._adapter.prefilling(self._left)
        first = self._order.first if self._order.holds else next(iter(prefilling), None)
        waiting = {id(one) for one in prefilling if one is not first or self._adapter.defers_prefills}
        return [request.request_id for request in self._adapter.running if id(request) not in waiting]

    def _kept_waiting(self, now: float) -> int:
        """Requests that should join. A batch that gathers stands still by intent."""
        return 0 if self._admission.gathers(now) else self._adapter.waiting_for_capacity()
