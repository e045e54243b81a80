"""How long a run would take here, before it is started, and what would fit into the time there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Model
from scalewright.costs.machine import Machine
from scalewright.errors import ScalewrightError
from scalewright.planner.predict import Prediction, predict, resolve_recipe
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.model import ModelSpec, from_catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a run is expected to take."""

    prediction: Prediction
    start_s: float
    num_steps: int

    @property
    def step_s(self) -> float:
        return float(self.prediction.cost.time.total)

    @property
    def duration_s(self) -> float:
        return self.start_s + self.num_steps * self.step_s

    @property
    def fits_memory(self) -> bool:
        return bool(self.prediction.cost.fits)


def outlook(catalog: Catalog, run: LanguageRun, machine: Machine, *, start_s: float) -> Outlook:
    """Predict a run on a machine. Raises where the cost models do not cover it."""
    spec = ModelSpec(id=run.model_id, name=run.model_id, shape=run.shape)
    prediction = predict(
        spec=spec,
        machine=machine,
        layout=run.layout,
        recipe=resolve_recipe(run.precision, machine),
        stack=catalog.stack({"off": "eager", "graphs": "scalewright"}.get(run.compile, "compiled")),
    )
    return Outlook(prediction=prediction, start_s=start_s, num_steps=run.steps)


def largest_that_fits(
    catalog: Catalog,
    machine: Machine,
    *,
    remake: Callable[[ModelSpec], LanguageRun],
    start_s: float,
    budget_s: float,
) -> tuple[str, float] | None:
    """The catalogued model of most parameters that would be done in time and fits in memory, and how long it takes."""
    models = (entry for entry in catalog.all("models") if isinstance(entry, Model) and entry.transformer is not None)
    for spec in sorted(map(from_catalog, models), key=lambda spec: -spec.num_params):
        try:
            found = outlook(catalog, remake(spec), machine, start_s=start_s)
        except ScalewrightError:
            continue  # another architecture, or a shape that this layout does not divide
        if found.fits_memory and found.duration_s <= budget_s:
            return spec.id, found.duration_s
    return None
