"""Storage of a calibrated machine as an entry like the catalogue's: what was measured, the rest as catalogued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright.catalog.calibration import Calibration, Value, ValueName
from scalewright.catalog.facts import Fact
from scalewright.catalog.types import Storage
from scalewright.records.documents import schema

READ_FORMATS = ("shards", "lmdb", "files")
"""What samples lie in, the usual one first."""
SAVE_MODES = ("sync", "async")
"""Either tells how long a checkpoint takes to the disk; nothing else runs beside the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageHere:
    """Where a calibrated machine reads samples and writes checkpoints, and what a reader must know of it."""

    entry: Storage | None
    is_measured: bool
    note: str


def storage_here(calibration: Calibration, catalogued: Storage | None) -> StorageHere:
    """Reads, small files and saves as one node measured them; what it did not measure is the catalogue's."""
    read = _first(calibration, "storage_read_bytes_per_s", READ_FORMATS)
    save = _first(calibration, "checkpoint_bytes_per_s", SAVE_MODES)
    files = calibration.value("storage_files_per_s")
    other = "nothing" if catalogued is None else f"{catalogued.id} of the catalogue"
    lacking = [what for what, value in (("reads", read), ("saves", save)) if value is None]
    note = f"calibration {calibration.name} measured no {' and no '.join(lacking)}: {other} is used" if lacking else ""
    if read is None and save is None:
        return StorageHere(entry=catalogued, is_measured=False, note=note)

    def fact(value: Value | None, unit: str, instead: Fact | None) -> dict[str, Any] | Fact | None:
        return instead if value is None else {"value": f"{value.value:.6g} {unit}", "source": calibration.source}

    entry = Storage.model_validate(
        {
            "schema": schema("storage"),
            "id": f"measured-{calibration.name.replace('_', '-')}",
            "name": f"Storage as calibration {calibration.name} measured it",
            "sources": {},
            "kind": "node-local",
            "technology": "as measured by one node",
            "read_bandwidth": fact(read, "B/s", None if catalogued is None else catalogued.read_bandwidth),
            "write_bandwidth": fact(save, "B/s", None if catalogued is None else catalogued.write_bandwidth),
            "file_rate": fact(files, "Hz", None if catalogued is None else catalogued.file_rate),
        }
    )
    return StorageHere(entry=entry, is_measured=True, note=note)


def _first(calibration: Calibration, name: ValueName, kinds: tuple[str, ...]) -> Value | None:
    return next((value for of in kinds if (value := calibration.value(name, of)) is not None), None)
