"""What the batches of a scheduler scenario come to, counted from vLLM's own lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


class BatchTally:
    """Its batches: `counts` are named as the fields of `BatchCounts`; beside them all `slots`, tokens `generated`."""

    def __init__(self, slots: int) -> None:
        self.counts: Counter[str] = Counter()
        self._slots = slots
        self._times = {"slots": 0.0, "slots_used": 0.0}
        self._ran: set[str] = set()
        self._computed: Counter[str] = Counter()

    def planned(self, output: Any) -> None:
        """Who gets tokens in a step."""
        self._ran.update(output.num_scheduled_tokens)

    def squares(self, prompts: Mapping[str, int], *, joined: Iterable[str]) -> int:
        """By how much a step adds to the squares of what is computed of each prompt since it joined last."""
        for name in joined:
            self._computed[name] = 0
        before = {name: self._computed[name] for name in prompts}
        self._computed.update(prompts)
        return sum(self._computed[name] ** 2 - begun**2 for name, begun in before.items())

    def ended(self, step: Mapping[str, Any], seconds: float) -> None:
        """A step, as the scenario has it; each request makes a token in it whose prompt is complete."""
        tokens, prefill, decodes, _, _ = step["values"]
        self._times["slots"] += self._slots * seconds
        self._times["slots_used"] += step["running"] * seconds
        self.counts["step_requests"] += len(step["ends"])
        self.counts["steps"] += 1
        self.counts["prefill_tokens"] += prefill
        self.counts["prefill_squares"] += step["squares"]
        self.counts["decode_tokens"] += decodes
        self.counts["room_used"] += tokens if prefill else 0
        self.counts["generated"] += sum(not prefilling for _, prefilling in step["ends"].values())

    def closed(self, requests: Mapping[str, Any], *, preemptions: int) -> dict[str, float]:
        """All counts at the end, with what the requests say of themselves."""
        ran = [request for name, request in requests.items() if name in self._ran]
        return {
            **self.counts,
            **self._times,
            "admitted": len(ran),
            "cohort_requests": len(ran),
            "left": len(requests) - len(ran),
            "preemptions": preemptions,
            "cohort_prompts": sum(request.num_prompt_tokens for request in ran),
            "cohort_outputs": sum(request.num_output_tokens for request in ran),
        }
