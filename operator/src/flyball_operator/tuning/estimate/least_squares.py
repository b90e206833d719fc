"""Non-negative least squares of several small problems at once, from their normal equations.

Block principal pivoting (Kim and Park, 2011): all coefficients of the wrong sign change sides at once. That mostly ends
after one or two rounds. Where it gets no further, one at a time do (Murty, 1974), which always ends.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Rounds in which the wrong coefficients may become no fewer before they are exchanged one at a time.
_CHANCES: Final = 3
#: A gradient so little below zero, of the largest figure of its problem, is rounding.
_ROUNDING: Final = 1e-10


def non_negative(gram: Matrix, goal: Matrix, free: Mask) -> Matrix:
    """The x ≥ 0 with the least xᵀ·gram·x / 2 − goal·x of each problem (the first axis).

    `gram` is positive definite. `free`: the coefficients that are first taken to be above zero.
    """
    slack = -_ROUNDING * np.abs(goal).max(axis=1, keepdims=True)
    fewest, chances = np.full(len(goal), goal.shape[1] + 1), np.full(len(goal), _CHANCES)
    identity = np.eye(goal.shape[1])
    while True:
        found = _solved(gram, goal, free, identity)
        gradient = (found[:, None, :] @ gram)[:, 0] - goal
        wrong = np.where(free, found < 0.0, gradient < slack)
        if not wrong.any():
            return found
        count = wrong.sum(axis=1)
        fewer = count < fewest
        chances = np.where(fewer, _CHANCES, chances - 1)
        fewest = np.minimum(count, fewest)
        if (chances < 0).any():
            last = np.cumsum(wrong[:, ::-1], axis=1)[:, ::-1] == 1
            wrong = np.where((chances >= 0)[:, None], wrong, wrong & last)
        free = free ^ wrong


def _solved(gram: Matrix, goal: Matrix, free: Mask, identity: Matrix) -> Matrix:
    """Where the free coefficients have no gradient, and the others are zero."""
    masked = np.where(free[:, :, None] & free[:, None, :], gram, identity)
    found: Matrix = np.linalg.solve(masked, np.where(free, goal, 0.0)[:, :, None])[:, :, 0]
    return found
