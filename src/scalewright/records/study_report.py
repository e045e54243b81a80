"""Everything a report of a study shows, as plain data: the study layer makes it, the report layer draws it.

The same document is what `--json` prints and what the page carries, so every form of a report has the same numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scalewright.records.documents import document
from scalewright.records.observations import ObservationTable
from scalewright.records.pipeline_report import PipelineShown
from scalewright.records.types import warnings_among

KIND = "study-report"
PLACE = "place"
"""Metric of a search: 1 is the best point."""
RATIO = "ratio"
"""Metric of a comparison: 1 at the points that the others are compared with."""
Origin = Literal["predicted", "measured", "published"]
StatementVerdict = Literal["agrees", "contradicts", "cannot say"]
DoubtSort = Literal["busy", "unsteady", "throttled", "fewer", "outside"]
"""Others used the machine; step times drift; clocks were held back; fewer steps or repeats than asked for; the figure
lies outside the predicted interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A value with what is known of its spread, in SI units."""

    value: float
    low: float | None = None
    high: float | None = None
    count: int = 1
    """Repeats behind a measured value."""

    def nearest(self, value: float) -> float:
        """The number, or the point of its range that is nearest to a value: inside a range that is the value itself."""
        low = self.low if self.low is not None else (self.value if self.high is None else value)
        high = self.high if self.high is not None else (self.value if self.low is None else value)
        return min(max(value, low), high)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricShown:
    """A column: what it is called, its unit, how it is printed and which way is better."""

    name: str
    title: str
    unit: str
    quantity: str
    """Name of the dimension in `units`, by which it is printed."""
    better: Literal["lower", "higher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """What somebody printed about a point."""

    metric: str
    number: Number
    source: str
    url: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why a measured figure may not say what it seems to."""

    sort: DoubtSort
    text: str
    """One clause with the numbers behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elbow:
    """Where the tail of a distribution of times begins."""

    time_s: float
    share_frac: float
    """Of the values, up to and with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRow:
    """One point: labels, and what is known of it from each origin."""

    id: str
    labels: dict[str, str]
    scale: float | None = None
    """Where it stands on its scaling curve."""
    predicted: dict[str, Number] = field(default_factory=dict)
    measured: dict[str, Number] = field(default_factory=dict)
    published: tuple[PublishedFigure, ...] = ()
    words: dict[str, str] = field(default_factory=dict)
    """What is no number: the best layout, the recipe."""
    limit: str = ""
    """What takes most of its predicted time."""
    why: str = ""
    parts: dict[str, float] = field(default_factory=dict)
    """Shares of the predicted step."""
    measured_parts: dict[str, float] = field(default_factory=dict)
    problem: str = ""
    """Why nothing is predicted."""
    measured_problem: str = ""
    """Why nothing was measured, where it was tried."""
    remark: str = ""
    """Why nothing is published, where a reader might look for it."""
    notes: tuple[str, ...] = ()
    series: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Measured distributions to draw, such as times of batches in seconds."""
    elbows: dict[str, Elbow] = field(default_factory=dict)
    """Of those distributions, by the same names."""
    doubts: tuple[Doubt, ...] = ()
    """About what was measured; none where all was well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveShown:
    """Points of one group by scale, and where they stop paying."""

    group: dict[str, str]
    points: tuple[int, ...]
    """Indices into the rows."""
    origin: Origin
    serial_frac: float | None = None
    serial_interval_frac: tuple[float, float] | None = None
    recommended: float | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingShown:
    """A sentence that the study allows, with its evidence."""

    text: str
    evidence: tuple[str, ...] = ()
    """Ids of the points behind it."""
    source: str = ""
    is_answer: bool = False
    """It answers the study's question; such findings come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementShown:
    """What a source says in words, beside what is predicted."""

    text: str
    quote: str
    source: str
    predicted: str
    """The pair of points that decides."""
    difference: str
    verdict: StatementVerdict
    agrees: str
    contradicts: str
    """The differences that agree with the words, and that contradict them."""
    because: str
    """Why the words are read so."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GapTerm:
    """One term of a step in two points."""

    name: str
    fastest_s: float
    own_s: float
    gap_frac: float
    """Its share of the gap; negative where it goes the other way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapShown:
    """Why a point is slower than the fastest one of its group."""

    point: str
    fastest: str
    """Ids of both points."""
    label: str
    fastest_label: str
    """Their values on the compared axis."""
    where: str
    """Values that both share, in words."""
    step_time_s: float
    fastest_step_time_s: float
    origin: Origin
    terms_origin: str
    """measured, predicted, or empty where neither tells the terms of both."""
    terms: tuple[GapTerm, ...]
    """The largest part of the gap first."""
    explained_frac: float | None
    """Share of the gap that named terms hold."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """A whole study, ready to be drawn."""

    study: str
    title: str
    question: str
    created: str
    version: str
    machine: str = ""
    """Where it was measured."""
    axes: tuple[str, ...] = ()
    metrics: tuple[MetricShown, ...] = ()
    points: tuple[PointRow, ...] = ()
    curves: tuple[CurveShown, ...] = ()
    scale_name: str = ""
    compared_axis: str = ""
    """Axis whose values the study compares with one of them; empty: none."""
    findings: tuple[FindingShown, ...] = ()
    """Answers to the question first."""
    statements: tuple[StatementShown, ...] = ()
    """What the sources say in words, with the verdict on each."""
    gaps: tuple[GapShown, ...] = ()
    """Points against the fastest, term by term, if the study asks for it."""
    notes: tuple[str, ...] = ()
    measure_note: str = ""
    units: dict[str, str] = field(default_factory=dict)
    """Of every metric that a point has a number for, those without a column of their own too."""
    observations: ObservationTable | None = None
    """What a publication states of the stages, beside our own evidence; None: the study names none."""
    parts: tuple[StudyReport, ...] = ()
    """Other sets of points of the same study: what is predicted for machines elsewhere."""
    pipeline: PipelineShown | None = None
    """Stages of a pipeline that was measured."""

    @property
    def warnings(self) -> list[str]:
        """What says that its predictions may be far off, each once."""
        return warnings_among(note for row in self.points for note in row.notes)

    def document(self) -> dict[str, Any]:
        body = asdict(self)
        if self.pipeline is not None:
            for row, stage in zip(body["pipeline"]["stages"], self.pipeline.stages, strict=True):
                row["hybrid"] = None if stage.hybrid is None else stage.hybrid.document()
        return document(KIND, body)
