"""`sw.predict_many(...)`: a grid of predictions in one call, as columns; `sw.layouts(...)`: the layouts of a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright import units
from scalewright.api.frames import Framed
from scalewright.api.keywords import checked, count
from scalewright.api.predict import ShownAnswer, shown_answer, written
from scalewright.catalog.library import Catalog, open_catalog
from scalewright.errors import ConfigError, LayoutError, NotExpressedError
from scalewright.here.place import Place
from scalewright.planner.answer import answer
from scalewright.planner.many import answer_columns
from scalewright.planner.question import Question, ask, check, resolve_place
from scalewright.report.notebook import html
from scalewright.workload.layout import KEYS, Layout, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.named import resolve_model


def layouts(*, gpus: int | None = None, **knobs: object) -> list[str]:
    """Every combination of the knobs' values, as layouts in the usual grammar.

    Each knob (tp, pp, vpp, cp, ep, dp, mbs, gbs, zero, sp, recompute) is a value or a list of values. With `gpus` the
    data-parallel degree follows from the others; combinations that do not divide are left out.

        sw.layouts(tp=[1, 2, 4, 8], pp=[1, 2, 4], mbs=[1, 2], gbs=512, gpus=64)
    """
    unknown = [name for name in knobs if name not in KEYS]
    if unknown:
        raise ConfigError(f"a layout has no knob {unknown[0]!r}: choose among {', '.join(KEYS)}")
    if gpus is not None and "dp" in knobs:
        raise ConfigError("gpus and dp both say how many devices there are: give one of them")
    choices = [[(name, value) for value in _listed(values)] for name, values in knobs.items()]
    texts = []
    for combination in itertools.product(*choices):
        values = dict(combination)
        if gpus is not None:
            split = int(values.get("tp", 1)) * int(values.get("pp", 1)) * int(values.get("cp", 1))
            if gpus % split:
                continue
            values["dp"] = gpus // split
        batch, share = values.get("gbs"), int(values.get("dp", 1)) * int(values.get("mbs", 1))
        if batch is not None and int(batch) % share:
            continue
        texts.append(",".join(f"{name}={int(v) if isinstance(v, bool) else v}" for name, v in values.items()))
    return texts


def _listed(value: Any) -> list[Any]:
    """A list or range of choices as it is; one choice as a list of one."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else [value]


@dataclass(frozen=True, slots=True)
class Answers(Framed, Sequence[ShownAnswer]):
    """Predictions of a grid: columns of figures, and the whole answer of any row."""

    labels: dict[str, list[str]]
    """What was asked in each row: the arguments that were lists."""
    questions: tuple[Question | None, ...]
    problems: tuple[str, ...]
    """Why a row has no figures: its layout cannot be used; empty where it has some."""
    figures: dict[str, Any]
    """Columns of `planner.many.FIGURES`."""

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: Any) -> Any:
        """The whole answer of a row."""
        question = self.questions[index]
        if question is None:
            raise LayoutError(self.problems[index])
        return shown_answer(answer(question))

    def columns(self) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {**self.labels}
        columns["num_gpus"] = [None if q is None else q.num_gpus for q in self.questions]
        for name, values in self.figures.items():
            columns[name] = [bool(v) for v in values] if name == "fits" else values.tolist()
        return columns | {"problem": list(self.problems)}

    def best(self) -> ShownAnswer:
        """The fastest row that fits."""
        times = [
            (time, row) for row, time in enumerate(self.figures["step_time_s"]) if self.figures["fits"][row] == 1.0
        ]
        if not times:
            raise LayoutError(f"none of the {len(self)} predictions fits: use more devices or split further")
        best: ShownAnswer = self[min(times)[1]]
        return best

    def __repr__(self) -> str:
        return f"{len(self)} predictions, {int((self.figures['fits'] == 1.0).sum())} fit"

    def _repr_html_(self) -> str:
        headers = [*self.labels, "devices", "step time", "MFU", "memory", "fits"]
        rows = [self._row(row) for row in sorted(range(len(self)), key=self._order)]
        return html.table(headers, rows, caption=repr(self), right=headers[len(self.labels) : -1])

    def _order(self, row: int) -> tuple[bool, float]:
        """Rows that fit first, the fastest at the top."""
        time = float(self.figures["step_time_s"][row])
        return (self.figures["fits"][row] != 1.0, time if math.isfinite(time) else math.inf)

    def _row(self, row: int) -> list[str]:
        labels, question = [str(values[row]) for values in self.labels.values()], self.questions[row]
        if question is None:
            return [*labels, "", "", "", "", self.problems[row]]
        time, mfu, memory = (float(self.figures[name][row]) for name in ("step_time_s", "mfu_frac", "memory_bytes"))
        fits = "yes" if self.figures["fits"][row] else "no"
        share = units.format(mfu, units.FRACTION) if math.isfinite(mfu) else ""
        figures = [units.format(time, units.SECONDS), share, units.format(memory, units.BYTES), fits]
        return [*labels, str(question.num_gpus), *figures]


@checked(beside="predict")
def predict_many(
    *,
    model: str | Sequence[str],
    system: str | Sequence[str],
    layout: str | Layout | Mapping[str, object] | Sequence[str | Layout | Mapping[str, object]],
    precision: str | Sequence[str] = "auto",
    stack: str | Sequence[str] = "auto",
    seq: int | str | Sequence[int | str] | None = None,
    catalog: str | Path | None = None,
    **options: Any,
) -> Answers:
    """Predict every combination of the arguments that are lists; options as in `predict`, the same for all.

    Layouts that a model or machine cannot use become rows with a `problem`; an unknown name is an error. Steps of
    transformers are computed together on columns, so that a thousand layouts take a fraction of a second.
    """
    library = open_catalog(None if catalog is None else Path(catalog))
    axes: dict[str, list[Any]] = {
        "model": _listed(model), "system": _listed(system), "precision": _listed(precision), "stack": _listed(stack),
        "seq": [count("seq", one) for one in _listed(seq)],
        "layout": [written(one) if isinstance(one, Mapping) else one for one in _listed(layout)],
    }  # fmt: skip
    specs = {(name, length): _spec(library, name, length) for name in axes["model"] for length in axes["seq"]}
    split = [parse_layout(one) if isinstance(one, str) else one for one in axes["layout"]]
    places = _Places(
        library, options.pop("partition", None), options.pop("transport", None), options.pop("network", None)
    )
    labels: dict[str, list[str]] = {name: [] for name, values in axes.items() if len(values) > 1}
    questions: list[Question | None] = []
    problems: list[str] = []
    for name, place, recipe, software, length, one in itertools.product(*axes.values()):
        row = {"model": name, "system": place, "precision": recipe, "stack": software, "seq": length, "layout": one}
        for label, texts in labels.items():
            texts.append(str(row[label]))
    for name, place, recipe, software, length, one in itertools.product(*list(axes.values())[:-1], split):
        try:
            question = ask(
                library, model=specs[name, length], system=places.at(place, int(one.num_gpus)), layout=one,
                precision=recipe, stack=software, **options,
            )  # fmt: skip
            check(question)
        except (LayoutError, NotExpressedError) as error:
            questions.append(None)
            problems.append(str(error))
        else:
            questions.append(question)
            problems.append("")
    return Answers(labels, tuple(questions), tuple(problems), answer_columns(questions))


def _spec(library: Catalog, name: str, length: int | None) -> ModelSpec:
    spec = resolve_model(library, name)
    return spec if length is None else spec.with_seq(length)


@dataclass(slots=True)
class _Places:
    """Each system resolved once. A calibrated machine depends on how many ranks share it, so it is once per count."""

    library: Catalog
    partition: str | None
    transport: str | None
    network: str | None
    resolved: dict[tuple[str, int], Place] = field(default_factory=dict)

    def at(self, system: str, num_gpus: int) -> Place:
        first = self._resolve(system, 1)
        return first if first.calibration is None else self._resolve(system, num_gpus)

    def _resolve(self, system: str, num_ranks: int) -> Place:
        if (system, num_ranks) not in self.resolved:
            self.resolved[system, num_ranks] = resolve_place(
                self.library,
                system,
                partition=self.partition,
                transport=self.transport,
                network=self.network,
                num_ranks=num_ranks,
            )
        return self.resolved[system, num_ranks]
