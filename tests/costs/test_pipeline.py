"""Pipeline schedules: the bubble and what a stage holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.costs.pipeline import bubble_time_s, num_in_flight

STAGES = st.integers(1, 64)


@given(pp=STAGES, vpp=st.integers(1, 8), num_micro_batches=st.integers(1, 512), time=st.floats(1e-3, 10.0))
@settings(deadline=None, max_examples=100)
def test_bubble_is_the_papers_fraction_of_the_ideal_time(
    pp: int, vpp: int, num_micro_batches: int, time: float
) -> None:
    """Narayanan et al. 2021, section 2.2.2: (p - 1) / (v m)."""
    ideal = num_micro_batches * time
    bubble = bubble_time_s(micro_batch_time_s=time, pp=pp, vpp=vpp)
    assert bubble / ideal == pytest.approx((pp - 1) / (vpp * num_micro_batches))


@pytest.mark.parametrize(
    ("pp", "stage", "held"), [(1, 0, 1), (4, 0, 4), (4, 1, 3), (4, 3, 1), (16, 0, 16), (16, 15, 1)]
)
def test_plain_schedule_holds_one_micro_batch_less_on_each_stage(pp: int, stage: int, held: int) -> None:
    assert num_in_flight(pp=pp, vpp=1, pipeline_rank=stage, num_micro_batches=1000) == held


@pytest.mark.parametrize(("pp", "vpp", "factor"), [(4, 2, 1 + 3 / 8), (8, 3, 1 + 7 / 24), (35, 3, 1 + 34 / 105)])
def test_first_stage_of_an_interleaved_schedule_holds_the_papers_factor_more(pp: int, vpp: int, factor: float) -> None:
    """Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1) / (p m), m interleaved chunks a stage."""
    assert num_in_flight(pp=pp, vpp=vpp, pipeline_rank=0, num_micro_batches=1000) == pytest.approx(pp * factor)


@given(pp=STAGES, vpp=st.integers(1, 8), num_micro_batches=st.integers(1, 512))
@settings(deadline=None, max_examples=100)
def test_later_stages_hold_no_more_and_nobody_holds_more_than_there_are(
    pp: int, vpp: int, num_micro_batches: int
) -> None:
    held = [
        float(num_in_flight(pp=pp, vpp=vpp, pipeline_rank=i, num_micro_batches=num_micro_batches)) for i in range(pp)
    ]
    assert held == sorted(held, reverse=True)
    assert 1 <= held[-1] <= held[0] <= num_micro_batches
