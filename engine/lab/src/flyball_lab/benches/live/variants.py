"""What is compared: the tuner, vLLM's defaults, and limits that a person would set by hand. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flyball_engine.contract import Limits

#: The engines' ceilings, which are vLLM's largest defaults for one API server.
SEQS, TOKENS = 256, 8192


@dataclass(frozen=True)
class Variant:
    """The tuner, without limits; or limits that never move. `stock`: of an engine without the plugin."""

    name: str
    limits: Limits | None = None
    stock: bool = False

    @property
    def governed(self) -> bool:
        """Whether the tuner decides."""
        return self.limits is None


def _static(seqs: int, tokens: int) -> Variant:
    return Variant(f"{seqs}/{tokens}", Limits(max_num_active_seqs=seqs, max_num_scheduled_tokens=tokens))


GOVERNED: Final = Variant("governed")
#: vLLM's defaults: 256/8192 where the device is large, 256/2048 elsewhere.
DEFAULTS: Final = (_static(SEQS, TOKENS), _static(SEQS, 2048))
#: Limits by hand, from few and small to many and large.
BY_HAND: Final = (_static(48, 256), _static(48, 2048), _static(SEQS, 256))
#: vLLM as it is, with the ceilings as its limits: what the plugin's 256/8192 is to equal.
STOCK: Final = Variant("stock vLLM 256/8192", DEFAULTS[0].limits, stock=True)


def variants(*, gate: bool, quick: bool) -> tuple[Variant, ...]:
    """Those of a part. With a gate, one default and one by hand: a run of all shall take no more than an hour."""
    if gate:
        return (GOVERNED, DEFAULTS[0], BY_HAND[0])
    return (GOVERNED, DEFAULTS[0], *BY_HAND[:2]) if quick else (GOVERNED, STOCK, *DEFAULTS[1:], *BY_HAND)
