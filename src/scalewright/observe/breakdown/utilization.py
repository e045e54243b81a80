"""MFU and HFU of a run, computed again from its model, its tokens and the time: never believed from a log."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from scalewright.catalog.library import Catalog, open_catalog
from scalewright.costs.step import recompute_flop_per_sample
from scalewright.errors import ScalewrightError
from scalewright.observe.breakdown.across_ranks import best_times
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.series import setting, setting_number, step_series
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import ModelSpec, from_catalog, from_shape

WIDTHS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "bf16-mixed": "bf16"}
"""Other words for a precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """FLOP of one step over what the devices could do in its time."""

    model_flop: float
    """Of one step of the whole job."""
    hardware_flop: float
    """With what is computed again."""
    step_s: float
    num_devices: int
    flop_per_s_per_device: float
    """Model FLOP, of one device."""
    mfu_frac: float | None
    """None: the device's peak is not known."""
    hfu_frac: float | None
    peak_of: str
    """The device and precision whose peak was used."""


def utilization(evidence: Evidence, catalog: Catalog | None = None) -> Utilization | None:
    """None where model, tokens, devices or time are not known.

    Equation  MFU = model FLOP of the step / (step time x devices x dense peak); HFU counts recomputed work too
    Source    chowdhery2022 (arXiv:2204.02311), appendix B
    Assumes   full training: frozen weights and packed samples need fewer FLOP
    Checked   tests/observe/test_trace_ranks.py: against the planner's own figures for the same step time
    """
    spec, num_devices, step_s = _model(evidence, catalog), _num_devices(evidence), _step_s(evidence)
    num_samples = None if spec is None else _num_samples(evidence, spec)
    if spec is None or num_samples is None or not num_devices or not step_s:
        return None
    model_flop = training_flop_per_sample(spec) * num_samples
    again = 0.0
    if not spec.is_vision and (mode := setting(evidence, "recompute")) in ("full", "selective", "operators", "modules"):
        again = recompute_flop_per_sample(spec.transformer, parse_layout(f"recompute={mode}")) * num_samples
    peak, peak_of = _peak(evidence, catalog)
    whole = step_s * num_devices * peak if peak else None
    return Utilization(
        model_flop=model_flop, hardware_flop=model_flop + again, step_s=step_s, num_devices=num_devices,
        flop_per_s_per_device=model_flop / step_s / num_devices,
        mfu_frac=model_flop / whole if whole else None,
        hfu_frac=(model_flop + again) / whole if whole else None, peak_of=peak_of,
    )  # fmt: skip


def _step_s(evidence: Evidence) -> float | None:
    """The median step as reported; of a trace alone, as traced."""
    reported = step_series(evidence).median_s
    times = [time.step_s for time in best_times(evidence.rank_times)]
    return reported if reported is not None else median(times) if times else None


def _num_devices(evidence: Evidence) -> int | None:
    number = setting_number(evidence, "num_ranks")
    return int(number) if number is not None and number >= 1 else None


def _model(evidence: Evidence, catalog: Catalog | None) -> ModelSpec | None:
    """By the catalogue's name, else by the shape that the run states."""
    name, seq = setting(evidence, "model"), setting_number(evidence, "seq")
    spec: ModelSpec | None = None
    try:
        if name:
            spec = from_shape(name) if "=" in name else from_catalog((catalog or open_catalog()).model(name))
    except ScalewrightError:
        spec = None
    keys = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "ffn_hidden": "ffn",
            "vocab": "vocab", "seq": "seq"}  # fmt: skip
    values = {key: setting_number(evidence, stated) for stated, key in keys.items()}
    try:
        if spec is None and all(values[key] for key in ("layers", "hidden", "heads", "vocab", "seq")):
            spec = from_shape(",".join(f"{key}={int(value)}" for key, value in values.items() if value))
        if spec is not None and seq and not spec.is_vision:
            spec = spec.with_seq(int(seq))
    except ScalewrightError:
        return None
    return spec


def _num_samples(evidence: Evidence, spec: ModelSpec) -> float | None:
    """Of a step: what the steps say, else the global batch that the run states."""
    counted = [one.num_tokens for one in step_series(evidence).job_steps if one.num_tokens]
    if counted and not spec.is_vision:
        return median(counted) / spec.transformer.seq
    samples = [one.num_samples for one in step_series(evidence).job_steps if one.num_samples]
    return median(samples) if samples else setting_number(evidence, "gbs")


def _peak(evidence: Evidence, catalog: Catalog | None) -> tuple[float | None, str]:
    """Dense peak of one device in the run's precision."""
    name, stated = setting(evidence, "accelerator"), setting(evidence, "precision")
    precision = WIDTHS.get((stated or "").lower(), (stated or "").lower())
    if not name or not precision:
        return _predicted_peak(evidence)
    try:
        entry = (catalog or open_catalog()).accelerator(name)
    except ScalewrightError:
        return _predicted_peak(evidence)
    peak = {str(key): fact.value for key, fact in entry.peak.items()}.get(precision)
    return _predicted_peak(evidence) if peak is None else (peak, f"{entry.name}, {precision}")


def _predicted_peak(evidence: Evidence) -> tuple[float | None, str]:
    """The peak behind a prediction of ours, from its own figures."""
    keys = ("model_flop", "step_time_s", "num_gpus", "mfu_frac")
    values = [(evidence.prediction or {}).get(key) for key in keys]
    if not all(isinstance(value, int | float) and value > 0 for value in values):
        return None, ""
    flop, step_s, num, mfu = (float(value) for value in values)  # type: ignore[arg-type]
    return flop / (step_s * num * mfu), "the machine of the prediction"
