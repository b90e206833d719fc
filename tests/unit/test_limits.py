"""What was asked for, and what is safe to run with."""

from __future__ import annotations

import pytest

from flyball_engine.batching.setpoint_enforcer import (
    Limited,
    RunningBatch,
    Sizes,
    active_limit,
    threshold_limit,
    token_limit,
)
from flyball_engine.contract import ClampReason

SIZES = Sizes(max_num_seqs=64, max_num_batched_tokens=1024, max_model_len=4096)
IDLE = RunningBatch(decodes=0)


@pytest.mark.parametrize(
    ("wanted", "safe"),
    [
        (1, Limited(1)),
        (64, Limited(64)),
        (65, Limited(64, ClampReason.CEILING)),
        (0, Limited(1, ClampReason.FLOOR)),
    ],
)
def test_active_requests_stay_between_one_and_the_slots(wanted: int, safe: Limited) -> None:
    assert active_limit(wanted, SIZES) == safe


@pytest.mark.parametrize(
    ("wanted", "active", "batch", "safe"),
    [
        (512, 8, IDLE, Limited(512)),
        (4096, 8, IDLE, Limited(1024, ClampReason.CEILING)),
        (4, 32, IDLE, Limited(32, ClampReason.FLOOR)),
        (4, 1, IDLE, Limited(16, ClampReason.FLOOR)),
        # 50 still decode over an active limit of 8: the limit comes down with them.
        (8, 8, RunningBatch(decodes=50), Limited(50, ClampReason.DECODES)),
        (8, 8, RunningBatch(decodes=9), Limited(16, ClampReason.FLOOR)),
        # A partial prefill gets its least chunk beside the decodes.
        (8, 8, RunningBatch(decodes=10, prefills=(300,)), Limited(26, ClampReason.DECODES)),
    ],
)
def test_a_step_has_tokens_for_whatever_runs(wanted: int, active: int, batch: RunningBatch, safe: Limited) -> None:
    assert token_limit(wanted, active=active, batch=batch, sizes=SIZES) == safe


def test_drafts_count_as_tokens_of_their_decode() -> None:
    drafting = Sizes(max_num_seqs=64, max_num_batched_tokens=1024, max_model_len=4096, tokens_per_decode=5)
    assert token_limit(10, active=20, batch=IDLE, sizes=drafting) == Limited(100, ClampReason.FLOOR)
    assert token_limit(10, active=2, batch=RunningBatch(decodes=30), sizes=drafting) == Limited(
        150, ClampReason.DECODES
    )


def test_what_cannot_be_split_fits_beside_a_full_batch() -> None:
    whole = Sizes(max_num_seqs=64, max_num_batched_tokens=1024, max_model_len=512, indivisible=512)
    assert token_limit(32, active=16, batch=IDLE, sizes=whole) == Limited(528, ClampReason.FLOOR)


def test_no_floor_is_above_the_ceiling() -> None:
    whole = Sizes(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=512, indivisible=512)
    assert token_limit(32, active=16, batch=IDLE, sizes=whole) == Limited(512, ClampReason.FLOOR)


@pytest.mark.parametrize(
    ("wanted", "safe"),
    [
        (0, Limited(0)),
        (16, Limited(16)),
        (4096, Limited(4096)),
        (1, Limited(16, ClampReason.FLOOR)),
        (5000, Limited(4096, ClampReason.CEILING)),
    ],
)
def test_a_threshold_leaves_prefills_their_least_chunk(wanted: int, safe: Limited) -> None:
    assert threshold_limit(wanted, SIZES) == safe


HYBRID = Sizes(max_num_seqs=64, max_num_batched_tokens=8192, max_model_len=32_768, indivisible=1600)


def test_a_threshold_never_cuts_a_block_of_a_hybrid_model() -> None:
    assert threshold_limit(475, HYBRID) == Limited(1600, ClampReason.FLOOR)


def test_a_block_fits_beside_decodes_that_drain() -> None:
    draining = RunningBatch(decodes=60, prefills=(9000,))
    assert token_limit(64, active=4, batch=draining, sizes=HYBRID) == Limited(1660, ClampReason.DECODES)
