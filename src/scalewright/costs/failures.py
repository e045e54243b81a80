"""Failures: how often a job of a given size is interrupted, how often to save, and what both cost."""

from __future__ import annotations

import math
from dataclasses import dataclass


def job_mttf_s(*, device_mttf_s: float, num_devices: float) -> float:
    """Mean time to failure of a job that any of its devices can stop.

    Equation  M = M_1 / n
    Source    kokolis2024 (arXiv:2410.21680), section IV: a job's nodes fail independently, like parts in series
    Assumes   constant hazard; a device's share of node, network and software counts with it
    Checked   tests/costs/test_failures.py: 3.1 h on 16,384 devices, as Llama 3's 419 interruptions in 54 days
    """
    return device_mttf_s / num_devices


def young_interval_s(*, checkpoint_s: float, mttf_s: float) -> float:
    """Time between checkpoints that loses least, to first order.

    Equation  T = sqrt(2 C M)
    Source    young1974 (CACM 17(9)), the formula of its abstract
    Assumes   saving and restarting are short against the mean time to failure
    Checked   tests/costs/test_failures.py: 5 min to save and one failure a day give 2 h
    """
    return math.sqrt(2.0 * checkpoint_s * mttf_s)


def daly_interval_s(*, checkpoint_s: float, mttf_s: float) -> float:
    """Work between checkpoints that loses least, to higher order.

    Equation  T = sqrt(2 C M) [1 + sqrt(C/2M)/3 + (C/2M)/9] - C where C < 2 M, else M
    Source    daly2006 (FGCS 22), equation 37
    Assumes   failures by a constant hazard, also while saving and restarting
    Checked   tests/costs/test_failures.py: within 0.1 % of the least wall time found by search
    """
    c, m = checkpoint_s, mttf_s
    if c >= 2.0 * m:
        return m
    half = c / (2.0 * m)
    return math.sqrt(2.0 * c * m) * (1.0 + math.sqrt(half) / 3.0 + half / 9.0) - c


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """Expected time of a job with failures, by what it goes to."""

    work_s: float
    saving_s: float
    lost_s: float
    """Work and saving done again."""
    restart_s: float
    num_failures: float

    @property
    def total_s(self) -> float:
        return self.work_s + self.saving_s + self.lost_s + self.restart_s


def wall_time(
    *, work_s: float, interval_s: float, checkpoint_s: float, restart_s: float, mttf_s: float
) -> WallTime:  # fmt: skip
    """Expected time to finish some work that is saved every `interval_s` of it.

    Equation  T = M e^(R/M) (e^((t + C)/M) - 1) W / t;  failures: that many segments end early, each restarted in
              R e^.. on average, the rest is lost work
    Source    daly2006 (FGCS 22), equation 20
    Assumes   failures by a constant hazard, also while saving and restarting
    Checked   tests/costs/test_failures.py: work plus saving when nothing fails; a simulated job within 2 %
    """
    m, segments = mttf_s, work_s / interval_s
    tries = math.expm1((interval_s + checkpoint_s) / m)
    total = m * math.exp(restart_s / m) * tries * segments
    saving = segments * checkpoint_s
    restarting = segments * tries * m * math.expm1(restart_s / m)
    return WallTime(
        work_s=work_s,
        saving_s=saving,
        lost_s=max(total - work_s - saving - restarting, 0.0),
        restart_s=restarting,
        num_failures=total / m,
    )
