"""For any limits asked for and any batch, what comes out is safe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.batching.setpoint_enforcer import (
    RunningBatch,
    Sizes,
    active_limit,
    threshold_limit,
    token_limit,
)

COUNT = st.integers(1, 2**31 - 1)


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    seqs = draw(st.integers(1, 512))
    decode = draw(st.integers(1, 8))
    chunk = max(16, decode)
    # Room for every slot's decode and a chunk for every slot: what a sane start has.
    return Sizes(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs * (decode + chunk), 65536)),
        max_model_len=draw(st.integers(chunk, 131072)),
        tokens_per_decode=decode,
        least_chunk=chunk,
    )


@st.composite
def started(draw: st.DrawFn) -> tuple[Sizes, RunningBatch]:
    size = draw(sizes())
    running = draw(st.integers(0, size.max_num_seqs))
    prefills = draw(st.lists(st.integers(1, 100_000), max_size=min(8, running)))
    return size, RunningBatch(decodes=running - len(prefills), prefills=tuple(prefills))


@given(started(), COUNT, COUNT, st.integers(0, 2**31 - 1))
def test_limits_stay_between_floor_and_ceiling(
    start: tuple[Sizes, RunningBatch], seqs: int, tokens: int, cap: int
) -> None:
    size, batch = start
    active = active_limit(seqs, size)
    limit = token_limit(tokens, active=active.value, batch=batch, sizes=size)
    threshold = threshold_limit(cap, size)
    assert 1 <= active.value <= size.max_num_seqs
    assert size.tokens_per_decode * max(batch.size, active.value) <= limit.value <= size.max_num_batched_tokens
    assert threshold.value == 0 or size.least_chunk <= threshold.value <= size.max_model_len
    for limited, wanted in ((active, seqs), (limit, tokens), (threshold, cap)):
        assert (limited.reason is None) == (limited.value == wanted)


@given(started(), COUNT)
def test_decodes_get_their_tokens_and_prefills_a_chunk(start: tuple[Sizes, RunningBatch], tokens: int) -> None:
    size, batch = start
    limit = token_limit(tokens, active=1, batch=batch, sizes=size).value
    assert size.tokens_per_decode * batch.decodes + size.least_chunk * len(batch.prefills) <= limit
