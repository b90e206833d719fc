"""Bundles of start settings for kinds of load, each with its reasons.

The ceilings are start-up values: memory is reserved for them, and they cannot be raised live, while the limits that
Flyball moves stay below them. So they are wide, and a bundle says how wide is useful. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flyball_lab.sizing.errors import RequestError

#: Batches beyond this run without a CUDA graph on most GPUs, and vLLM's own default goes no higher.
MOST_SEQS: Final = 1024


@dataclass(frozen=True, kw_only=True)
class LoadPreset:
    """`why` it suits its load.

    `seqs`: most requests that may run together. Two bounds by the roofline, as multiples of the shortest step, a decode
    of one request: `decode_stretch` of a decode of all together, None for any; `step_stretch` of a step of prefill
    alone. `tokens`: least and most of a step whatever that gives, the least also where the device's speed is unknown.
    `threshold_share`: part of a step that one long prompt may take, None for all of it; `mode`: vLLM's
    --performance-mode.
    """

    name: str
    why: str
    seqs: int
    decode_stretch: float | None
    step_stretch: float
    tokens: tuple[int, int]
    threshold_share: float | None
    mode: str


_ALL: Final = (
    LoadPreset(
        name="throughput",
        why="Most tokens per second: as many requests as the cache holds, and steps long enough that reading the "
        "weights is paid by many tokens. A long prompt may delay every stream by a whole step.",
        seqs=MOST_SEQS,
        decode_stretch=None,
        step_stretch=100.0,
        tokens=(8192, 16384),
        threshold_share=None,
        mode="throughput",
    ),
    LoadPreset(
        name="latency",
        why="Even streams for people who read along: a batch whose decode takes at most twice as long as one "
        "request alone, and steps that a prompt cannot stretch far, one long prompt taking at most half of each.",
        seqs=256,
        decode_stretch=2.0,
        step_stretch=8.0,
        tokens=(512, 4096),
        threshold_share=0.5,
        mode="interactivity",
    ),
    LoadPreset(
        name="prefill-heavy",
        why="Long prompts, short answers (retrieval, summaries, classification): large steps, because prompts are the "
        "work; few requests at once, because each holds a long context. A prompt takes at most half a step, so that "
        "short ones pass long ones.",
        seqs=128,
        decode_stretch=None,
        step_stretch=200.0,
        tokens=(8192, 32768),
        threshold_share=0.5,
        mode="throughput",
    ),
    LoadPreset(
        name="decode-heavy",
        why="Short prompts, long answers (reasoning, writing): as many requests as the cache holds share each reading "
        "of the weights; steps stay small, because prompts are rare and memory saved on activations holds cache.",
        seqs=MOST_SEQS,
        decode_stretch=None,
        step_stretch=20.0,
        tokens=(1024, 4096),
        threshold_share=None,
        mode="balanced",
    ),
)
PRESETS: Final[Mapping[str, LoadPreset]] = {preset.name: preset for preset in _ALL}


def preset(name: str) -> LoadPreset:
    """The bundle of that name.

    Raises `RequestError` listing the names.
    """
    if name not in PRESETS:
        raise RequestError("preset", f"is {name!r:.60}", ", ".join(PRESETS))
    return PRESETS[name]
