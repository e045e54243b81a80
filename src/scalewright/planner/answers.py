"""What every `prediction/1` document has, whatever was predicted: who, where, how long, how sure, what it costs."""

from __future__ import annotations

from typing import Any

from scalewright import __version__
from scalewright.costs.machine import Machine
from scalewright.planner.energy_use import Footprint
from scalewright.records.documents import digest
from scalewright.records.types import Confidence
from scalewright.workload.model import ModelSpec


def heading(
    *, stage: str, spec: ModelSpec, machine: Machine, resolved_input: dict[str, Any], num_gpus: int
) -> dict[str, Any]:
    """The first keys: what was asked. The id is a hash of the resolved input."""
    return {
        "id": digest(resolved_input),
        "scalewright": __version__,
        "stage": stage,
        "model": spec.id,
        "system": machine.name,
        "input": resolved_input,
        "num_gpus": num_gpus,
        "num_nodes": machine.num_nodes_for(num_gpus),
    }


def timing(
    *, machine: Machine, step_s: float, interval_s: tuple[float, float], bound_s: float, used: Footprint | None
) -> dict[str, Any]:
    """Time with its interval and its physical bound, and how each number was made."""
    return {
        "step_time_s": step_s,
        "step_time_interval_s": [interval_s[0], interval_s[1]],
        "step_time_bound_s": bound_s,
        "confidence": machine.confidence,
        "confidence_of": confidence_of(machine, has_energy=used is not None),
    }


def confidence_of(machine: Machine, *, has_energy: bool) -> dict[str, Confidence]:
    """How each number was made. Memory and energy follow from counts and sourced shares, never from a calibration."""
    found: dict[str, Confidence] = {"step_time": machine.confidence, "step_time_bound": "bound", "memory": "model"}
    return found | ({"energy": "model"} if has_energy else {})


CONFIDENCE_TITLES: dict[Confidence, str] = {
    "bound": "physics only: peak rates, nothing lost",
    "model": "formulas and catalogue values; not measured here",
    "calibrated": "formulas with rates measured on this machine",
}


def energy_keys(used: Footprint | None, *, per: str = "token") -> dict[str, Any]:
    if used is None:
        return {}
    return {
        "energy_j": float(used.energy.total),
        f"energy_j_per_{per}": used.energy_j_per_token,
        **({} if used.cost_usd is None else {"cost_usd": used.cost_usd}),
        **({} if used.carbon_kgco2e is None else {"carbon_kgco2e": used.carbon_kgco2e}),
    }
