"""What a board at its power limit takes from the products of a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.costs.power import power_wait_s


def wait_s(share: float, held: float) -> float:
    return float(power_wait_s(product_s=share, step_s=1.0, held_frac=held, moving_frac=0.65))


def test_few_products_run_cool_and_nothing_but_products_run_as_held() -> None:
    assert wait_s(0.3, 0.8) == 0.0
    assert wait_s(1.0, 0.8) == pytest.approx(1.0 / 0.8 - 1.0)
    assert wait_s(1.0, 1.0) == 0.0


@given(held=st.floats(0.3, 1.0), one=st.floats(0.0, 1.0), other=st.floats(0.0, 1.0))
def test_more_products_never_wait_less_and_none_is_slower_than_held(held: float, one: float, other: float) -> None:
    fewer, more = sorted((one, other))
    assert wait_s(fewer, held) <= wait_s(more, held) + 1e-9
    assert wait_s(more, held) <= more * (1.0 / held - 1.0) + 1e-9
