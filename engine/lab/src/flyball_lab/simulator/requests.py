"""A request on its way through the simulated engine. Times in seconds of the engine's clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from flyball_engine.batching.outcomes import OpenSequence
from flyball_engine.contract import DEFAULT_CLASS


class Fate(StrEnum):
    """What has become of a request."""

    OPEN = "open"
    """On its way."""
    FINISHED = "finished"
    """All its tokens were made."""
    LEFT = "left"
    """Its client gave up."""
    REFUSED = "refused"
    """The engine was not there, or its model's context is too short."""
    SHED = "shed"
    """Its first token would have come too late, or the limits of the queue were reached."""
    FAILED = "failed"
    """The engine crashed."""


@dataclass(frozen=True)
class Prefix:
    """The first `tokens` of a prompt, shared by every request with the same `name`."""

    name: str
    tokens: int


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate: `output` tokens for `prompt` tokens. A lower `priority` goes first under that policy.

    Its client gives up after `patience` seconds without a first token. `of_class`: the class that it names. `named`:
    the most tokens that it says it wants, None if it does not say.

    While it prefills, `computed` of the `target` tokens are in the KV cache: those of the prompt, and after a
    preemption those made before it. As a decode it has `target` tokens there when it joins at step `joined`, `pace`
    more with every step, and ends with step `ends`. `cached` tokens of the prompt came from the prefix cache when it
    was admitted first, `found` when it was admitted last. `first_token`: when it was made; `ended`: when the last one
    was, or the client left; `leaves`: when it does. `deliveries`: steps that made tokens of it, as of its last change.
    `together`: the sequences of its HTTP request, where there are several. `expected_late`: it was let in though its
    first token cannot be in time.
    """

    arrival: float
    prompt: int
    output: int
    prefix: Prefix | None = None
    priority: int = 0
    of_class: str = DEFAULT_CLASS
    patience: float = math.inf
    named: int | None = None
    number: int = 0
    fate: Fate = Fate.OPEN
    sequence: OpenSequence | None = None
    computed: int = 0
    target: int = 0
    made: int = 0
    cached: int | None = None
    found: int = 0
    first_token: float | None = None
    ended: float = 0.0
    leaves: float = math.inf
    preemptions: int = 0
    running: bool = False
    joined: int = 0
    ends: int = -1
    pace: float = 1.0
    shared: int = 0
    deliveries: int = 0
    together: tuple[Request, ...] = ()
    expected_late: bool = False

    def made_at(self, step: int) -> int:
        """Tokens made by the end of a step."""
        return self.made + int(self.pace * (step - self.joined)) if self.ends >= 0 else self.made
