"""Whatever waits, under whatever strategy: everybody gets in, and nobody where the strategy forbids it."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_engine.batching.output_lengths import OutputLengths
from flyball_engine.knobs import Batched, Batching, Bucketed, Continuous, Dynamic, NoEvict, Static
from support.batches import Bench

SIZES = st.integers(1, 12)
DELAYS = st.sampled_from([0.0, 0.03, 0.2])
EDGES = (20, 100)
BATCHED = st.one_of(
    st.builds(Static, batch_size=SIZES),
    st.builds(Dynamic, batch_size=SIZES, max_delay_seconds=DELAYS, max_batch_tokens=st.none() | st.integers(1, 300)),
    st.builds(Bucketed, batch_size=SIZES, boundaries=st.just(EDGES)),
    st.builds(Bucketed, batch_size=SIZES, sorted=st.just(True)),
)


@st.composite
def batchings(draw: st.DrawFn, strategies: st.SearchStrategy[object] = BATCHED) -> Batching:
    strategy = draw(strategies)
    return Batching(
        strategy=strategy,  # type: ignore[arg-type] # one of them
        admission_delay_seconds=0.0 if isinstance(strategy, Dynamic) else draw(DELAYS),
        no_evict=draw(st.none() | st.builds(NoEvict)),
        max_concurrent_prefills=draw(st.none() | st.integers(1, 3)),
    )


JOBS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 8)), min_size=1, max_size=30)


def bench_with(batching: Batching, jobs: list[tuple[int, int]], *, slots: int, per_step: int, kv: int) -> Bench:
    bench = Bench(batching, slots=slots, per_step=per_step, kv=kv)
    for prompt, output in jobs:
        bench.add(prompt, output=output)
    return bench


@given(batchings(), JOBS, st.integers(1, 10), st.integers(1, 4), st.sampled_from([200, 10_000]))
@settings(max_examples=70)
def test_every_request_gets_in_once_in_batches_that_keep_their_promise(
    batching: Batching, jobs: list[tuple[int, int]], slots: int, per_step: int, kv: int
) -> None:
    bench = bench_with(batching, jobs, slots=slots, per_step=per_step, kv=kv)
    strategy = batching.strategy
    assert isinstance(strategy, Batched)
    seen: list[str] = []
    for batch in bench.batches():
        assert len(batch) <= min(strategy.batch_size, max(slots, 1))
        if isinstance(strategy, Bucketed) and strategy.boundaries:
            assert len({bisect_left(strategy.boundaries, job.prompt) for job in batch}) <= 1
        seen += [job.name for job in batch]
    assert sorted(seen) == sorted(f"r{number}" for number in range(len(jobs)))


@given(st.lists(batchings(BATCHED | st.builds(Continuous)), min_size=2, max_size=5), JOBS, st.data())
@settings(max_examples=50)
def test_switches_lose_nobody(choices: list[Batching], jobs: list[tuple[int, int]], data: st.DataObject) -> None:
    bench = bench_with(choices[0], jobs, slots=6, per_step=2, kv=400)
    joined: list[str] = []
    sometimes = st.booleans()
    for _ in range(40):
        bench.switch(data.draw(st.sampled_from(choices)))
        joined += [job.name for job in bench.step()]
        if data.draw(sometimes) and bench.running:
            bench.preempt()
    for batch in bench.batches():
        joined += [job.name for job in batch]
    assert sorted(joined) == sorted(f"r{number}" for number in range(len(jobs)))


@given(batchings(BATCHED | st.builds(Continuous)), JOBS, st.integers(1, 4))
@settings(max_examples=70)
def test_no_step_admits_more_than_slots_cache_and_prefills_allow(
    batching: Batching, jobs: list[tuple[int, int]], per_step: int
) -> None:
    bench = bench_with(batching, jobs, slots=6, per_step=per_step, kv=400)
    while bench.waiting or bench.running:
        running, held = len(bench.running), sum(job.prompt + job.output for job in bench.running)
        joined = bench.step()
        assert running + len(joined) <= 6
        if batching.max_concurrent_prefills is not None:
            assert len(joined) <= batching.max_concurrent_prefills
        if batching.no_evict is not None and joined and running + len(joined) > 1:
            assert held + sum(job.prompt + job.output for job in joined) <= 400


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.floats(0.01, 1))
def test_the_quantile_is_that_of_the_last_ones(lengths: list[int], share: float) -> None:
    outputs = OutputLengths(remembered=20)
    for tokens in lengths:
        outputs.ended(tokens)
    last = lengths[-20:]
    quantile = outputs.quantile(share)
    assert quantile in last
    assert sum(tokens <= quantile for tokens in last) >= share * len(last) - 1e-9
