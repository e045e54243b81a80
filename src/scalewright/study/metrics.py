"""Metrics of a point: names, titles, units, and whether higher or lower is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewright import units
from scalewright.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure about a point, in SI units."""

    name: str
    title: str
    unit: str
    dimension: units.Dimension
    better: Literal["lower", "higher"]
    efficiency: Literal["as time", "as rate", "as total", "none"] = "none"
    """Scaling efficiency of n devices over m, the smallest of the curve: t(m)/t(n) for the time of work that grows
    with n; r(n)/r(m) for a rate per device; m t(m)/(n t(n)) for the time of a fixed amount of work."""


def _metric(
    name: str, title: str, unit: str, dimension: units.Dimension, better: str, efficiency: str = "none"
) -> Metric:
    return Metric(
        name=name, title=title, unit=unit, dimension=dimension,
        better=better, efficiency=efficiency,  # type: ignore[arg-type]
    )  # fmt: skip


METRICS = {
    metric.name: metric
    for metric in (
        _metric("step_time_s", "step time", "s", units.SECONDS, "lower", "as time"),
        _metric("batch_time_s", "median batch time", "s", units.SECONDS, "lower", "as time"),
        _metric("epoch_time_s", "epoch time", "s", units.SECONDS, "lower", "as total"),
        _metric("training_time_s", "training time", "s", units.SECONDS, "lower", "as total"),
        _metric("tokens_per_s", "throughput", "tokens/s", units.COUNT, "higher"),
        _metric("tokens_per_s_per_gpu", "throughput per device", "tokens/s", units.COUNT, "higher", "as rate"),
        _metric("tokens_per_s_each", "tokens of one answer", "tokens/s", units.COUNT, "higher"),
        _metric("ttft_s", "time to first token", "s", units.SECONDS, "lower"),
        _metric("ttft_p99_s", "time to first token, p99", "s", units.SECONDS, "lower"),
        _metric("itl_s", "time between tokens", "s", units.SECONDS, "lower"),
        _metric("itl_p99_s", "time between tokens, p99", "s", units.SECONDS, "lower"),
        _metric("images_per_s", "throughput", "images/s", units.COUNT, "higher"),
        _metric("images_per_s_per_gpu", "throughput per device", "images/s", units.COUNT, "higher", "as rate"),
        _metric("flop_per_s_per_gpu", "rate per device", "FLOP/s", units.FLOP_PER_S, "higher", "as rate"),
        _metric("utilisation_frac", "utilisation", "", units.FRACTION, "higher"),
        _metric("accuracy_frac", "accuracy", "", units.FRACTION, "higher"),
        _metric("training_flop", "work of the whole training", "FLOP", units.FLOP, "lower"),
        _metric("mfu_frac", "MFU", "", units.FRACTION, "higher"),
        _metric("hfu_frac", "HFU (with recomputation)", "", units.FRACTION, "higher"),
        _metric("memory_bytes", "allocated memory", "B", units.BYTES, "lower"),
        _metric("process_memory_bytes", "memory of the process", "B", units.BYTES, "lower"),
        _metric("communication_frac", "communication", "", units.FRACTION, "lower"),
        _metric("network_bytes_per_s", "network, per node", "bit/s", units.LINK_BYTES_PER_S, "higher"),
        _metric("efficiency_frac", "efficiency", "", units.FRACTION, "higher"),
        _metric("epoch_efficiency_frac", "efficiency per epoch", "", units.FRACTION, "higher"),
        _metric("training_efficiency_frac", "efficiency of training", "", units.FRACTION, "higher"),
        _metric("loss_per_doubling_frac", "efficiency lost per doubling", "", units.FRACTION, "lower"),
        _metric("place", "place", "", units.COUNT, "lower"),
        _metric("ratio", "ratio", "x", units.COUNT, "lower"),
        _metric("energy_j", "energy", "J", units.JOULES, "lower"),
        _metric("cost_usd", "cost", "USD", units.USD, "lower"),
        _metric("carbon_kgco2e", "carbon", "kg CO2e", units.KGCO2E, "lower"),
        _metric("num_gpus", "devices", "", units.COUNT, "lower"),
        _metric("gpu_time_s", "GPU time", "s", units.SECONDS, "lower"),
        _metric("accuracy_frac", "greedy accuracy", "", units.FRACTION, "higher"),
        _metric("sampled_accuracy_frac", "sampled accuracy", "", units.FRACTION, "higher"),
        _metric("save_interval_s", "save every", "s", units.SECONDS, "higher"),
        _metric("save_time_s", "one save", "s", units.SECONDS, "lower"),
        _metric("lost_frac", "share lost", "", units.FRACTION, "lower"),
        _metric("stall_time_s", "training stops for", "s", units.SECONDS, "lower"),
        _metric("rollout_time_s", "rollout", "s", units.SECONDS, "lower"),
        _metric("sync_time_s", "weight sync", "s", units.SECONDS, "lower"),
        _metric("rollout_gain", "gain on rollout", "x", units.COUNT, "higher"),
        _metric("step_gain", "gain on the step", "x", units.COUNT, "higher"),
        _metric("wasted_frac", "tokens wasted", "", units.FRACTION, "lower"),
        _metric("restore_time_s", "one restore", "s", units.SECONDS, "lower"),
        _metric("memory_bytes_per_s", "memory bandwidth", "B/s", units.BYTES_PER_S, "higher"),
        _metric("bus_bytes_per_s", "bus bandwidth", "B/s", units.BYTES_PER_S, "higher"),
        _metric("sync_time_s", "weight sync", "s", units.SECONDS, "lower"),
        _metric("link_frac", "share of the link's rate", "", units.FRACTION, "higher"),
        _metric("launch_time_s", "time per launch", "s", units.SECONDS, "lower"),
        _metric("cold_samples_per_s", "read cold", "samples/s", units.COUNT, "higher"),
        _metric("warm_samples_per_s", "read warm", "samples/s", units.COUNT, "higher"),
        _metric("bytes_per_s", "sequential cold", "B/s", units.BYTES_PER_S, "higher"),
    )
}


def metric(name: str) -> Metric:
    if name not in METRICS:
        raise UnknownNameError("metric", name, METRICS, hint=f"choose among {', '.join(METRICS)}")
    return METRICS[name]
