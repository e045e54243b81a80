"""A calibration: what was measured of one machine, as the planner loads it. `$SCALEWRIGHT_HOME/calibration/NAME.json`.

It refines a catalogued system: what it does not hold (grid, fabric, what was not measured) is the catalogue's. It is
good for the machine and the software it was made with, and says which those were.
"""

from __future__ import annotations

import re
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scalewright import units
from scalewright.catalog.calibration_rows import check_collective, check_convolution
from scalewright.catalog.facts import Source, Strict
from scalewright.catalog.library import home
from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError
from scalewright.records.documents import check_schema, digest, parse_json, read_text, schema, write_document
from scalewright.records.loader import validate
from scalewright.records.types import EnvName

KIND = "calibration"
MEMORY_TOLERANCE_FRAC = 0.02
"""Kernels and drivers keep a little more or less memory from one version to the next."""
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")

ValueName = Literal[
    "matmul_flop_per_s",
    "best_matmul_flop_per_s",
    "full_matmul_flop_per_s",
    "matmul_start_s",
    "attention_flop_per_s",
    "attention_seq_ramp",
    "attention_backward_ratio",
    "memory_bytes_per_s",
    "host_link_bytes_per_s",
    "dispatch_s",
    "collective_start_s",
    "collective_bytes_per_s",
    "storage_read_bytes_per_s",
    "storage_files_per_s",
    "checkpoint_bytes_per_s",
    "checkpoint_copy_bytes_per_s",
    "decode_weight_bytes_per_s",
    "decode_cache_bytes_per_s",
    "decode_layer_s",
    "decode_step_s",
    "decode_sequence_s",
    "prompt_flop_per_s",
    "prompt_layer_s",
    "product_blend",
]
"""What a calibration can hold; the unit is in the name."""
ResidualName = Literal["products", "elementwise", "host", "convolutions", "norms"]
MAX_RESIDUALS = 3
StackFactorName = Literal["host", "elementwise", "attention", "update"]
"""What a training program may take more of than its stack says."""
Positive = Annotated[float, Field(gt=0.0, le=1e30, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False)]
"""Measured over predicted: what is farther off was not measured on the machine that it names."""


class Fingerprint(Strict):
    """What tells one kind of machine from another; nodes of one kind share it, so it holds no host name."""

    device: Literal["cpu", "cuda"]
    name: str = Field(min_length=1)
    """Of the GPU, or of the processor."""
    num_devices: int = Field(ge=1)
    """GPUs of the node; 1 for a CPU."""
    processor: str
    num_cores: int = Field(ge=1)
    memory_bytes: int = Field(ge=1)
    """Of the host."""

    def difference(self, other: Fingerprint) -> str:
        """The first thing in which another machine differs from this one, in words; empty where they are alike."""
        if abs(self.memory_bytes - other.memory_bytes) > MEMORY_TOLERANCE_FRAC * self.memory_bytes:
            return f"memory of {self.memory_bytes / units.GIB:.1f} GiB, not {other.memory_bytes / units.GIB:.1f} GiB"
        for field in ("device", "name", "num_devices", "processor", "num_cores"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                return f"{field.replace('num_', 'number of ')} {mine}, not {theirs}"
        return ""


class Value(Strict):
    """One measured number: between what it lies, from how many rows of which runs, and what the catalogue has."""

    name: ValueName
    of: str = ""
    """Precision, mode or operation, where there are several."""
    num_ranks: int = Field(default=1, ge=1)
    """Ranks of the node that measured at once."""
    value: Positive
    low: Positive
    high: Positive
    num_rows: int = Field(ge=1)
    runs: tuple[str, ...] = Field(min_length=1)
    catalogue: Positive | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Value:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.name} of {self.value} lies outside its own spread, {self.low} to {self.high}")
        return self

    @property
    def change_frac(self) -> float | None:
        """Measured over catalogued, less one."""
        return None if self.catalogue is None else self.value / self.catalogue - 1.0


class Step(Strict):
    """A short real run: its measured step, and what was predicted of it before and after the residuals were fitted."""

    run: str
    workload: Literal["language", "vision"]
    label: str
    num_ranks: int = Field(ge=1)
    num_steps: int = Field(ge=1)
    precision: str
    size: Positive
    """Width of a transformer, images of a batch: the range that was seen."""
    measured_s: Positive
    low_s: Positive
    high_s: Positive
    before_s: Positive
    after_s: Positive
    left_out_s: Positive
    """Predicted with residuals that were fitted to the other runs only."""


class GenerationStep(Strict):
    """A measured decode step or prompt of our engine, and what is predicted of it."""

    run: str
    phase: Literal["decode", "prefill"]
    label: str
    precision: str
    measured_s: Positive
    after_s: Positive
    """With the rates that were fitted to all of them."""
    left_out_s: Positive
    """With rates that were fitted to the other ones only."""


class Residual(Strict):
    """A factor on one group of terms, fitted to real steps: what the operators alone did not explain."""

    name: ResidualName
    factor: Factor
    low: Factor
    high: Factor

    @model_validator(mode="after")
    def _ordered(self) -> Residual:
        if not self.low <= self.factor <= self.high:
            raise ValueError(f"residual {self.name} of {self.factor} lies outside its own {self.low} to {self.high}")
        return self


class StackFactor(Strict):
    """A factor on what a stack takes, fitted to short runs of one training program."""

    name: StackFactorName
    factor: Factor
    low: Factor
    high: Factor

    @model_validator(mode="after")
    def _ordered(self) -> StackFactor:
        if not self.low <= self.factor <= self.high:
            raise ValueError(f"factor {self.name} of {self.factor} lies outside its own {self.low} to {self.high}")
        return self


class EngineFit(Strict):
    """What runs of a training program showed on this machine, beside what its stack and the calibration say."""

    engine: str = Field(min_length=1)
    stack: str = Field(min_length=1)
    """Catalogued stack whose costs the factors multiply."""
    release: str
    """Of the program."""
    versions: dict[str, str]
    """Of what was installed beside it."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Keys of the program's own that were set."""
    created: datetime
    spent_s: Positive
    factors: tuple[StackFactor, ...] = Field(default=(), max_length=MAX_RESIDUALS)
    steps: tuple[Step, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _each_factor_once(self) -> EngineFit:
        names = [factor.name for factor in self.factors]
        if len(set(names)) != len(names):
            raise ValueError(f"a factor of {self.engine} appears twice")
        return self


class Interval(Strict):
    """The 90 % interval of measured over predicted, from the steps above."""

    low_frac: Factor
    high_frac: Factor
    num_steps: int = Field(ge=0)
    """Runs that it comes from; 0: the interval of the catalogue is used."""


class Calibration(Strict):
    schema_: str = Field(alias="schema")
    name: str
    base: str
    """Catalogued system that it refines."""
    partition: str
    fingerprint: Fingerprint
    versions: dict[str, str]
    """Of what was measured with: torch, cuda, driver, python, scalewright."""
    created: datetime
    budget_s: Positive
    spent_s: Positive
    values: tuple[Value, ...]
    steps: tuple[Step, ...] = ()
    residuals: tuple[Residual, ...] = Field(default=(), max_length=MAX_RESIDUALS)
    language_interval: Interval | None = None
    vision_interval: Interval | None = None
    generation_steps: tuple[GenerationStep, ...] = ()
    generation_interval: Interval | None = None
    """Of decode steps."""
    first_token_interval: Interval | None = None
    """Of prompts."""
    engines: tuple[EngineFit, ...] = ()
    """Training programs that were fitted on this machine (`calibrate --engine`)."""
    collectives: tuple[dict[str, Any], ...] = ()
    """Fits of `bench collectives`, as it wrote them."""
    convolutions: tuple[dict[str, Any], ...] = ()
    """Rows of `bench convolution`, without what only its own table shows."""
    skipped: tuple[str, ...] = ()
    """What was not measured, and why."""
    notes: tuple[str, ...] = ()
    is_disturbed: bool = False
    """Other work used the machine meanwhile, so the rates are too low."""
    num_parts: int = Field(default=0, ge=0)
    """Benchmarks and training runs that were planned; 0: an older file, which does not say."""
    num_missing: int = Field(default=0, ge=0)
    """Of those, how many gave nothing: the budget ended before them, or they failed."""

    @model_validator(mode="after")
    def _each_once(self) -> Calibration:
        keys = [(value.name, value.of, value.num_ranks) for value in self.values]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise ValueError(f"{twice[0][0]} of {twice[0][1] or 'the machine'} appears twice")
        for row in self.collectives:
            check_collective(row)
        for row in self.convolutions:
            check_convolution(row)
        names = [residual.name for residual in self.residuals]
        if len(set(names)) != len(names):
            raise ValueError("a residual appears twice")
        engines = [fit.engine for fit in self.engines]
        if len(set(engines)) != len(engines):
            raise ValueError("an engine appears twice")
        return self

    @property
    def source(self) -> Source:
        """The source of facts that this calibration gives."""
        day = self.created.date()
        return Source(kind="measured", text=f"calibration {self.name} of this machine", checked=day)

    @property
    def id(self) -> str:
        """Changes with every value, so that predictions made with another one are seen to be stale."""
        # The counts of parts are no values: without them files keep the id that they had before there were counts.
        unset = {name for name in ("generation_steps", "generation_interval", "first_token_interval", "engines")
                 if not getattr(self, name)}  # fmt: skip
        values = self.model_dump(mode="json", by_alias=True, exclude={"num_parts", "num_missing", *unset})
        return f"{self.name}@{digest(values)[:8]}"

    def value(self, name: ValueName, of: str = "", *, num_ranks: int = 1) -> Value | None:
        """As measured with so many ranks at once; None where it was not."""
        key = (name, of, num_ranks)
        return next((v for v in self.values if (v.name, v.of, v.num_ranks) == key), None)

    def kinds_of(self, name: ValueName) -> list[str]:
        return list(dict.fromkeys(v.of for v in self.values if v.name == name))

    def residual(self, name: ResidualName) -> float:
        return next((r.factor for r in self.residuals if r.name == name), 1.0)

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


SCHEMA = schema(KIND)
COMPARED_VERSIONS = ("torch", "scalewright")
"""Of two calibrations or of one and its user: these must agree, since kernels and formulas follow them."""


def folder() -> Path:
    return home() / "calibration"


def check_name(name: str) -> str:
    if _NAME.match(name) is None or name in ("here", "auto"):
        raise ConfigError(
            f"a calibration cannot be called {name!r}: use small letters, digits, dots and dashes, and not 'here'"
        )
    return name


def path_of(name: str) -> Path:
    return folder() / f"{check_name(name)}.json"


def names() -> list[str]:
    """Of the calibrations there are."""
    return sorted(path.stem for path in folder().glob("*.json") if _NAME.match(path.stem))


def load(name: str) -> Calibration:
    path = path_of(name)
    if not path.exists():
        known = ", ".join(names()) or "there is none yet"
        raise ConfigError(
            f"no calibration is called {name!r} ({known}): make it with scalewright calibrate --as {name}"
        )
    return read(path)


def read(path: Path) -> Calibration:
    """The file, strictly: an unknown key, another kind or a newer version is refused."""
    again = f"make it again with scalewright calibrate --as {path.stem} --force"
    try:
        raw = parse_json(read_text(path), where=str(path))
    except DocumentError as error:
        raise DocumentError(f"{error}; {again}") from error
    if not isinstance(raw, dict):
        raise DocumentError(f"{path}: holds a {type(raw).__name__}, not a calibration: {again}")
    check_schema(raw.get("schema"), KIND, where=str(path))
    calibration = validate(raw, Calibration, where=str(path))
    if calibration.name != path.stem:
        raise DocumentError(
            f"{path}: is the calibration {calibration.name!r}; it must be the file's name, {path.stem!r}"
        )
    return calibration


def check_writable() -> None:
    """Before anything is measured: that what will have been can be written down."""
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        raise EnvironmentFailedError(
            f"{place}: a calibration cannot be written there: {error.strerror}; set {EnvName.HOME} to another place"
        ) from error


def write(calibration: Calibration) -> Path:
    path = path_of(calibration.name)
    write_document(path, calibration.document())
    return path


def version_difference(made_with: dict[str, str], here: dict[str, str]) -> str:
    """The first version that is another one now, in words; what is unknown on a side is not compared."""
    for name in COMPARED_VERSIONS:
        old, new = made_with.get(name), here.get(name)
        if old and new and old != new:
            return f"{name} {old}, not {new}"
    return ""


def why_not_here(calibration: Calibration, fingerprint: Fingerprint, versions: dict[str, str]) -> str:
    """Why a calibration does not stand for this machine and software, in words; empty where it does."""
    differs = calibration.fingerprint.difference(fingerprint) or version_difference(calibration.versions, versions)
    return f"it was made with {differs}" if differs else ""


def matching(fingerprint: Fingerprint, versions: dict[str, str]) -> list[Calibration]:
    """Calibrations of this machine, the newest first; files that cannot be read are of no machine."""
    calibrations: list[Calibration] = []
    for name in names():
        try:
            calibration = load(name)
        except ConfigError:
            continue
        if not why_not_here(calibration, fingerprint, versions):
            calibrations.append(calibration)
    return sorted(calibrations, key=lambda c: c.created, reverse=True)
