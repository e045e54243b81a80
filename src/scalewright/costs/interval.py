"""How far a prediction may be off: quantiles of what published runs measured over what we predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scalewright.costs.breakdown import FloatLike
from scalewright.costs.machine.machine import CalibratedRange, Machine
from scalewright.costs.machine.network import slowdown, tier_of
from scalewright.costs.setting import Setting, VisionSetting

AnySetting = Setting | VisionSetting
TimeOn = Callable[[Machine], FloatLike]

COVERAGE_FRAC = 0.90
"""Share of further runs that an interval should hold."""
SHARED_NETWORK = "shared network"
"""How the note about other jobs begins."""
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


def slowdown_by_other_jobs(setting: AnySetting, *, congestion: float | None = None) -> FloatLike:
    """Of bulk exchange over all devices of a job; `congestion` in place of the network's own."""
    network = setting.machine.network
    if network is None:
        return 1.0
    nodes = np.ceil(setting.layout.num_gpus / setting.machine.gpus_per_node)
    tier = tier_of(network, num_span_nodes=nodes, num_job_nodes=nodes, one_per_node=False)
    alone = replace(network, collisions=1.0, congestion=network.congestion if congestion is None else congestion)
    return slowdown(alone, tier=tier, num_job_nodes=nodes)


def shared_interval_s(
    ends_s: tuple[FloatLike, FloatLike], *, time_s: FloatLike, setting: AnySetting, time_on: TimeOn
) -> tuple[FloatLike, FloatLike]:
    """An interval widened by what is not known of other jobs on a shared network; `time_on` predicts for a machine.

    Equation  low = t exp(-hypot(ln t/low0, ln t/t_quiet)),  high = t exp(hypot(ln high0/t, ln t_busy/t))
    Source    jcgm2008 (JCGM 100:2008), section 5.1.2: independent errors add in squares, here in logarithms
    Assumes   other jobs and the model's own error know nothing of each other; t_quiet without other jobs, t_busy with
              the fabric's `congestion_high`; as before where not even these would be noticed
    Checked   tests/costs/test_interval.py: as before without other jobs; holds the quiet and the busy time
    """
    machine, network = setting.machine, setting.machine.network
    is_noticed = _is_noticed(setting)
    if network is None or not np.any(is_noticed):
        return ends_s
    quiet_s = time_on(replace(machine, network=replace(network, is_shared=False)))
    busy_s = time_on(replace(machine, network=replace(network, congestion=network.congestion_high)))
    low_s, high_s = ends_s
    down = np.hypot(np.log(np.maximum(time_s / low_s, 1.0)), np.log(np.maximum(time_s / quiet_s, 1.0)))
    up = np.hypot(np.log(np.maximum(high_s / time_s, 1.0)), np.log(np.maximum(busy_s / time_s, 1.0)))
    low_s, high_s = (
        np.where(is_noticed, wide_s, end_s)[()]
        for wide_s, end_s in ((time_s * np.exp(-down), low_s), (time_s * np.exp(up), high_s))
    )
    return low_s, high_s


def _is_noticed(setting: AnySetting) -> NDArray[np.bool_]:
    """Whether other jobs may slow down exchange enough to be worth a word."""
    network = setting.machine.network
    worst = 1.0 if network is None else slowdown_by_other_jobs(setting, congestion=network.congestion_high)
    return np.asarray(worst) > setting.constants.noticeable_slowdown.value


def other_jobs_note(setting: AnySetting) -> str:
    """One sentence about other jobs on the network; empty where they cannot be noticed."""
    network = setting.machine.network
    if network is None or not _is_noticed(setting):
        return ""
    centre, worst = (float(slowdown_by_other_jobs(setting, congestion=c)) for c in (None, network.congestion_high))
    return (
        f"{SHARED_NETWORK}: other jobs are assumed to slow down exchange between nodes {centre:.2g}x, in the interval "
        f"1x to {worst:.2g}x ({network.congestion_basis}); --network quiet predicts without them"
    )


def own_flows_note(setting: AnySetting) -> str:
    """One sentence about a network that a job's own flows overload; empty where they do not."""
    network, layout = setting.machine.network, setting.layout
    if network is None or network.collisions <= setting.constants.noticeable_slowdown.value:
        return ""
    if int(np.max(layout.num_gpus)) <= network.num_leaf_nodes * setting.machine.gpus_per_node:
        return ""
    return (
        f"the job's own flows share links beyond {network.num_leaf_nodes:.0f} nodes: exchange is assumed "
        f"{network.collisions:.2g}x slower there"
    )


def interval_s(*, time_s: FloatLike, setting: Setting) -> tuple[FloatLike, FloatLike]:
    """The 90 % interval of a predicted time.

    Equation  [low, high] x t, each end to the power p (1 + w u) for u things never seen in a fit; p = 1 for dense
              models; other jobs on the network widen it further (shared_interval_s)
    Source    quantiles of the published runs shipped with the package, each source left out in turn; a run counts with
              the fourth root of its source's runs, inverted (benchmarks/fit.py)
    Assumes   tomorrow's run is of a source like those
    Checked   `scalewright validate` prints the coverage; tests/costs/test_interval.py: never narrower for the unseen
    """
    constants = setting.constants
    power = 1.0 + constants.unseen_widening.value * len(unseen(setting))
    if setting.shape.moe is not None:
        power = power * constants.expert_interval_power.value
    return time_s * constants.interval_low.value**power, time_s * constants.interval_high.value**power
