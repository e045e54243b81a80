"""Kind: analytic. The budget lines of HPC guides: GPU-hours, time and memory to ask for."""

from __future__ import annotations

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.campaign import device_time_s, memory_request_bytes, walltime_request_s

CONSTANTS = Catalog((packaged_data(),)).constants()
MARGIN_FRAC = CONSTANTS.walltime_margin.value
HOUR_S, MINUTE_S = 3600.0, 60.0


def test_four_nodes_of_eight_for_six_hours_are_192_gpu_hours() -> None:
    assert device_time_s(num_nodes=4, num_devices_per_node=8, time_s=6 * HOUR_S) / HOUR_S == 192


def test_a_thousand_steps_of_2_7_s_ask_for_50_minutes() -> None:
    assert walltime_request_s(expected_s=1000 * 2.7, margin_frac=MARGIN_FRAC) == 50 * MINUTE_S


@pytest.mark.parametrize("margin", [0.1, 0.2])
def test_requests_lie_between_ten_and_twenty_percent_above(margin: float) -> None:
    assert 0.1 <= MARGIN_FRAC <= 0.2
    assert walltime_request_s(expected_s=1e5, margin_frac=margin) == pytest.approx(1e5 * (1 + margin), abs=MINUTE_S)
    assert memory_request_bytes(peak_bytes=80e9, margin_frac=margin) == pytest.approx(80e9 * (1 + margin))


def test_a_second_look_above_512_gpu_hours() -> None:
    assert device_time_s(num_nodes=64, num_devices_per_node=8, time_s=HOUR_S) == CONSTANTS.large_request.value
