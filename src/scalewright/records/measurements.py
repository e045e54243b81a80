"""Results of a micro benchmark: `measurements.json` in the run directory, the same document for all benchmarks.

Rows are flat, in SI units with the unit in the key. The module of each benchmark describes its rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from scalewright.errors import DocumentError
from scalewright.records.documents import document, read_document, write_document
from scalewright.records.run_directory import RunDirectory

KIND = "measurements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Rows of one benchmark, and the conditions under which they were measured."""

    kind: str
    """Which benchmark: gemm, memory, collectives, ..."""
    device: dict[str, Any]
    """type (cpu or cuda), name, num_ranks, num_nodes, and what else distinguishes machines."""
    versions: dict[str, str]
    rows: list[dict[str, Any]]
    conditions: dict[str, Any] = field(default_factory=dict)
    """Clocks, power and temperature; `throttled`: reasons, empty if the device kept its clocks. None: unknown."""
    summary: dict[str, Any] = field(default_factory=dict)
    """The figures that people quote."""
    fits: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader must know: an operation that the back end lacks, a cache that could not be emptied."""

    def document(self) -> dict[str, Any]:
        return document(KIND, asdict(self))


def write_measurements(directory: RunDirectory, measurements: Measurements) -> None:
    write_document(directory.measurements, measurements.document())


def read_measurements(directory: RunDirectory) -> Measurements:
    """The measurements of a run that finished."""
    doc = read_document(directory.measurements, KIND)
    body = {key: value for key, value in doc.items() if key != "schema"}
    known = {f.name for f in fields(Measurements)}
    if not {"kind", "device", "versions", "rows"} <= set(body) <= known or not isinstance(body["rows"], list):
        raise DocumentError(f"{directory.measurements}: is not a whole {KIND} document: run the benchmark again")
    return Measurements(**body)
