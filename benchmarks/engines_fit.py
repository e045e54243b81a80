"""Fit the stacks of training programs to their stored runs, and judge the factors on runs that they were not fitted to.

    python benchmarks/engines_fit.py [ROWS.jsonl] [--write]

Reads the rows of engines_h200.py and needs no device: predictions are those of the catalogue and of the fit as they are
now. For each run the output has the error of the plain stack, the error with factors of another program that runs the
same model code (fitted to that program's runs alone), the error after the fit, and, for runs that were fitted, the
error with factors that were fitted to the others: alone, and held to those of the other program, as `calibrate
--engine` holds them to those of the catalogue. `--write` stores this beside the rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from scalewright.catalog.calibration import Calibration
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.costs.machine.stack_costs import EngineStack, StackFactors
from scalewright.engines.info import find_engine
from scalewright.observe.engine_fit import MIN_RUNS, FittedEngine, engine_label, engine_step_s, fit_engine
from scalewright.observe.residuals import RealStep
from scalewright.workload.engine_run import EngineRun
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model

RESULTS = Path(__file__).parent / "results"
BASE = RESULTS / "h200_calibration.json"
ROWS, FITS = RESULTS / "h200_engines.jsonl", RESULTS / "h200_engines_fit.json"
SAME_MODEL = {"deepspeed": "trl", "trl": "deepspeed", "huggingface": "deepspeed"}
"""Programs that train the same Hugging Face model with the same kernels."""
FITTED = "fitted"
"""Runs that factors are fitted to; the others are judged."""
KEYS = ("catalogue", "before", "other_program", "after", "left_out", "left_out_held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A run that was measured, and what is needed to predict it."""

    row: Mapping[str, Any]
    run: EngineRun

    @property
    def measured_s(self) -> float:
        return float(self.row["measured_s"])

    @property
    def stack(self) -> str:
        return find_engine(self.run.engine).stack_with(self.run.settings, device=self.run.device)

    def step(self, catalog: Catalog) -> RealStep:
        return RealStep(
            run=str(self.row["model"]), workload="language", label=engine_label(self.run), num_ranks=1,
            num_steps=int(self.row["num_steps"]), precision=self.run.precision, size=float(self.run.shape.hidden),
            measured_s=self.measured_s, low_s=float(self.row["low_s"]), high_s=float(self.row["high_s"]),
            predicted_s=partial(engine_step_s, catalog, self.run),
        )  # fmt: skip

    def predicted_s(self, catalog: Catalog, machine: Machine, fit: FittedEngine | None = None) -> float:
        """With the factors of a fit; without one, as the plain stack is."""
        named = {} if fit is None else {f"{one.name}_factor": one.factor for one in fit.factors}
        stack = EngineStack(stack=self.stack, release="", factors=StackFactors(**named))
        return engine_step_s(catalog, self.run, replace(machine, engine_stacks={self.run.engine: stack}))


def stored_runs(catalog: Catalog, rows: Sequence[Mapping[str, Any]]) -> list[Stored]:
    """The runs of a file of rows."""
    return [Stored(row=row, run=_run(catalog, row)) for row in rows if row["kind"] == "run"]


def _run(catalog: Catalog, row: Mapping[str, Any]) -> EngineRun:
    layers, hidden, heads, ffn, vocab, seq, _ = row["sizes"]
    llama = resolve_model(catalog, "llama-tiny").transformer
    shape = llama.model_copy(update={
        "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": hidden // heads,
        "ffn_hidden": ffn, "vocab": vocab, "seq": seq,
    })  # fmt: skip
    return EngineRun(
        engine=row["engine"], model_id=row["model"], shape=shape, layout=parse_layout(row["layout"]),
        precision=row["precision"], device=row["device"],
        settings=dict(setting.split("=", 1) for setting in row["settings"]),
    )  # fmt: skip


def judged(catalog: Catalog, base: Calibration, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Factors of each program, and each of its runs as predicted in every way."""
    runs, machine = stored_runs(catalog, rows), machine_from_calibration(catalog, base)
    catalogued = machine_from_system(catalog, base.base, partition_name=base.partition)
    fits = _fits(catalog, machine, runs)
    around = _fits(catalog, machine, runs, usual={name: fits.get(other) for name, other in SAME_MODEL.items()})
    programs: dict[str, Any] = {}
    for engine in dict.fromkeys(one.run.engine for one in runs):
        fit, other = fits.get(engine), fits.get(SAME_MODEL.get(engine, ""))
        programs[engine] = {
            "release": next(one.row["release"] for one in runs if one.run.engine == engine),
            "factors": {} if fit is None else {
                one.name: {"factor": one.factor, "low": one.low, "high": one.high} for one in fit.factors
            },
            "runs": [
                _errors(catalog, one, machine=machine, catalogued=catalogued, fit=fit, other=other,
                        around=around.get(engine))
                for one in runs if one.run.engine == engine
            ],
        }  # fmt: skip
    return programs


def _fits(
    catalog: Catalog, machine: Machine, runs: Sequence[Stored], *,
    usual: Mapping[str, FittedEngine | None] | None = None,
) -> dict[str, FittedEngine]:  # fmt: skip
    """Of each program with enough runs to fit. No factor of the catalogue is used: it comes from these runs."""
    fits: dict[str, FittedEngine] = {}
    machine_of: Callable[[int], Machine] = lambda _: machine  # noqa: E731
    for engine in dict.fromkeys(one.run.engine for one in runs):
        own = [one for one in runs if one.run.engine == engine and one.row["part"] == FITTED]
        if len(own) >= MIN_RUNS:
            steps = [one.step(catalog) for one in own]
            known = None if usual is None else usual.get(engine)
            fits[engine] = fit_engine(
                steps, engine=engine, stack=own[0].stack, machine_of=machine_of,
                usual={} if known is None else {one.name: one.factor for one in known.factors},
            )  # fmt: skip
    return fits


def _errors(
    catalog: Catalog, one: Stored, *, machine: Machine, catalogued: Machine, fit: FittedEngine | None,
    other: FittedEngine | None, around: FittedEngine | None,
) -> dict[str, Any]:  # fmt: skip
    def error(predicted_s: float) -> float:
        return round(predicted_s / one.measured_s - 1.0, 4)

    steps = {} if fit is None else {step.run: step for step in fit.steps}
    held = {} if around is None or other is None else {step.run: step for step in around.steps}
    was_fitted = one.row["part"] == FITTED and one.row["model"] in steps
    fits = fit is not None and (was_fitted or not one.run.settings)
    return {
        "model": one.row["model"], "label": engine_label(one.run), "part": one.row["part"],
        "settings": list(one.row["settings"]), "measured_s": one.measured_s,
        "catalogue": error(one.predicted_s(catalog, catalogued)), "before": error(one.predicted_s(catalog, machine)),
        "other_program": None if other is None else error(one.predicted_s(catalog, machine, other)),
        "after": error(one.predicted_s(catalog, machine, fit)) if fits else None,
        "left_out": error(steps[one.row["model"]].left_out_s) if was_fitted else None,
        "left_out_held": error(held[one.row["model"]].left_out_s) if was_fitted and held else None,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path, nargs="?", default=ROWS)
    parser.add_argument("--base", type=Path, default=BASE, help="Calibration of the machine.")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.rows.read_text().splitlines()]
    base = Calibration.model_validate_json(arguments.base.read_text())
    programs = judged(Catalog((packaged_data(),)), base, rows)
    for name, program in programs.items():
        factors = ", ".join(f"{key} {one['factor']:.2f}" for key, one in program["factors"].items())
        print(f"{name} {program['release']}: {factors or 'not fitted'}")
        for run in program["runs"]:
            shown = (f"{key} {run[key]:+.0%}" for key in KEYS if run[key] is not None)  # fmt: skip
            print(f"  {run['part']} {run['label']}: {1e3 * run['measured_s']:.1f} ms; {', '.join(shown)}")
    if arguments.write:
        FITS.write_text(json.dumps(programs, indent=1) + "\n")


if __name__ == "__main__":
    main()
