"""Power: what a board at its limit takes from the products of a step."""

from __future__ import annotations

import numpy as np

from scalewright.costs.breakdown import FloatLike


def power_wait_s(
    *, product_s: FloatLike, step_s: FloatLike, held_frac: float, moving_frac: float
) -> FloatLike:  # fmt: skip
    """What products take longer because a board at its power limit lowers its clock.

    Equation  max(0, p (1/f - 1) - (1 - w) (t - p)),  p the products' time at full clock in a step of t
    Source    the energy balance p/f + w (t - p) = t + wait: products at full clock draw 1/f of the limit, which holds
              them to f of their rate when nothing else runs; a lower clock does not change the energy of a product
    Assumes   the limit acts on the mean over a step; all that is not a product draws w of the limit
    Checked   tests/costs/test_power.py: nothing for few products, p (1/f - 1) for nothing but products
    """
    spared_s = (1.0 - moving_frac) * np.maximum(step_s - product_s, 0.0)
    return np.maximum(product_s * (1.0 / held_frac - 1.0) - spared_s, 0.0)
