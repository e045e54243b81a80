"""Pipeline schedules: how long pipeline ranks wait for each other, and how many micro-batches they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scalewright.costs.breakdown import FloatLike

if TYPE_CHECKING:
    from scalewright.workload.layout import IntLike


def bubble_time_s(*, micro_batch_time_s: FloatLike, pp: IntLike, vpp: IntLike) -> FloatLike:
    """Idle time of a pipeline rank in one step of 1F1B, interleaved when vpp > 1.

    Equation  t = (p - 1)/v x (t_forward + t_backward)
    Source    narayanan2021 (arXiv:2104.04473), section 2.2.2
    Assumes   equal pipeline ranks; transfers counted elsewhere
    Checked   tests/costs/test_pipeline.py: fraction (p-1)/(v m) of the ideal time
    """
    p, v = pp, vpp
    return (p - 1.0) / v * micro_batch_time_s


def num_in_flight(
    *, pp: IntLike, vpp: IntLike, pipeline_rank: FloatLike, num_micro_batches: IntLike
) -> FloatLike:  # fmt: skip
    """Micro-batches whose activations a pipeline rank holds at once.

    Equation  p - i; interleaved: p (1 + (p-1)/(p v)) - 2 i / v; never more than there are
    Source    korthikanti2022 (arXiv:2205.05198), section 4.2.3
    Assumes   1F1B; pipeline rank i of p
    Checked   tests/costs/test_pipeline.py; tests/golden/test_frontier_memory.py
    """
    p = np.asarray(pp, dtype=np.float64)
    v = np.asarray(vpp, dtype=np.float64)
    plain = p - pipeline_rank
    interleaved = p * (1.0 + (p - 1.0) / (p * v)) - 2.0 * np.asarray(pipeline_rank) / v
    held = np.where(v > 1, np.maximum(interleaved, plain), plain)
    return np.minimum(held, num_micro_batches)[()]
