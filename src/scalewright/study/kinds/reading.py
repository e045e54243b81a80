"""A point of the storage benchmark: samples read in one format, cold and warm, on the storage under the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.records.measurements import read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Number
from scalewright.study.doubts import doubts_of_measurements
from scalewright.study.execute import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome, PredictedOnly
from scalewright.study.kinds.training import STRICT, read_as
from scalewright.workload.storage_run import StorageFormat, StorageRun

START_S = 5.0


@checked(frozen=True, kw_only=True, config=STRICT)
class Reading:
    """What a point of this kind is told."""

    format: StorageFormat
    size: str = "64 MiB"
    sample_size: str = "110 kB"
    workers: int = 2
    budget: str = "30 s"


_TOLD: TypeAdapter[Reading] = TypeAdapter(Reading)


class ReadingKind(PredictedOnly):
    what = "reading samples"
    metrics: tuple[str, ...] = ("cold_samples_per_s", "warm_samples_per_s", "bytes_per_s")

    def check(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> None:
        del catalog
        _run(read_as(_TOLD, told, where=where), Path())

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Any]:
        del catalog, values
        return {}

    def predict(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> Outcome:
        del catalog, told, where
        return Outcome()  # how fast a format is read is measured, not predicted

    def execution(self, catalog: Catalog, told: Mapping[str, Value], *, path: Path, where: str) -> Execution:
        del catalog
        asked = read_as(_TOLD, told, where=where)
        scratch = path.parent / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        run = _run(asked, scratch.resolve())
        return Execution(kind="storage", config=run.document(), path=path, expected_s=run.budget_s + START_S)

    def measured(self, path: Path) -> Outcome:
        found = read_measurements(RunDirectory(path))
        numbers = {
            "cold_samples_per_s": _best(found.rows, "samples_per_s", cache="cold"),
            "warm_samples_per_s": _best(found.rows, "samples_per_s", cache="warm"),
            "bytes_per_s": _best(found.rows, "bytes_per_s", cache="cold", order="sequential"),
        }
        kept = {name: Number(value=value) for name, value in numbers.items() if value is not None}
        return Outcome(
            numbers=kept, notes=tuple(found.notes), problem="" if kept else "no row was measured",
            doubts=doubts_of_measurements(RunDirectory(path), found),
        )  # fmt: skip

    def samples(self, path: Path) -> tuple[float, ...]:
        rows = read_measurements(RunDirectory(path)).rows
        return tuple(float(row["time_s"]) / float(row["num_samples"]) for row in rows if row.get("num_samples"))


def _run(asked: Reading, scratch: Path) -> StorageRun:
    return StorageRun(
        path=str(scratch),
        formats=(asked.format,),
        size_bytes=round(units.parse(asked.size, units.BYTES)),
        sample_bytes=round(units.parse(asked.sample_size, units.BYTES)),
        num_workers=tuple(sorted({1, asked.workers})),
        num_metadata_files=0,
        budget_s=units.parse(asked.budget, units.SECONDS),
    )


def _best(rows: Sequence[Mapping[str, Any]], key: str, **wanted: str) -> float | None:
    """The largest figure of the rows that are so; of a random order where the format has one."""
    fit = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    random = [row for row in fit if row.get("order") == "random"]
    return max((float(row[key]) for row in (random or fit)), default=None)


KIND = ReadingKind()
