"""The table of a publication's observations: predicted now, measured where a run of the stages is at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalewright.catalog.library import Catalog
from scalewright.catalog.observations import Observation, load_observations
from scalewright.records.observations import ObservationRow, ObservationTable, ObservedEvidence
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import FindingShown
from scalewright.study.observations import minimum, serving, training
from scalewright.study.observations.evidence import evidence, published_words
from scalewright.study.observations.measured import MEASURES, Stages, measured_stages

Check = Callable[[Catalog, str, Observation], ObservedEvidence]
CHECKS: dict[str, Check] = {
    "transport_speedup": training.transport_speedup,
    "communication_share": training.communication_share,
    "weak_scaling": training.weak_scaling,
    "not_compute": training.not_compute,
    "exchange_share": training.exchange_share,
    "hidden_share": training.hidden_share,
    "minimum_gpus": minimum.least_gpus,
    "host_memory": minimum.host_memory,
    "generation_utilisation": serving.generation_utilisation,
    "generation_exchange": serving.generation_exchange,
    "decode_intensity": serving.decode_intensity,
    "pipeline_gap": serving.pipeline_gap,
    "cache_room": serving.cache_room,
    "teacher_share": serving.teacher_share,
}
NOT_IN_SOURCES = "not in our sources"


def observation_table(catalog: Catalog, name: str, runs: Sequence[RunDirectory] = ()) -> ObservationTable:
    """All observations of a publication, each predicted for its system, and measured by the stages of `runs`."""
    observations, stages = load_observations(name), measured_stages(runs)
    rows = [_row(catalog, observations.system, observed, stages) for observed in observations.observations]
    return ObservationTable(
        id=observations.id, title=observations.title, system=observations.system, rows=tuple(rows),
        minima=tuple(minimum.minimum_rows(catalog, observations)), notes=observations.notes,
    )  # fmt: skip


def _row(catalog: Catalog, system: str, observed: Observation, stages: Stages) -> ObservationRow:
    predicted = evidence(NOT_IN_SOURCES, "cannot say")
    measured: ObservedEvidence | str = observed.not_here or NOT_IN_SOURCES
    if observed.is_known:
        predicted = CHECKS[observed.check](catalog, system, observed)
    if observed.measure:
        measured = MEASURES[observed.measure](stages, observed) if stages else "no stage was run"
    return ObservationRow(
        id=observed.id, stage=observed.stage, text=observed.text, published=published_words(observed.figure),
        source=observed.source.text, url=observed.source.url, assumption=observed.assumption, predicted=predicted,
        measured=None if isinstance(measured, str) else measured,
        not_measured=measured if isinstance(measured, str) else "",
    )  # fmt: skip


def observation_findings(table: ObservationTable) -> list[FindingShown]:
    """How many observations hold: predicted for the publication's system, and measured."""
    findings = [
        _counted(table, [row.predicted for row in table.rows], f"predicted for {table.system}"),
        *_partitions(table),
    ]
    measured = [row.measured for row in table.rows if row.measured is not None]
    if measured:
        findings.append(_counted(table, measured, "measured here"))
    return findings


def _counted(table: ObservationTable, all_evidence: Sequence[ObservedEvidence], where: str) -> FindingShown:
    verdicts = [each.verdict for each in all_evidence]
    holds, fails = verdicts.count("holds"), verdicts.count("does not hold")
    return FindingShown(
        text=f"of {len(table.rows)} published observations, {where}: {holds} hold, {fails} do not, "
        f"{len(table.rows) - holds - fails} cannot be decided",
        source=table.title,
    )


def _partitions(table: ObservationTable) -> list[FindingShown]:
    """How many published minima each partition has: they are not mixed."""
    rows = [row for row in table.minima if row.published is not None]
    if not rows:
        return []
    counts = [
        f"{sum(row.num_gpus.get(partition) == row.published for row in rows)} on {partition}"
        for partition in rows[0].num_gpus
    ]
    return [
        FindingShown(
            text=f"of {len(rows)} published minimum GPUs, each in the mode that is named, {' and '.join(counts)} are "
            "predicted exactly",
            source=table.title,
        )
    ]
