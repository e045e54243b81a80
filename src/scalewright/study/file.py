"""A study file: the question, the matrix of points, where they run, and what others published about them."""

from __future__ import annotations

import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, model_validator

from scalewright import units
from scalewright.catalog.facts import Id, Source, Strict, link_sources
from scalewright.errors import DocumentError, QuantityError, UnknownNameError, nearest
from scalewright.launch.graph.file import Resources
from scalewright.records.documents import read_text
from scalewright.records.loader import load_toml, parse_toml

Value = str | int | float | bool
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
KIND = "study"
PointKind = Literal[
    "language", "vision", "emulated", "plan", "saving", "stage", "reading",
    "gemm", "memory", "attention", "convolution", "dispatch", "collectives", "storage", "checkpoint",
]  # fmt: skip
FACTS = ("gpus_per_node", "system_nodes", "gpu_memory_gib")
"""Values that follow from a point's system."""


class Documented(Strict):
    """Its schema for editors carries what stands under each key here."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Choice(Documented):
    """Values for the points that match."""

    where: dict[Name, Value | tuple[Value, ...]] = Field(default_factory=dict)
    """Values a point must have; a list: any of them. Empty: every point."""
    values: dict[Name, Value]


class Cells(Documented):
    """How points are made: the product of the axes, changed by choices, derived values and exceptions."""

    matrix: dict[Name, tuple[Value, ...]] = Field(default_factory=dict)
    """Axes; every combination is a point. The axes label the points."""
    choose: tuple[Choice, ...] = ()
    """Further values, the later over the earlier."""
    derive: dict[Name, str] = Field(default_factory=dict)
    """Further values as expressions over those before; in the order written."""
    exclude: tuple[dict[Name, Value | tuple[Value, ...]], ...] = ()
    """Points that match one of these are left out."""
    include: tuple[dict[Name, Value | tuple[Value, ...]], ...] = ()
    """Points beside the product, with a value for every axis; a list: one point for each."""
    point: dict[Name, Value] = Field(default_factory=dict)
    """What the kind of point is told; `{name}` stands for a value, and what is empty is not told."""
    extra: dict[Name, dict[Name, Value]] = Field(default_factory=dict)
    """What points of one kind are told beside, where a study mixes kinds."""


class Measure(Cells):
    """The same question at a scale that the machine at hand can run. Without a matrix of its own, the same points."""

    where: Literal["local", "site"] = "local"
    """local: this machine, or the allocation that we are in; site: one Slurm job for each point."""
    site: str = "here"
    """Profile of the cluster; here: the one that we stand on."""
    job: Resources = Resources()
    """What a point's job asks for, as in a graph of jobs; `gpus_per_node` is the most ranks of a node."""
    concurrent: int = Field(default=1, ge=1, le=1000)
    """Jobs that may run at once; 1: no measurement disturbs another."""
    order: Literal["listed", "predicted"] = "listed"
    """predicted: a search that starts with the point that is predicted to be fastest."""
    calibrate: str = ""
    """Time to calibrate this machine in first, where it has no calibration yet; empty: predict by a short probe."""
    repeats: int = Field(default=1, ge=1, le=1000)
    time_limit: str = "1 h"
    """Of one run of the study here; points that would not fit into what is left are not started."""
    gpu_hours_limit: float | None = Field(default=None, gt=0)
    """Of the whole study; jobs count by their time limit until they have ended."""
    note: str = ""
    """What a reader must know of these measurements: emulated links, another scale."""
    scale: str = ""
    """What the scaling counts here, where it counts something else elsewhere: ranks of one machine, not nodes."""

    @property
    def time_limit_s(self) -> float:
        return units.parse(self.time_limit, units.SECONDS)

    @model_validator(mode="after")
    def _check(self) -> Measure:
        try:
            limit_s = self.time_limit_s
            if self.calibrate:
                units.parse(self.calibrate, units.SECONDS)
        except QuantityError as error:
            raise ValueError(str(error)) from error
        if self.job.nodes is not None or self.job.spares:
            what = "nodes" if self.job.nodes is not None else "spares"
            raise ValueError(
                f"job.{what} is given, but a point's layout says how many nodes its job takes: leave it out"
            )
        if not limit_s > 0:
            raise ValueError(f"time_limit is {self.time_limit}: it must be above zero")
        return self


class Scaling(Documented):
    """Which points form a curve, and what efficiency means on it."""

    over: Name
    """Value that grows: nodes, GPUs, copies of the model."""
    groups: tuple[Name, ...]
    """Points that share these values form one curve."""
    metric: str
    """What efficiency compares: of each point over the smallest of its curve."""
    also: dict[str, str] = Field(default_factory=dict)
    """Further efficiencies by name, and the metric that each is of: an epoch's time, the whole training's."""
    name: str = "nodes"
    """What `over` counts, for people."""


class Relative(Documented):
    """A ratio to another point: the same but for some values."""

    metric: str
    to: dict[Name, Value]
    """Values of the point that is compared with; all other axes are the same."""


class Published(Documented):
    """A figure that somebody printed about some of the points."""

    where: dict[Name, Value | tuple[Value, ...]]
    metric: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "1"
    source: Source
    note: str = ""

    @model_validator(mode="after")
    def _some_value(self) -> Published:
        if self.value is None and self.low is None and self.high is None:
            raise ValueError("a published figure needs a value, or a low or high end")
        return self


class Remark(Documented):
    """Where figures that a reader might look for do not exist, and why."""

    where: dict[Name, Value | tuple[Value, ...]]
    text: str


class StudyFile(Cells):
    schema_: str = Field(alias="schema")
    id: Id
    title: str
    question: str
    kind: PointKind
    """What a point is."""
    sources: dict[str, Source] = Field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    """What its tables and plots show, the first most of all; empty: the kind's own."""
    max_points: int = Field(default=5000, ge=1, le=100_000)
    scaling: Scaling | None = None
    relative: Relative | None = None
    """Gives every point the metric `ratio`: its own value over that of the point compared with."""
    measure: Measure | None = None
    published: tuple[Published, ...] = ()
    remarks: tuple[Remark, ...] = ()
    notes: tuple[str, ...] = ()
    """Assumptions of ours that the figures rest on."""

    @model_validator(mode="after")
    def _check(self) -> StudyFile:
        axes = [*self.matrix, *self.include, *(self.measure.matrix if self.measure else ())]
        if self.scaling is not None:
            known = _names(self) if axes_of(self) else _names(self.measure or self)
            lacking = [name for name in (self.scaling.over, *self.scaling.groups) if name not in known]
            if lacking:
                raise ValueError(f"scaling names {lacking[0]!r}, which no point has: {near_names(lacking[0], known)}")
        if not axes:
            raise ValueError("the matrix is empty: give at least one axis, such as nodes = [1, 2, 4]")
        return self


def axes_of(cells: Cells) -> list[str]:
    """What labels the points."""
    return list(cells.matrix) or list(cells.include[0] if cells.include else ())


def _names(cells: Cells) -> set[str]:
    chosen = {name for choice in cells.choose for name in choice.values}
    included = {name for extra in cells.include for name in extra}
    return {*cells.matrix, *cells.derive, *chosen, *included}


def shipped_folder() -> Path:
    return Path(str(resources.files("scalewright.study"))) / "studies"


def shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(shipped_folder().glob("*.toml"))}


def known() -> dict[str, Path]:
    """By name: those of the package, and those in ./studies, which come first."""
    return shipped() | {path.stem: path for path in sorted(Path("studies").glob("*.toml"))}


def find(name: str) -> Path:
    """A path, or the name of a study."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return path
    found = known()
    if name not in found:
        raise UnknownNameError("study", name, found, hint="see: scalewright study list")
    return found[name]


def load(path: Path) -> StudyFile:
    known_keys = [field.alias or name for name, field in StudyFile.model_fields.items()]
    raw = parse_toml(read_text(path), where=str(path))
    for key, value in raw.items():  # before its parts: without [sources] no source is known
        if key not in known_keys:
            raise DocumentError(f"{path}: unknown key {key!r}: {near_names(key, known_keys)}")
        _check_letters(value, key, path)
    found = load_toml(path, StudyFile, kind=KIND, prepare=link_sources)
    for key, name, names in _conditions(found):
        if name not in names:
            raise DocumentError(f"{path}: unknown key '{key}.{name}', which no point has: {near_names(name, names)}")
    return found


def _check_letters(node: Any, key: str, path: Path) -> None:
    """Texts are shown in terminals and pages: none may move a cursor, turn the writing round or hide a letter."""
    if isinstance(node, dict):
        for name, inner in node.items():
            _check_letters(name, f"{key}.{name!a}", path)
            _check_letters(inner, f"{key}.{name}", path)
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            _check_letters(inner, f"{key}.{number}", path)
    elif isinstance(node, str):
        odd = next((c for c in node if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t\u00ad"), "")
        if odd:
            raise DocumentError(f"{path}: key {key!r} has the control character U+{ord(odd):04X}: leave it out")


def near_names(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"


def _conditions(file: StudyFile) -> Iterator[tuple[str, str, set[str]]]:
    """Every name in a condition: where it stands, the name, and those that a point may have there."""
    tables: list[tuple[str, Cells]] = [("", file), *([("measure.", file.measure)] if file.measure else [])]
    every = set(FACTS).union(*(_names(cells) for _, cells in tables))
    axes = {axis for _, cells in tables for axis in axes_of(cells)}
    for prefix, cells in tables:
        for number, choice in enumerate(cells.choose):
            yield from ((f"{prefix}choose.{number}.where", name, every) for name in choice.where)
        for number, condition in enumerate(cells.exclude):
            yield from ((f"{prefix}exclude.{number}", name, set(axes_of(cells)) or axes) for name in condition)
        yield from ((f"{prefix}extra", name, set(get_args(PointKind))) for name in cells.extra)
    for number, figure in enumerate(file.published):
        yield from ((f"published.{number}.where", name, every) for name in figure.where)
    for number, remark in enumerate(file.remarks):
        yield from ((f"remarks.{number}.where", name, every) for name in remark.where)
    yield from (("relative.to", name, axes) for name in (file.relative.to if file.relative else ()))


def peek(path: Path) -> dict[str, Any]:
    """Id, title and question without validation: a broken neighbour must not break a list."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {"id": path.stem, "title": "cannot be read", "question": ""}
    return {"id": path.stem, "title": str(raw.get("title", "")), "question": str(raw.get("question", ""))}
