"""What the API server tells the engine core of a request, and how the core refuses one that was let in.

The API server marks what the core may refuse: requests that it can still answer with a refusal. The mark travels in the
`extra_args` of the sampling parameters, and so does the class of a request. The core ends what it refuses as vLLM ends
one that failed, and puts an output of its own beside those of the step. The reason why it stopped says that it was
refused. A core that does not know the mark passes it over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from flyball_engine.contract import DEFAULT_CLASS
from flyball_engine.vllm.attributes import first_lack
from flyball_engine.vllm.compat import REFUSING

#: In a request's `extra_args`: see `Mark`.
_KEY: Final = "flyball_refusable"
#: The class of a request, where it is not the default one.
_CLASS_KEY: Final = "flyball_class"
_OURS: Final = frozenset({_KEY, _CLASS_KEY})
#: The stop reason of what was refused.
LATE: Final = "flyball: late"


class Mark(NamedTuple):
    """What the core must know of a request: its `number` at this API server, and of how many sequences it is.

    `waited`: seconds since its arrival there, when it was sent. `sent_at`: by that machine's wall clock.
    """

    number: int
    sequences: int
    waited: float = 0.0
    sent_at: float = 0.0


def set_mark(request: Any, mark: Mark) -> None:
    """Mark a sequence, an EngineCoreRequest that was not sent yet."""
    _set_extra_arg(request, _KEY, list(mark))


def told_of(request: Any) -> Mapping[str, Any] | None:
    """What the API server told of a sequence in the core, and whatever else stands there; None if nothing does."""
    return getattr(getattr(request, "sampling_params", None), "extra_args", None)


def mark_in(told: Mapping[str, Any] | None) -> Mark | None:
    """The mark of a sequence; None if it may not be refused."""
    found = told.get(_KEY) if told else None
    return None if found is None else Mark(*found)


def class_in(told: Mapping[str, Any] | None) -> str:
    """The class of a sequence; the default one if nobody said."""
    return str(told.get(_CLASS_KEY) or DEFAULT_CLASS) if told else DEFAULT_CLASS


def unmark(request: Any) -> None:
    """Take away what a client wrote in our place: vLLM copies `vllm_xargs` of a request into `extra_args`."""
    params = getattr(request, "sampling_params", None)
    given = getattr(params, "extra_args", None)
    if params is not None and given and not _OURS.isdisjoint(given):
        params.extra_args = {key: value for key, value in given.items() if key not in _OURS}


def set_class(request: Any, of_class: str) -> None:
    """Say of which class a sequence is, an EngineCoreRequest that was not sent yet."""
    _set_extra_arg(request, _CLASS_KEY, of_class)


def _set_extra_arg(request: Any, key: str, value: Any) -> None:
    params = request.sampling_params
    params.extra_args = {**(params.extra_args or {}), key: value}


def is_refusal(output: Any) -> bool:
    """Whether an output of the core says that the sequence was refused."""
    return bool(output.stop_reason == LATE)


class Refuser:
    """Refuses requests of one scheduler, on its own thread. `lack`: what this vLLM lacks for that, None if nothing."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.lack = first_lack(REFUSING)

    def refuse(self, requests: Iterable[Any], outputs: dict[int, Any]) -> None:
        """End these requests, and say so in the `outputs` of a step, which are sent to each API server."""
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason  # noqa: PLC0415 – as all of vLLM
        from vllm.v1.request import RequestStatus  # noqa: PLC0415 – as above

        ended = defaultdict(list)
        for request in requests:
            ended[request.client_index].append(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[],
                    finish_reason=FinishReason.ERROR,
                    stop_reason=LATE,
                    events=request.take_events(),
                    trace_headers=request.trace_headers,
                )
            )
        # Sent first: whatever comes between, no client waits for ever for what has ended.
        for client, refused in ended.items():
            if client in outputs:
                outputs[client].outputs.extend(refused)
            else:
                outputs[client] = EngineCoreOutputs(outputs=refused)
        names = [output.request_id for refused in ended.values() for output in refused]
        self._scheduler.finish_requests(names, RequestStatus.FINISHED_ERROR)
