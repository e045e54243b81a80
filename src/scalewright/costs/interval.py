"""How far a prediction may be off: quantiles of what published runs measured over what we predicted."""

from __future__ import annotations

import numpy as np

from scalewright.costs.breakdown import FloatLike
from scalewright.costs.machine.machine import CalibratedRange
from scalewright.costs.machine.network import slowdown, tier_of
from scalewright.costs.setting import Setting

COVERAGE_FRAC = 0.90
"""Share of further runs that an interval should hold."""
SHAPE_WORDS = {"hidden": "a width of", "seq": "sequences of", "vocab": "a vocabulary of", "head_dim": "heads of"}


def unseen(setting: Setting) -> list[str]:
    """What about a request lies outside the runs the constants were fitted to; each widens the interval."""
    constants, accelerator = setting.constants, setting.machine.accelerator.id
    if setting.machine.calibrated_range is not None:
        return _not_calibrated(setting, setting.machine.calibrated_range)
    reasons: list[str] = []
    if accelerator not in constants.seen_accelerators:
        reasons.append(f"no fitted run used {accelerator}")
    if setting.recipe.name not in constants.seen_precisions:
        reasons.append(f"no fitted run trained in {setting.recipe.name}")
    reasons += _new_to_stack(setting)
    if setting.machine.transport not in constants.seen_transports:
        reasons.append(f"no fitted run went over {setting.machine.transport}")
    most_gpus, most_experts = int(constants.seen_gpus.value), int(constants.seen_experts.value)
    if int(np.max(setting.layout.num_gpus)) > most_gpus:
        reasons.append(f"no fitted run used more than {most_gpus} devices")
    for name, (least, most) in constants.seen_shapes.items():
        value = getattr(setting.shape, name)
        if not least <= value <= most:
            reasons.append(f"no fitted run had {SHAPE_WORDS[name]} {value}: they lie between {least} and {most}")
    if setting.shape.moe is not None and setting.shape.moe.num_experts > most_experts:
        reasons.append(f"no fitted run had more than {most_experts} experts")
    if not setting.shape.causal:
        reasons.append("no fitted run trained an encoder")
    return reasons


def _new_to_stack(setting: Setting) -> list[str]:
    """Kernels that no fitted run of this stack had, though others may have had such."""
    has = {"8 bit": setting.recipe.is_narrow, "experts": setting.shape.moe is not None}
    seen = setting.constants.seen_with_stack.get(setting.stack.id, ())
    words = {"8 bit": "multiplied in 8 bit", "experts": "had experts"}
    return [f"no fitted run of {setting.stack.id} {words[k]}" for k, used in has.items() if used and k not in seen]


def _not_calibrated(setting: Setting, seen: CalibratedRange) -> list[str]:
    """What lies outside the real steps behind a calibration."""
    reasons, (least, most), hidden = [], seen.hidden, setting.shape.hidden
    beyond = setting.constants.calibrated_width_range.value
    if setting.recipe.name not in seen.precisions:
        reasons.append(f"no step of the calibration trained in {setting.recipe.name}")
    if int(np.max(setting.layout.num_gpus)) > seen.max_ranks:
        reasons.append(f"the calibration measured {_ranks(seen.max_ranks)} only")
    if not least / beyond <= hidden <= most * beyond:
        reasons.append(f"the calibration's steps had widths from {least} to {most}, this one has {hidden}")
    if setting.shape.moe is not None:
        reasons.append("no step of the calibration had experts")
    return reasons


def _ranks(num_ranks: int) -> str:
    return f"{num_ranks} rank" if num_ranks == 1 else f"{num_ranks} ranks"


def congestion(setting: Setting) -> FloatLike:
    """Slowdown of bulk exchange over all devices of the job, by other jobs and by itself."""
    network = setting.machine.network
    if network is None:
        return 1.0
    nodes = np.ceil(setting.layout.num_gpus / setting.machine.gpus_per_node)
    tier = tier_of(network, num_span_nodes=nodes, num_job_nodes=nodes, one_per_node=False)
    half = setting.constants.congestion_share.value
    return slowdown(network, tier=tier, num_job_nodes=nodes, half_frac=half)


def widened_by(setting: Setting) -> list[str]:
    """Why one prediction's interval is wider than that of the fitted runs."""
    slow = float(congestion(setting))
    rough = f"shared network: communication assumed {slow:.2g}x slower (from two published runs)"
    is_rough = slow > setting.constants.noticeable_slowdown.value
    return [*unseen(setting), *([rough] if is_rough else [])]


def interval_s(*, time_s: FloatLike, setting: Setting) -> tuple[FloatLike, FloatLike]:
    """The 90 % interval of a predicted time.

    Equation  [low, high] x t, each end to the power p (1 + u/2) for u things never seen in a fit, and for
              congestion; p = 1 for dense models
    Source    lee2023 (arXiv:2306.06342) on the published runs shipped with the package, each source left out in turn
              and weighing the same, as does the one that is not among them (benchmarks/fit.py)
    Assumes   tomorrow's run is of a source like those
    Checked   `scalewright validate` prints the coverage; tests/costs/test_interval.py: never narrower for the unseen
    """
    constants = setting.constants
    is_congested = np.asarray(congestion(setting)) > constants.noticeable_slowdown.value
    power = 1.0 + constants.unseen_widening.value * (len(unseen(setting)) + is_congested)
    if setting.shape.moe is not None:
        power = power * constants.expert_interval_power.value
    return time_s * constants.interval_low.value**power, time_s * constants.interval_high.value**power
