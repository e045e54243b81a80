"""A point of the storage benchmark: samples read in one format, cold and warm, on the storage under the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright.catalog.library import Catalog
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.micro.storage import StorageKind
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.workload.storage_run import StorageFormat


@checked(frozen=True, kw_only=True, config=STRICT)
class ReadingPoint:
    """Options of a point of this kind: one format, one and several readers, no metadata."""

    format: StorageFormat
    size: str = "64 MiB"
    sample_size: str = "110 kB"
    workers: int = 2
    budget: str = "30 s"


_OPTIONS = TypeAdapter(ReadingPoint)


class ReadingKind(StorageKind):
    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        super().check(catalog, _storage_options(options, where=where), where=where)

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        storage = _storage_options(options, where=where)
        return super().execution(catalog, storage, path=path, where=where, predicts=predicts)


def _storage_options(options: Mapping[str, Value], *, where: str) -> dict[str, Value]:
    """The same point as options of the storage benchmark."""
    reading = parse_options(_OPTIONS, options, where=where)
    return {
        "formats": reading.format,
        "size": reading.size,
        "sample_size": reading.sample_size,
        "workers": ",".join(map(str, sorted({1, reading.workers}))),
        "files": 0,
        "budget": reading.budget,
    }


KIND = ReadingKind()
