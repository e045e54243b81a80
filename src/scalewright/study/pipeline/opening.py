"""Open a study to measure it: a pipeline gets the sizes of its results, or else of the machine and the budget."""

from __future__ import annotations

from pathlib import Path

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError, QuantityError
from scalewright.study.file import StudyFile, find, load
from scalewright.study.pipeline.setting import PipelineSetting, profile_of
from scalewright.study.points import Study, open_study
from scalewright.study.store import Store

RESULTS = Path("results")


def open_measured(
    catalog: Catalog, name: str, results: Path | None = None, *, site: str = "", budget: str = ""
) -> tuple[Study, Path]:
    """A study with the points to measure, and the folder of its results.

    `budget` makes a pipeline smaller. Its results have a folder of their own, unless `results` names one.
    """
    file = load(find(name))
    _check_budget(file, budget)
    folder = results or RESULTS / (f"{file.id}-{''.join(budget.split())}" if budget else file.id)
    return open_study(catalog, name, is_measured=True, setting=_setting(file, folder, site, budget)), folder


def _check_budget(file: StudyFile, budget: str) -> None:
    if not budget:
        return
    if file.pipeline is None:
        raise ConfigError(
            f"--budget makes a pipeline smaller, and {file.id} has none: leave it out, or set measure.time_limit"
        )
    try:
        seconds = units.parse(budget, units.SECONDS)
    except QuantityError as error:
        raise ConfigError(f"--budget: {error}") from error
    if not seconds > 0:
        raise ConfigError(f"--budget {budget} must be above zero: give a time such as 5min")


def _setting(file: StudyFile, folder: Path, site: str, budget: str) -> PipelineSetting | None:
    """Sizes of the results in a folder; of this machine or site where there are none. None without a pipeline."""
    if file.pipeline is None:
        return None
    store = Store(folder)
    planned = store.read_pipeline() if store.study.is_file() else None
    if planned is None:
        at_site = bool(site) or (file.measure is not None and file.measure.where == "site")
        return PipelineSetting(profile=profile_of(file.pipeline, is_at_site=at_site), budget=budget)
    if budget and budget != planned.setting.budget:
        was = f"a budget of {planned.setting.budget}" if planned.setting.budget else "no budget"
        raise ConfigError(f"{folder}: holds results with {was}, not {budget}: choose another folder with --out")
    return planned.setting
