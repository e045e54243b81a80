"""How far the prediction of a vision step may be off."""

from __future__ import annotations

from scalewright.costs.breakdown import FloatLike
from scalewright.costs.setting import VisionSetting


def interval_s(*, time_s: FloatLike, setting: VisionSetting) -> tuple[FloatLike, FloatLike]:
    """The 90 % interval of a predicted vision step.

    Equation  [q05, q95] x t, each quantile to the power 1 + u/2 for u things that no fitted run shares
    Source    published rates, each publication left out of the fit in turn; quantiles widened until 90 % of the rows
              left out are inside those of the other publications (benchmarks/fit_vision.py)
    Assumes   tomorrow's run is like one of a publication drawn at random from those
    Checked   tests/golden/test_vision_rates.py: coverage; never narrower for the unseen
    """
    c = setting.constants
    power = 1.0 + c.unseen_widening.value * len(unseen(setting))
    return time_s * c.vision_interval_low.value**power, time_s * c.vision_interval_high.value**power


def unseen(setting: VisionSetting) -> list[str]:
    """What about a request lies outside the runs that the vision constants were fitted to."""
    c, accelerator, reasons = setting.constants, setting.machine.accelerator.id, []
    if accelerator not in c.vision_seen_accelerators:
        reasons.append(f"no fitted vision run used {accelerator}")
    vendor = setting.machine.accelerator.vendor
    if vendor not in c.vision_seen_vendors and accelerator not in c.vision_seen_accelerators:
        reasons.append(f"no fitted vision run used a convolution library of {vendor}")
    if setting.recipe.name not in c.vision_seen_precisions:
        reasons.append(f"no fitted vision run trained in {setting.recipe.name}")
    return reasons
