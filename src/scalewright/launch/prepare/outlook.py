"""How long a run would take on this machine, and which model would fit into the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Model
from scalewright.costs.machine import Machine
from scalewright.errors import ScalewrightError
from scalewright.here.devices import Here
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import ask
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.model import ModelSpec, from_catalog
from scalewright.workload.run_options import SYNTHETIC
from scalewright.workload.vision_run import VisionRun

C = TypeVar("C", LanguageRun, VisionRun)
RAM_DISK = "dev-shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The predicted length of a run."""

    prediction: Answer
    start_s: float
    num_steps: int

    @property
    def step_s(self) -> float:
        return self.prediction.time_s

    @property
    def duration_s(self) -> float:
        return self.start_s + self.num_steps * self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Generic[C]):
    """A run that can start, and its prediction."""

    config: C
    num_ranks: int
    here: Here | None
    """None where the machine is not known: several nodes, and no name of the system."""
    outlook: Outlook | None
    """None where there is no prediction; `note` says why."""
    note: str
    """Why there is no prediction; empty where there is one."""


class RunTooLargeError(Exception):
    """The run takes too long or does not fit in memory. The message says what would fit."""


def language_outlook(catalog: Catalog, run: LanguageRun, machine: Machine, *, start_s: float) -> Outlook:
    """Predict a run on a machine. Raises where the cost models do not cover it."""
    question = ask(
        catalog,
        model=ModelSpec(id=run.model_id, name=run.model_id, shape=run.shape),
        system=machine,
        layout=run.layout,
        precision=run.precision,
        stack=catalog.stack_of_own_run(run.compile).id,
    )
    return Outlook(prediction=answer(question), start_s=start_s, num_steps=run.steps)


def vision_outlook(catalog: Catalog, run: VisionRun, machine: Machine, *, start_s: float) -> Outlook:
    """Predict a vision run on a machine. It waits for decoding only: its images are taken to lie in memory."""
    question = ask(
        catalog,
        model=run.spec,
        system=machine,
        layout=run.layout,
        precision=run.precision,
        stack=catalog.stack_of_own_run(run.compile).id,
        channels_last=run.channels_last,
        storage=None if run.data == SYNTHETIC else RAM_DISK,
        num_loaders=None if run.data == SYNTHETIC else max(run.num_workers, 1),
    )
    return Outlook(prediction=answer(question), start_s=start_s, num_steps=run.steps)


def largest_that_fits(
    catalog: Catalog,
    machine: Machine,
    *,
    remake: Callable[[ModelSpec], LanguageRun],
    start_s: float,
    budget_s: float,
) -> tuple[str, float] | None:
    """The largest catalogued model that fits in memory and ends in time, and how long it takes."""
    models = (entry for entry in catalog.all("models") if isinstance(entry, Model) and entry.transformer is not None)
    for spec in sorted(map(from_catalog, models), key=lambda spec: -spec.num_params):
        try:
            outlook = language_outlook(catalog, remake(spec), machine, start_s=start_s)
        except ScalewrightError:
            continue  # another architecture, or a shape that this layout does not divide
        if outlook.prediction.fits and outlook.duration_s <= budget_s:
            return spec.id, outlook.duration_s
    return None
