"""Published rates of vision training beside our predictions: what each row says, what had to be assumed, the scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.stack import Stack
from scalewright.catalog.vision_runs import (
    MIXED,
    WIDE,
    Code,
    PublishedVisionRun,
    VisionFrameworks,
    vision_frameworks,
    vision_runs,
)
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.errors import NotExpressedError, ScalewrightError
from scalewright.planner.answer import answer
from scalewright.planner.question import Question, VisionModelStep, ask
from scalewright.planner.validation.published_rows import lacks_network, reason_counts, row_machine
from scalewright.records.documents import read_document
from scalewright.workload.layout import Layout

LEAST_BATCH = 16
"""An unstated batch is halved down to this until it fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionRow:
    """One published rate and ours, or the reason there is none."""

    run: PublishedVisionRun
    framework: str
    what: str = ""
    """The row in words: devices, precision, order of activations, code, batch."""
    predicted_images_per_s: float | None = None
    interval_images_per_s: tuple[float, float] | None = None
    assumed: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def source(self) -> str:
        """What the rows of one publication share."""
        return self.run.document

    @property
    def images_per_s(self) -> float:
        return self.run.measured.images_per_s

    @property
    def time_ratio(self) -> float:
        """Measured over predicted time: what an interval of the predicted time has to cover."""
        assert self.predicted_images_per_s is not None
        return self.predicted_images_per_s / self.images_per_s

    @property
    def error_frac(self) -> float:
        """Of the predicted step time."""
        return 1.0 / self.time_ratio - 1.0

    @property
    def is_inside(self) -> bool:
        assert self.interval_images_per_s is not None
        low, high = self.interval_images_per_s
        return low <= self.images_per_s <= high

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"id": self.run.id, "publication": self.run.document, "framework": self.framework}
        if self.reason is not None:
            return {**body, "reason": self.reason}
        return {
            **body, "images_per_s": self.images_per_s, "predicted_images_per_s": self.predicted_images_per_s,
            "interval_images_per_s": self.interval_images_per_s, "error_frac": self.error_frac,
            "assumed": list(self.assumed),
        }  # fmt: skip


def vision_rows(catalog: Catalog, runs: Iterable[PublishedVisionRun] | None = None) -> list[VisionRow]:
    """Every row with its prediction; default: the rows shipped."""
    frameworks = vision_frameworks()
    return [_row(catalog, frameworks, run) for run in (vision_runs() if runs is None else runs)]


def _row(catalog: Catalog, frameworks: VisionFrameworks, run: PublishedVisionRun) -> VisionRow:
    framework = frameworks.of(run)
    try:
        question, assumed = vision_question(catalog, frameworks, run)
    except ScalewrightError as error:
        return VisionRow(run=run, framework=framework, reason=str(error))
    prediction = answer(question)
    low, high = (prediction.num_units / end for end in reversed(prediction.interval_s))
    order = "channels last" if question.channels_last else "channels first"
    return VisionRow(
        run=run, framework=framework,
        what=f"{question.spec.id} on {run.hardware.gpus} x {question.machine.accelerator.id}, {question.recipe.name}, "
        f"{order}, {framework}, {question.layout.mbs} each",
        predicted_images_per_s=prediction.rate_per_s, interval_images_per_s=(low, high), assumed=assumed,
    )  # fmt: skip


def vision_question(
    catalog: Catalog, frameworks: VisionFrameworks, run: PublishedVisionRun
) -> tuple[Question, tuple[str, ...]]:
    """A row in our terms. What it leaves open is its framework's habit, and is listed."""
    name = frameworks.of(run)
    framework, assumed = frameworks.frameworks[name], list(run.assumed)
    if not run.framework:
        assumed.append(f"framework {name}")
    precision = framework.mixed if run.dtype in MIXED else run.dtype
    is_wide = precision in WIDE
    code: Code = run.layout.code or (framework.code_32bit if is_wide else framework.code_16bit)
    last = run.layout.channels_last
    if last is None:
        last = framework.channels_last_32bit if is_wide else framework.channels_last_16bit
        assumed.append(f"channels {'last' if last else 'first'}, {code}: the habit of {name}")
    machine, known = _machine(catalog, run)
    assumed += known
    stage = VisionModelStep(channels_last=last, library_norms=framework.library_norms and not is_wide)

    def question_of(batch: int) -> Question:
        dp = run.hardware.gpus
        question = ask(
            catalog, model=run.model.name, system=machine, precision=precision, stack=_stack(catalog, code).id,
            layout=Layout(dp=dp, mbs=batch, gbs=batch * dp),
        )  # fmt: skip
        return replace(question, stage=stage)

    if run.model.img != 224:
        raise NotExpressedError(f"images of {run.model.img} pixels: the catalogued models take 224")
    if run.layout.micro_batch is not None:
        return question_of(run.layout.micro_batch), tuple(assumed)
    batch = frameworks.usual_batch
    while batch > LEAST_BATCH and not answer(question_of(batch)).fits:
        batch //= 2
    return question_of(batch), (*assumed, f"{batch} images on each device: the usual batch, halved until it fits")


def _stack(catalog: Catalog, code: Code) -> Stack:
    return catalog.stack_of_own_run("graphs") if code == "graphs" else catalog.stack(code)


def _machine(catalog: Catalog, run: PublishedVisionRun) -> tuple[Machine, list[str]]:
    """The row's nodes; an unstated network is usual."""
    machine, assumed = row_machine(catalog, run.hardware)
    if not lacks_network(run.hardware):
        return machine, assumed
    name, reachable = _usual_network(catalog, machine.accelerator.architecture)
    return replace(machine, network_bytes_per_s_per_gpu=reachable), [*assumed, f"network of {name}"]


def _usual_network(catalog: Catalog, architecture: str) -> tuple[str, float]:
    """What the catalogue's generic nodes of a device generation reach between nodes."""
    for name in (i for i in catalog.ids("systems") if i.startswith("generic-")):
        machine = machine_from_system(catalog, name)
        if machine.accelerator.architecture == architecture and machine.network_bytes_per_s_per_gpu is not None:
            return name, machine.network_bytes_per_s_per_gpu
    raise NotExpressedError(f"the row gives no network between nodes, and none is usual for {architecture}: state it")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTable:
    """Errors of vision rows, by publication and on the whole."""

    rows: tuple[VisionRow, ...]

    @property
    def predicted(self) -> list[VisionRow]:
        return [row for row in self.rows if row.reason is None]

    @property
    def groups(self) -> dict[str, list[VisionRow]]:
        by_publication: dict[str, list[VisionRow]] = {}
        for row in self.predicted:
            by_publication.setdefault(row.run.document, []).append(row)
        return by_publication

    @property
    def reasons(self) -> dict[str, int]:
        return reason_counts(self.rows)

    def as_dict(self) -> dict[str, Any]:
        return {
            "overall": vision_scores(self.predicted),
            "groups": [{"publication": name, **vision_scores(rows)} for name, rows in self.groups.items()],
            "reasons": self.reasons,
            "rows": [row.as_dict() for row in self.rows],
        }


def vision_scores(rows: Sequence[VisionRow]) -> dict[str, float | int | None]:
    """Mean and median error of the step time, bias, share inside the interval, its mean width over the prediction."""
    if not rows:
        return {"num_rows": 0, "mape_frac": None, "median_ape_frac": None, "bias_frac": None, "coverage_frac": None,
                "mean_width_frac": None}  # fmt: skip
    errors = sorted(abs(row.error_frac) for row in rows)
    widths = []
    for row in rows:
        assert row.interval_images_per_s is not None
        assert row.predicted_images_per_s is not None
        low, high = row.interval_images_per_s
        widths.append(row.predicted_images_per_s / low - row.predicted_images_per_s / high)
    n = len(rows)
    return {
        "num_rows": n,
        "mape_frac": sum(errors) / n,
        "median_ape_frac": (errors[(n - 1) // 2] + errors[n // 2]) / 2.0,
        "bias_frac": sum(row.error_frac for row in rows) / n,
        "coverage_frac": sum(row.is_inside for row in rows) / n,
        "mean_width_frac": sum(widths) / n,
    }


def vision_table(catalog: Catalog, path: Path | None) -> VisionTable:
    """Predict the vision rows of a file, default those shipped."""
    return VisionTable(rows=tuple(vision_rows(catalog, vision_runs(path))))


LEFT_OUT_KIND = "vision-left-out"


def left_out_path() -> Path:
    """Errors of each publication under constants fitted to the others; written by benchmarks/fit_vision.py."""
    return packaged_data() / "published" / "vision_left_out.json"


def read_left_out() -> dict[str, dict[str, float]]:
    """Scores by publication of that file."""
    publications: dict[str, dict[str, float]] = read_document(left_out_path(), LEFT_OUT_KIND)["publications"]
    return publications
