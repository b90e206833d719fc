"""Non-negative least squares: what is found is the least there is, whatever the problem."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from flyball_operator.tuning.estimate.least_squares import non_negative


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 4), st.floats(0.01, 1.0))
def test_they_are_those_of_another_solver(seed: int, size: int, count: int, ridge: float) -> None:
    rng = np.random.default_rng(seed)
    # Columns that nearly say the same, and those that say nothing, are what steps show too.
    rows = rng.normal(size=(count, 20, size)) * rng.choice([0.0, 1e-3, 1.0, 10.0], size=(count, 1, size))
    rows[:, :, -1] = rows[:, :, 0] * (1.0 + 1e-6)
    goals = rng.normal(size=(count, 20))
    gram = rows.transpose(0, 2, 1) @ rows + ridge**2 * np.eye(size)
    found = non_negative(gram, (rows * goals[:, :, None]).sum(axis=1), rng.random((count, size)) < 0.5)
    for number in range(count):
        stacked = np.vstack([rows[number], ridge * np.eye(size)])
        expected, _ = nnls(stacked, np.concatenate([goals[number], np.zeros(size)]))
        np.testing.assert_allclose(found[number], expected, rtol=1e-5, atol=1e-8)
    assert (found >= 0.0).all()
