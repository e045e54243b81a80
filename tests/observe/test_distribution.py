"""Where the tail of a distribution begins."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.observe.breakdown.distribution import elbow


@pytest.mark.parametrize("share_frac", [0.5, 0.8, 0.95])
def test_the_bend_between_body_and_tail_is_found(share_frac: float) -> None:
    rng = np.random.default_rng(0)
    n = 2000
    body = int(share_frac * n)
    values = np.sort(np.concatenate([rng.uniform(0.100, 0.105, body), rng.uniform(0.2, 1.0, n - body)]))
    assert elbow(values) == pytest.approx(body - 1, abs=0.01 * n)


def test_a_distribution_without_width_has_no_tail() -> None:
    assert elbow(np.full(10, 0.3)) == 9
