"""The report of a study: what is predicted, and what the results folder holds where there is one."""

from __future__ import annotations

from dataclasses import replace

from scalewright.catalog.library import Catalog
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import StudyReport
from scalewright.study.file import axes_of
from scalewright.study.points import Study, open_study
from scalewright.study.results import measured_study, predict_study
from scalewright.study.store import Store
from scalewright.study.tell import report_of


def predicted_report(catalog: Catalog, study: Study) -> StudyReport:
    return report_of(predict_study(catalog, study))


def measured_report(catalog: Catalog, name: str, store: Store) -> StudyReport:
    """What was measured, beside its prediction; then the points for other systems, if the study has such."""
    seen = open_study(catalog, name, is_measured=True)
    store.check(seen)
    here = report_of(measured_study(catalog, seen, store), machine=_machine(seen, store))
    if seen.file.measure is None or not axes_of(seen.file.measure) or not axes_of(seen.file):
        return here
    return replace(here, parts=(predicted_report(catalog, open_study(catalog, name)),))


def _machine(study: Study, store: Store) -> str:
    """Where it was measured, as the first run says."""
    for point in study.points:
        told = _told(store.run(point, 0))
        if told:
            return told
    return ""


def _told(run: RunDirectory) -> str:
    if not run.machine.exists():
        return ""
    machine = run.read_machine()
    return f"measured on {machine.get('accelerator', '')} ({machine.get('basis', '')})"
