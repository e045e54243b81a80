"""The calibration that the measured runs give: values, fitted residuals, and the checks before it is written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from scalewright import __version__
from scalewright.catalog.calibration import SCHEMA, Calibration, Step
from scalewright.catalog.calibration_quality import error_words
from scalewright.catalog.library import Catalog
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.here.place import versions_here
from scalewright.observe.calibrate import BenchmarkRun, convolution_rows, read_sources, unmeasured_words, values_from
from scalewright.observe.generation_fit import fit_generation, unfitted_words
from scalewright.observe.real_steps import read_steps
from scalewright.observe.residuals import fit_residuals
from scalewright.records.run_directory import RunDirectory
from scalewright.study.calibration.request import CalibrationRequest
from scalewright.study.conditions import read_attempts

CONTRADICTED_FRAC, FEWEST_STEPS_TO_JUDGE = 1.0, 2
"""Mean error of the fitted steps above which a calibration is worse than a probe, and the steps needed to say so."""
DISTURBED_FRAC = 0.15
"""Share of a CPU's cores that other work may use on average before the measured rates are too low."""


def calibration_of(
    catalog: Catalog, request: CalibrationRequest, paths: list[Path], *, spent_s: float, skipped: list[str]
) -> Calibration:
    """The calibration that these run directories give. Writes nothing."""
    sources = sources_of(paths)
    _check_same_machine(request, sources)
    steps, notes = read_steps(catalog, (RunDirectory(p) for p in paths if not RunDirectory(p).measurements.exists()))
    skipped = [*unmeasured_words(sources), *skipped, *notes]
    draft = draft_calibration(request, sources, spent_s=spent_s, skipped=tuple(skipped))
    if not draft.values:
        raise EnvironmentFailedError("nothing was measured: give a longer --budget, or look into the run directories")
    fitted = fit_residuals(catalog, draft, steps)
    _check_fit(fitted.steps)
    generation = fit_generation(
        lambda num_ranks: machine_from_calibration(catalog, draft, num_ranks=num_ranks),
        catalog.stack_of_own_run("off"),
        sources,
    )
    return draft.model_copy(
        update={
            "skipped": (*draft.skipped, *unfitted_words(generation, sources)),
            "values": (*draft.values, *generation.values),
            "generation_steps": generation.steps,
            "generation_interval": generation.generation_interval,
            "first_token_interval": generation.first_token_interval,
            "residuals": fitted.residuals,
            "steps": fitted.steps,
            "language_interval": fitted.language_interval,
            "vision_interval": fitted.vision_interval,
        }
    )


def sources_of(paths: list[Path]) -> list[BenchmarkRun]:
    return read_sources(RunDirectory(path) for path in paths)


def draft_calibration(
    request: CalibrationRequest, sources: list[BenchmarkRun], *, spent_s: float, skipped: tuple[str, ...]
) -> Calibration:
    """The values of the micro benchmarks, before training steps correct them."""
    versions = {key: value for source in sources for key, value in source.measurements.versions.items()}
    versions = {**versions, **versions_here(), "scalewright": __version__}
    throttled = [
        f"{source.run}: the device slowed itself down ({', '.join(map(str, reasons))})"
        for source in sources
        if (reasons := source.measurements.conditions.get("throttled"))
    ]
    return Calibration.model_validate(
        {
            "schema": SCHEMA,
            "name": request.name,
            "base": request.system,
            "partition": request.partition,
            "fingerprint": request.fingerprint,
            "versions": versions,
            "created": datetime.now(UTC).replace(microsecond=0),
            "budget_s": request.budget_s,
            "spent_s": max(spent_s, 0.1),
            "values": values_from(sources, request.base),
            "collectives": [fit for source in sources for fit in source.measurements.fits],
            "convolutions": convolution_rows(sources),
            "skipped": skipped,
            "notes": throttled,
        }
    )


def disturbance_note(runs: Sequence[Path]) -> str:
    """How many cores other work used while the runs were measured; empty where it was too little to matter."""
    attempts = [attempt for path in runs for attempt in read_attempts(RunDirectory(path))]
    if not attempts:
        return ""
    took_s = sum(attempt.took_s for attempt in attempts)
    others_cores = sum(attempt.others_cores * attempt.took_s for attempt in attempts) / took_s
    num_cores = attempts[0].num_cores
    if others_cores <= DISTURBED_FRAC * num_cores:
        return ""
    return (
        f"other work used {others_cores:.1f} of {num_cores} cores meanwhile: calibrate again when this machine is quiet"
    )


def _check_fit(steps: Sequence[Step]) -> None:
    """Values that do not reproduce the steps they were fitted to were measured on a disturbed machine."""
    if len(steps) < FEWEST_STEPS_TO_JUDGE:
        return
    error_frac = statistics.mean(abs(step.after_s / step.measured_s - 1.0) for step in steps)
    if error_frac > CONTRADICTED_FRAC:
        raise EnvironmentFailedError(
            f"the predictions from this calibration's values are {error_words(error_frac)} for the training steps they "
            "were fitted to, as when other work uses the machine: nothing is written; calibrate again when it is quiet"
        )


def _check_same_machine(request: CalibrationRequest, sources: list[BenchmarkRun]) -> None:
    for source in sources:
        name = str(source.measurements.device.get("name", request.fingerprint.name))
        if name != request.fingerprint.name:
            raise ConfigError(
                f"{request.folder / source.run} was measured on {name}, not on {request.fingerprint.name}: choose "
                "another folder with --out"
            )
