"""What the planner expects of a change to the run: the gain of a finding, with the command that repeats it."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.errors import ScalewrightError
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.series import setting
from scalewright.observe.findings.rule import Gain
from scalewright.planner.answer import Answer, answer

SHAPE = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "ffn_hidden": "ffn",
         "vocab": "vocab", "seq": "seq"}  # fmt: skip
"""Settings of a model, and what a shape on the command line calls them."""
LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "dp", "mbs", "gbs", "zero", "recompute")
CALIBRATED = "/local"
"""Ends the name of a machine that a calibration describes: `here` names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The run as a question to the planner."""

    model: str
    system: str
    layout: str
    precision: str
    before: Answer


def planned(evidence: Evidence) -> Planned | None:
    """The run's own prediction; None where model, machine or layout are not known."""
    model, system, layout = _model(evidence), _system(evidence), _layout(evidence)
    if not model or not system or not layout or setting(evidence, "kind") in ("vision", "generate", "reason"):
        return None
    from scalewright.catalog.library import open_catalog
    from scalewright.planner.question import ask

    precision = setting(evidence, "precision") or "auto"
    try:
        before = answer(ask(open_catalog(None), model=model, system=system, layout=layout, precision=precision))
    except ScalewrightError:
        return None
    return Planned(model=model, system=system, layout=layout, precision=precision, before=before)


def planned_gain(evidence: Evidence, what_if: str, *, run: Planned | None = None) -> Gain | None:
    """The share of time that a change saves by the planner; None where it cannot say, or the change does not fit."""
    run = run or planned(evidence)
    if run is None:
        return None
    try:
        change = run.before.what_if(what_if)
    except ScalewrightError:
        return None
    if not change.after.fits:
        return None
    saved = 1.0 - 1.0 / change.rate_ratio_frac if change.rate_ratio_frac > 0 else 0.0
    return Gain(
        step_time_frac=max(saved, 0.0), how=f"predicted: {what_if} against the layout of the run, both by the planner",
        command=f"scalewright predict --model {run.model} --system {run.system} --layout {run.layout} "
        f"--precision {run.precision} --what-if {what_if}",
    )  # fmt: skip


def _model(evidence: Evidence) -> str:
    name = setting(evidence, "model") or ""
    if name and name != "custom":
        return name
    shape = {key: setting(evidence, key) for key in SHAPE}
    if not shape["layers"] or not shape["hidden"] or not shape["heads"]:
        return ""
    return ",".join(f"{SHAPE[key]}={value}" for key, value in shape.items() if value)


def _system(evidence: Evidence) -> str:
    name = setting(evidence, "system") or ""
    return "here" if name.endswith(CALIBRATED) else name


def _layout(evidence: Evidence) -> str:
    values = {key: setting(evidence, key) for key in LAYOUT}
    if not values["dp"] or not values["gbs"]:
        return ""
    return ",".join(f"{key}={value}" for key, value in values.items() if value and value not in ("none", "0"))
