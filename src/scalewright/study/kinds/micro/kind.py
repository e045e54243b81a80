"""What the kinds of micro benchmarks share: options become a configuration, and rows of measurements become numbers.

`scalewright bench NAME` runs one point of such a kind; a calibration and a study file run several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

from pydantic import TypeAdapter

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.here.devices import device_here
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Number
from scalewright.study.doubts import doubts_of_measurements
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.options import parse_options
from scalewright.workload.run_options import DeviceKind

START_S = 5.0
"""Time that a benchmark takes beside its budget: processes start, libraries load."""


class MicroOptions(Protocol):
    """What the options of every micro benchmark have."""

    @property
    def ranks(self) -> int | None: ...

    @property
    def device(self) -> str: ...

    @property
    def budget(self) -> str: ...


class MicroConfig(Protocol):
    """A benchmark's resolved configuration."""

    def document(self) -> dict[str, Any]: ...


OptionsT = TypeVar("OptionsT", bound=MicroOptions)


class MicroKind(ABC, Generic[OptionsT]):
    """A benchmark that is measured and never predicted."""

    name: str
    """As `python -m scalewright.run` knows it."""
    options: TypeAdapter[OptionsT]
    metrics: tuple[str, ...]
    runs_as_job = False

    @abstractmethod
    def config(self, catalog: Catalog, options: OptionsT, *, device: DeviceKind, folder: Path) -> MicroConfig:
        """The configuration on this device; `folder` is the run directory, beside which scratch files may lie."""

    @abstractmethod
    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        """The study's metrics by name; None where the benchmark did not measure it."""

    def device(self, options: OptionsT) -> DeviceKind:
        """The device that the benchmark runs on; one that this machine lacks is refused."""
        return cast(DeviceKind, device_here(options.device, num_ranks=options.ranks or 1))

    def num_ranks(self, options: OptionsT, config: MicroConfig) -> int:
        del config
        if options.ranks is not None and options.ranks < 1:
            raise ConfigError(f"--ranks {options.ranks} starts nothing: give 1 or more")
        return options.ranks or 1

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        parsed = parse_options(self.options, options, where=where)
        self.config(catalog, parsed, device=cast(DeviceKind, parsed.device), folder=Path())

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        del catalog, values
        return {}

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        del catalog, options, where
        return Outcome()

    def stored_prediction(self, prediction: dict[str, Any]) -> Outcome:
        del prediction
        raise NotExpressedError(f"a {self.name} benchmark is measured, not predicted")

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        del predicts
        parsed = parse_options(self.options, options, where=where)
        budget_s = units.parse(parsed.budget, units.SECONDS)
        config = self.config(catalog, parsed, device=self.device(parsed), folder=path)
        return Execution(
            kind=self.name,
            config=config.document(),
            path=path,
            num_ranks=self.num_ranks(parsed, config),
            expected_s=budget_s + START_S,
        )

    def measured(self, path: Path) -> Outcome:
        measurements = read_measurements(RunDirectory(path))
        numbers = {name: Number(value=value) for name, value in self.numbers(measurements).items() if value is not None}
        return Outcome(
            numbers=numbers,
            notes=tuple(measurements.notes),
            problem="" if numbers else "no row was measured",
            doubts=doubts_of_measurements(RunDirectory(path), measurements),
        )

    def samples(self, path: Path) -> tuple[float, ...]:
        rows = read_measurements(RunDirectory(path)).rows
        return tuple(float(row["time_s"]) for row in rows if "time_s" in row)


def largest(rows: list[dict[str, Any]], key: str) -> float | None:
    return max((float(row[key]) for row in rows if row.get(key) is not None), default=None)


def scratch_beside(folder: Path) -> Path:
    """A scratch folder next to a run directory, for benchmarks of storage inside a study."""
    scratch = folder.parent / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    return scratch.resolve()
