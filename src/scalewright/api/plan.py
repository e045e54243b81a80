"""`sw.plan(...)`: the best layouts of a model on a machine, why others lost, and what the whole run costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.api.frames import Framed
from scalewright.api.keywords import checked, count, listed, quantity_text
from scalewright.api.predict import ShownAnswer, shown_answer
from scalewright.catalog.library import open_catalog
from scalewright.engines.expressed import plan_for_framework
from scalewright.errors import ConfigError
from scalewright.planner.plan_report import STAGES_WITHOUT_LAYOUT, PlanReport
from scalewright.planner.request import PlanOptions
from scalewright.records.documents import write_document
from scalewright.report.notebook.plan import plan_html


@dataclass(frozen=True, slots=True)
class ShownPlan(Framed):
    """A plan that shows itself in a notebook."""

    report: PlanReport

    @property
    def best(self) -> ShownAnswer | None:
        """The prediction of the best layout; None where nothing fits."""
        return None if self.report.plan.best is None else shown_answer(self.report.plan.best)

    @property
    def alternatives(self) -> list[ShownAnswer]:
        """The next best layouts."""
        return [shown_answer(prediction) for prediction in self.report.plan.alternatives]

    @property
    def fits(self) -> bool:
        return self.report.plan.fits

    def document(self) -> dict[str, Any]:
        """What `scalewright plan --json` prints."""
        return self.report.document()

    def save(self, path: str | Path) -> None:
        """Write the document, as `scalewright plan --out` does: `launch`, `lint` and `plan-show` read it."""
        write_document(Path(path), self.document())

    def columns(self) -> dict[str, list[Any]]:
        """One row a layout, the best first."""
        answers = [*([self.best] if self.best is not None else []), *self.alternatives]
        return {
            "layout": [answer.question.layout.brief for answer in answers],
            "step_time_s": [answer.time_s for answer in answers],
            "mfu_frac": [answer.transformer.mfu_frac for answer in answers],
            "memory_bytes": [answer.memory_bytes for answer in answers],
            "precision": [answer.question.recipe.name for answer in answers],
        }

    def __repr__(self) -> str:
        return "nothing fits" if self.best is None else f"best: {self.best!r}"

    def _repr_html_(self) -> str:
        return plan_html(self.document())


@checked()
def plan(
    *,
    model: str,
    system: str,
    nodes: int | str | None = None,
    gpus: int | str | None = None,
    global_batch: int | str | None = None,
    partition: str | None = None,
    network: str | None = None,
    seq: int | str | None = None,
    precision: str = "auto",
    stack: str = "auto",
    fix: str | None = None,
    objective: str = "time",
    tokens: str | float | None = None,
    steps: int | str | None = None,
    budget: str | None = None,
    walltime: str | None = None,
    site: str | None = None,
    mode: str = "full",
    stage: str = "pretrain",
    compare: str | Sequence[str] = (),
    what_if: str | None = None,
    emit: str | None = None,
    top: int = 5,
    catalog: str | Path | None = None,
) -> ShownPlan:
    """Search every layout that divides the model. The options are those of `scalewright plan`.

    `nodes` is a number, a choice such as "8,16,32", or doublings such as "8-64"; without it, or
    without `global_batch`, the plan chooses one and says why; `compare` names more systems.
    """
    if stage in STAGES_WITHOUT_LAYOUT:
        raise ConfigError(f"stage {stage} is no single training step: use scalewright plan --stage {stage}")
    options = PlanOptions(
        model=model, global_batch=count("global_batch", global_batch), nodes=None if nodes is None else str(nodes),
        gpus=count("gpus", gpus), partition=partition, network=network, seq=count("seq", seq), precision=precision,
        stack=stack, fix=fix, objective=objective, tokens=quantity_text(tokens), steps=count("steps", steps),
        budget=budget, walltime=walltime, site=site, mode=mode, stage=stage, top=top,
    )  # fmt: skip
    library = open_catalog(None if catalog is None else Path(catalog))
    systems = list(dict.fromkeys([system, *listed(compare)]))
    return ShownPlan(plan_for_framework(library, systems, options, what_if_text=what_if, framework=emit))
