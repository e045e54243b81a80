"""A study file: the question, the matrix of points, where they run, and the figures that others published."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from scalewright import units
from scalewright.catalog.facts import Documented, Id, Source, link_sources
from scalewright.errors import DocumentError, QuantityError, UnknownNameError, nearest
from scalewright.launch.graph.file import Resources
from scalewright.records.documents import read_text
from scalewright.records.loader import load_toml, parse_toml
from scalewright.study.pipeline.tables import Pipeline

Value = str | int | float | bool
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
KIND = "study"
PointKind = Literal[
    "language", "engine", "vision", "emulated", "plan", "saving", "stage", "rl", "reading", "reason",
    "gemm", "memory", "attention", "convolution", "dispatch", "collectives", "sync", "storage", "checkpoint",
]  # fmt: skip
FACTS = ("gpus_per_node", "system_nodes", "gpu_memory_gb", "gpu_memory_gib")
"""Values that follow from a point's system. Memory: in GB as the vendor prints it, in GiB as a process can use it."""


class ConditionalValues(Documented):
    """Values for the points that match a condition."""

    where: dict[Name, Value | tuple[Value, ...]] = Field(default_factory=dict)
    """Values that a point must have; a list allows any of its values. Empty: every point matches."""
    values: dict[Name, Value]


class PointMatrix(Documented):
    """How points are made: the product of the axes, changed by choices, derived values and exceptions."""

    matrix: dict[Name, tuple[Value, ...]] = Field(default_factory=dict)
    """Axes. Every combination of their values is a point, and labels it."""
    choose: tuple[ConditionalValues, ...] = ()
    """Further values for some points. Later entries override earlier ones. A condition may name derived values."""
    derive: dict[Name, str] = Field(default_factory=dict)
    """Further values, as expressions over axes, choices, other derived values and facts of the system."""
    exclude: tuple[dict[Name, Value | tuple[Value, ...]], ...] = ()
    """Points that match one of these conditions are left out."""
    include: tuple[dict[Name, Value | tuple[Value, ...]], ...] = ()
    """Points beyond the product, with a value for every axis. A list gives one point for each of its values."""
    point: dict[Name, Value] = Field(default_factory=dict)
    """Options of the kind. `{name}` is replaced by a value of the point; an empty option is left out."""
    extra: dict[Name, dict[Name, Value]] = Field(default_factory=dict)
    """Further options for the points of one kind, in a study that mixes kinds."""


class Measure(PointMatrix):
    """The same question at a scale that this machine can run. Without its own matrix it has the same points."""

    where: Literal["local", "site"] = "local"
    """local: this machine or allocation; site: one Slurm job for each point."""
    site: str = "here"
    """Profile of the cluster; here: the cluster of this login node."""
    job: Resources = Resources()
    """Resources of a point's job, as in a graph of jobs; `gpus_per_node` is the largest number of ranks on a node."""
    concurrent: int = Field(default=1, ge=1, le=1000)
    """Jobs that may run at once. With 1, no measurement disturbs another."""
    order: Literal["listed", "predicted"] = "listed"
    """predicted: a search, which starts with the point that is predicted to be the fastest."""
    calibrate: str = ""
    """Time to calibrate this machine first, if it has no calibration yet; empty: predict from a short probe."""
    repeats: int = Field(default=1, ge=1, le=1000)
    time_limit: str = "1 h"
    """Longest time of one `study run` here. Points that would not fit in the remaining time are not started."""
    gpu_hours_limit: float | None = Field(default=None, gt=0)
    """Limit of the whole study. A job counts with its time limit until it has ended."""
    note: str = ""
    """What a reader must know about these measurements: emulated links, another scale."""
    scale: str = ""
    """What the scaling counts when measured, if it differs from `scaling.name`: ranks of one machine, not nodes."""

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
            raise ValueError(f"job.{what} follows from the layout of each point: leave it out")
        if not limit_s > 0:
            raise ValueError(f"time_limit is {self.time_limit}: it must be above zero")
        return self


class Scaling(Documented):
    """Which points form a curve, and how its efficiency is defined."""

    over: Name
    """Value that grows: nodes, GPUs, copies of the model."""
    groups: tuple[Name, ...]
    """Points that share these values form one curve."""
    metric: str
    """Metric of the efficiency: each point is compared with the smallest of its curve."""
    also: dict[str, str] = Field(default_factory=dict)
    """Further efficiencies by name, and the metric of each: an epoch's time, the whole training's."""
    name: str = "nodes"
    """What `over` counts, in tables and plots."""


class Relative(Documented):
    """A ratio to another point, which differs in some values only."""

    metric: str
    to: dict[Name, Value]
    """Values of the reference point; all its other axes are the same."""


class Published(Documented):
    """A figure that a publication gives for some of the points."""

    where: dict[Name, Value | tuple[Value, ...]]
    metric: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "1"
    source: Source
    note: str = ""
    either: Name = ""
    """Axis whose value the source does not give: agreement is counted for each of its values by itself."""

    @model_validator(mode="after")
    def _some_value(self) -> Published:
        if self.value is None and self.low is None and self.high is None:
            raise ValueError("a published figure needs a value, or a low or high end")
        return self


class Remark(Documented):
    """Why some points have no published figure, or another remark about them."""

    where: dict[Name, Value | tuple[Value, ...]]
    text: str


class Statement(Documented):
    """What a publication says in words: some points are below others in a metric, or like them.

    Words have no unit, so the file says what it takes to agree with them and what would contradict them.
    """

    text: str
    """One sentence without a full stop."""
    quote: str
    """The words of the source that `text` rests on."""
    metric: str
    relation: Literal["below", "alike"] = "below"
    lower: dict[Name, Value | tuple[Value, ...]]
    """Points that are below the others, or like them."""
    higher: dict[Name, Value | tuple[Value, ...]]
    """What each is compared with: the points that share its values on every axis on which both conditions are equal."""
    higher_metric: str = ""
    """Metric of `higher`, if it is another one."""
    pairs: Literal["every", "some"] = "every"
    """every: all pairs must agree, and one contradicts; some: the pair with the largest difference counts."""
    agrees: float
    """Difference as a share of the larger value. Below: at least this much agrees; alike: at most this much."""
    contradicts: float
    """Below: at most this difference contradicts; alike: at least this much. Between the two nothing can be said."""
    because: str
    """Why the words are read with these two differences."""
    source: Source

    @model_validator(mode="after")
    def _can_fail(self) -> Statement:
        if not (-1.0 < self.agrees < 1.0 and -1.0 < self.contradicts < 1.0):
            raise ValueError("agrees and contradicts are shares of the larger value: give numbers between -1 and 1")
        least, most = (self.agrees, self.contradicts) if self.relation == "alike" else (self.contradicts, self.agrees)
        if least >= most or (self.relation == "alike" and least <= 0):
            order = "below it, and above 0" if self.relation == "alike" else "above it"
            raise ValueError(
                f"agrees = {self.agrees:g} and contradicts = {self.contradicts:g}: with relation = "
                f'"{self.relation}", agrees must be {order}'
            )
        return self


class Quantity(Documented):
    """A figure of an answer, taken from the points that match."""

    metric: str = ""
    word: str = ""
    """Instead of a metric: a column of words, such as the best layout."""
    where: dict[Name, Value | tuple[Value, ...]] = Field(default_factory=dict)
    at: Literal["every point", "largest scale"] = "every point"
    """largest scale: only the last point of every curve."""
    show: Literal["range", "ends", "each"] = "range"
    """range: the least value to the most; ends: the same, each with the values in which its point differs; each: every
    point."""

    @model_validator(mode="after")
    def _one_source(self) -> Quantity:
        if bool(self.metric) == bool(self.word):
            raise ValueError("a figure is a metric or a word: give one of the two")
        return self


class AnswerSentence(Documented):
    """One sentence of the answer to the study's question. It opens the findings."""

    text: str
    """With `{name}` for a figure."""
    figures: dict[Name, Quantity]
    """An answer without a point for one of its figures is left out."""

    @model_validator(mode="after")
    def _every_figure_is_named(self) -> AnswerSentence:
        try:
            fields = [field for field in Formatter().parse(self.text) if field[1] is not None]
        except ValueError as error:
            raise ValueError(f"text {self.text!r}: {error}; write a brace twice to print it") from error
        named = {str(name) for _, name, _, _ in fields}
        if any(spec or conversion for _, _, spec, conversion in fields):
            raise ValueError(f"text {self.text!r}: a figure is its name in braces and nothing else")
        if named != set(self.figures):
            raise ValueError(
                f"text names {', '.join(sorted(named)) or 'no figure'}, and figures has "
                f"{', '.join(sorted(self.figures)) or 'none'}: both must name the same"
            )
        return self


class StudyFile(PointMatrix):
    schema_: str = Field(alias="schema")
    id: Id
    title: str
    question: str
    kind: PointKind
    """Kind of the points: a benchmark, or a question to the planner."""
    sources: dict[str, Source] = Field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    """Metrics of tables and plots, the most important first; empty: the kind's own."""
    max_points: int = Field(default=5000, ge=1, le=100_000)
    scaling: Scaling | None = None
    relative: Relative | None = None
    """Adds the metric `ratio` to every point: its value over that of the reference point."""
    gaps: Name | Literal[""] = ""
    """Axis whose points are explained against the fastest one, term by term; empty: none."""
    measure: Measure | None = None
    pipeline: Pipeline | None = None
    """Stages that follow each other; these are the points to measure."""
    published: tuple[Published, ...] = ()
    remarks: tuple[Remark, ...] = ()
    statements: tuple[Statement, ...] = ()
    """Each is held against the predictions. The notes of a report say with which the predictions do not agree."""
    answers: tuple[AnswerSentence, ...] = ()
    """What the points say to the question; without one, the findings open with what compares the points."""
    observations: str = ""
    """Observations of a publication, by their name in the catalogue: the report holds them against our own evidence."""
    notes: tuple[str, ...] = ()
    """Assumptions behind the figures."""

    @model_validator(mode="after")
    def _check(self) -> StudyFile:
        axes = [*self.matrix, *self.include, *(self.measure.matrix if self.measure else ())]
        if self.scaling is not None:
            known = _names(self) if axes_of(self) else _names(self.measure or self)
            lacking = [name for name in (self.scaling.over, *self.scaling.groups) if name not in known]
            if lacking:
                raise ValueError(f"scaling names {lacking[0]!r}, which no point has: {near_names(lacking[0], known)}")
        if self.gaps and self.gaps not in (known := {*axes_of(self), *axes_of(self.measure or self)}):
            raise ValueError(f"gaps names {self.gaps!r}, which is no axis: {near_names(self.gaps, known)}")
        if self.pipeline is not None and self.measure is not None:
            if axes_of(self.measure):
                raise ValueError("a study measures its pipeline or the points of [measure], not both: drop one")
            if self.measure.order != "listed":
                raise ValueError('a pipeline runs in the order of its stages: leave out order = "predicted"')
        if not axes and self.pipeline is None:
            raise ValueError("the matrix is empty: give at least one axis, such as nodes = [1, 2, 4]")
        return self


def axes_of(matrix: PointMatrix) -> list[str]:
    """Names of the axes, which label the points."""
    return list(matrix.matrix) or list(matrix.include[0] if matrix.include else ())


def _names(matrix: PointMatrix) -> set[str]:
    chosen = {name for choice in matrix.choose for name in choice.values}
    included = {name for extra in matrix.include for name in extra}
    return {*matrix.matrix, *matrix.derive, *chosen, *included}


def shipped_folder() -> Path:
    return Path(str(resources.files("scalewright.study"))) / "studies"


def shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(shipped_folder().glob("*.toml"))}


def studies_by_name() -> dict[str, Path]:
    """Studies by name: those of the package, and those in ./studies, which take precedence."""
    return shipped() | {path.stem: path for path in sorted(Path("studies").glob("*.toml"))}


def find(name: str) -> Path:
    """A path, or the name of a study."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return path
    studies = studies_by_name()
    if name not in studies:
        raise UnknownNameError("study", name, studies, hint="see: scalewright study list")
    return studies[name]


def load(path: Path) -> StudyFile:
    known_keys = [field.alias or name for name, field in StudyFile.model_fields.items()]
    raw = parse_toml(read_text(path), where=str(path))
    for key, value in raw.items():  # before the nested keys: an unknown key must not hide behind a missing source
        if key not in known_keys:
            raise DocumentError(f"{path}: unknown key {key!r}: {near_names(key, known_keys)}")
        _check_letters(value, key, path)
    study = load_toml(path, StudyFile, kind=KIND, prepare=link_sources)
    for key, name, names in _conditions(study):
        if name not in names:
            raise DocumentError(f"{path}: unknown key '{key}.{name}', which no point has: {near_names(name, names)}")
    return study


def _check_letters(node: Any, key: str, path: Path) -> None:
    """Texts are shown in terminals and pages. No control character may move a cursor, reverse text or hide a letter."""
    if isinstance(node, dict):
        for name, inner in node.items():
            _check_letters(name, f"{key}.{name!a}", path)
            _check_letters(inner, f"{key}.{name}", path)
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            _check_letters(inner, f"{key}.{number}", path)
    elif isinstance(node, str):
        control = next((c for c in node if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t\u00ad"), "")
        if control:
            raise DocumentError(f"{path}: key {key!r} has the control character U+{ord(control):04X}: leave it out")


def near_names(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"


def _conditions(file: StudyFile) -> Iterator[tuple[str, str, set[str]]]:
    """Every name used in a condition: its key in the file, the name, and the names that are allowed there."""
    tables: list[tuple[str, PointMatrix]] = [("", file), *([("measure.", file.measure)] if file.measure else [])]
    every = set(FACTS).union(*(_names(matrix) for _, matrix in tables))
    axes = {axis for _, matrix in tables for axis in axes_of(matrix)}
    for prefix, matrix in tables:
        for number, choice in enumerate(matrix.choose):
            yield from ((f"{prefix}choose.{number}.where", name, every) for name in choice.where)
        for number, condition in enumerate(matrix.exclude):
            yield from ((f"{prefix}exclude.{number}", name, set(axes_of(matrix)) or axes) for name in condition)
        yield from ((f"{prefix}extra", name, set(get_args(PointKind))) for name in matrix.extra)
    for number, figure in enumerate(file.published):
        yield from ((f"published.{number}.where", name, every) for name in figure.where)
    for number, statement in enumerate(file.statements):
        yield from ((f"statements.{number}.lower", name, every) for name in statement.lower)
        yield from ((f"statements.{number}.higher", name, every) for name in statement.higher)
    for number, answer in enumerate(file.answers):
        for figure_name, quantity in answer.figures.items():
            yield from ((f"answers.{number}.figures.{figure_name}.where", name, every) for name in quantity.where)
    for number, remark in enumerate(file.remarks):
        yield from ((f"remarks.{number}.where", name, every) for name in remark.where)
    yield from (("relative.to", name, axes) for name in (file.relative.to if file.relative else ()))


def peek(path: Path) -> dict[str, Any]:
    """Id, title and question, without validation: one broken file must not break the list."""
    try:
        raw = parse_toml(read_text(path), where=str(path))
    except DocumentError:
        return {"id": path.stem, "title": "cannot be read", "question": ""}
    return {"id": path.stem, "title": str(raw.get("title", "")), "question": str(raw.get("question", ""))}
