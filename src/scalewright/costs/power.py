"""Power: what a board at its limit takes from the products of a step."""

from __future__ import annotations

import numpy as np

from scalewright.costs.breakdown import FloatLike

NUM_POWER_ROUNDS = 4
"""Rounds until the products' share of the step and their clock agree."""


def power_wait_s(
    *, product_s: FloatLike, step_s: FloatLike, held_frac: float, moving_frac: float
) -> FloatLike:  # fmt: skip
    """What products take longer because a board at its power limit lowers its clock.

    Equation  p (1/c - 1);  c = min(1, f (1 - (1 - q) w) / q),  q = p / t the products' share of the step so slowed
    Source    the power balance q c / f + (1 - q) w = 1: products at full clock draw 1/f of the limit, which holds them
              to f of their rate when nothing else runs; power falls in proportion to the clock
    Assumes   the limit acts on the mean over a step; all that is not a product draws w of the limit
    Checked   tests/costs/test_power.py: nothing for few products, p (1/f - 1) for nothing but products
    """
    wait: FloatLike = 0.0
    for _ in range(NUM_POWER_ROUNDS):
        share = np.clip((product_s + wait) / np.maximum(step_s + wait, 1e-12), 1e-6, 1.0)
        clock = np.minimum(held_frac * (1.0 - (1.0 - share) * moving_frac) / share, 1.0)
        wait = product_s * (1.0 / np.maximum(clock, held_frac) - 1.0)
    return wait
