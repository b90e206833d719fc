"""The requests of a simulated engine that were let in, and may be refused until they have a first token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flyball_engine.batching.late import LetIn, SequenceProgress, but_one_alone
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_lab.simulator.prompt_order import PromptOrder
from flyball_lab.simulator.requests import Fate, Request


class LateRequests:
    """Of one core. An HTTP request goes by the number of its first sequence."""

    def __init__(self) -> None:
        self._let_in: LetIn[Request] = LetIn()

    def __len__(self) -> int:
        return len(self._let_in)

    def may_refuse(self, requests: Sequence[Request]) -> bool:
        """Whether these may still be refused, which are of one HTTP request."""
        return self._let_in.has(requests[0].number)

    def let_in(self, request: Request, requests: Sequence[Request]) -> None:
        """A sequence was let in that is one of these, which are of one HTTP request."""
        self._let_in.add(
            request,
            key=requests[0].number,
            size=len(requests),
            arrived=requests[0].arrival,
            tokens=request.prompt,
            of_class=requests[0].of_class,
        )

    def found(
        self,
        prompts: PromptOrder,
        *,
        deadlines: Mapping[str, float],
        rate: PrefillRate | None,
        present: int,
        now: float,
    ) -> tuple[list[list[Request]], list[Request]]:
        """Those that cannot be in time any more, of some: to be refused, and to stay. So many are `present`."""

        def progress(request: Request) -> SequenceProgress:
            if request.first_token is not None:
                return SequenceProgress(started=True)
            if request.fate is not Fate.OPEN:
                return SequenceProgress(gone=True)
            work = prompts.work(request)
            return SequenceProgress(tokens=work.tokens, attention=work.attention)

        return but_one_alone(self._let_in.late(progress, deadlines=deadlines, rate=rate, now=now), present=present)
