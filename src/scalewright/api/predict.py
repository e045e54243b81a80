"""`sw.predict(...)`: time, memory and energy of one training step, of generation, or of an RL step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from scalewright.api.frames import Framed
from scalewright.api.keywords import checked, count
from scalewright.catalog.library import open_catalog
from scalewright.planner.answer import Answer, Change, answer
from scalewright.planner.question import ask
from scalewright.report.notebook.answer import answer_html, change_html
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec


class ShownAnswer(Answer, Framed):
    """A prediction that shows itself in a notebook; every figure of `Answer` is an attribute of it."""

    __slots__ = ()

    def what_if(self, text: str) -> ShownChange:
        """The same question with some knobs set otherwise, such as `tp=8,dp=4`, `precision=fp8` or `stack=eager`."""
        change = super().what_if(text)
        return ShownChange(name=change.name, before=change.before, after=change.after)

    def columns(self) -> dict[str, list[Any]]:
        """The terms of time and memory: what, in which unit, how much, and by which formula."""
        leaves = [
            (what, term.name, term.unit, float(term.total), term.formula)
            for what, breakdown in (("time", self.time), ("memory", self.memory), ("energy", self.energy))
            if breakdown is not None
            for _, term in breakdown.walk()
            if not term.parts
        ]
        names = ("breakdown", "term", "unit", "value", "formula")
        return {name: [leaf[i] for leaf in leaves] for i, name in enumerate(names)}

    def plot(self) -> SvgPlot:
        """Roofline, time and memory as one figure, as `scalewright predict --plot` draws it."""
        from scalewright.report.figure_file import check_library
        from scalewright.report.planner.roofline import prediction_drawing

        check_library()
        return SvgPlot(lambda kind: prediction_drawing(self, kind))

    def __repr__(self) -> str:
        low, high = self.interval_s
        verdict = self.verdict if self.fits else f"does not fit: {self.why_not}"
        return (
            f"{self.question.spec.id} on {self.question.machine.name}, {self.question.layout.brief}: "
            f"{self.time_s:.4g} s (90 % interval {low:.4g} s to {high:.4g} s), {verdict}"
        )

    def _repr_html_(self) -> str:
        return answer_html(self)


class ShownChange(Change):
    """A what-if that shows itself in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.after.fits or self.unequal:
            return f"{self.name}: {self.summary}"
        return f"{self.name}: {self.before.time_s:.4g} s -> {self.after.time_s:.4g} s ({self.time_ratio_frac - 1:+.1%})"

    def _repr_html_(self) -> str:
        return change_html(self)


class SvgPlot(str):
    """A drawing that a notebook shows; the text is SVG. It can be saved as .svg, .png or .pdf."""

    __slots__ = ("_drawing",)
    _drawing: Callable[[str], bytes]

    def __new__(cls, drawing: Callable[[str], bytes]) -> Self:
        plot = super().__new__(cls, drawing("svg").decode())
        plot._drawing = drawing
        return plot

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | Path) -> None:
        from scalewright.records.documents import write_bytes
        from scalewright.report.figure_file import check_plot

        check_plot(Path(path))
        write_bytes(Path(path), self._drawing(Path(path).suffix.lower().removeprefix(".")))


def shown_answer(plain: Answer) -> ShownAnswer:
    return ShownAnswer(**{field.name: getattr(plain, field.name) for field in fields(plain)})


def written(parts: Mapping[str, object]) -> str:
    """A dictionary in the grammar of layouts and steps."""
    return ",".join(f"{knob}={int(v) if isinstance(v, bool) else v}" for knob, v in parts.items())


@checked()
def predict(
    *,
    model: str | ModelSpec,
    system: str,
    layout: str | Layout | Mapping[str, object],
    precision: str = "auto",
    stack: str = "auto",
    seq: int | str | None = None,
    partition: str | None = None,
    transport: str | None = None,
    network: str | None = None,
    generate: str | None = None,
    rl: str | Mapping[str, object] | None = None,
    mode: str = "full",
    lora_rank: int | str | None = None,
    optimizer: str | None = None,
    storage: str | None = None,
    samples: str = "shards",
    checkpoint: str = "sync",
    catalog: str | Path | None = None,
) -> ShownAnswer:
    """Predict one training step, a batch of generation (`generate="prompt=2048,response=256"`) or an RL step.

    The options are those of `scalewright predict`. `model` is a catalogue name, a Hugging Face config.json or a shape
    such as `layers=32,hidden=4096,heads=32`; `system` a catalogued system, a calibration, or `here`; `layout` a text
    such as `tp=2,dp=8`, or the same as a dictionary; `rl` likewise (`docs/rl_steps.md`). `network="quiet"` predicts
    without other jobs on the fabric, `"shared"` with them.
    """
    if isinstance(layout, Mapping):
        layout = written(layout)
    if isinstance(rl, Mapping):
        rl = written(rl)
    question = ask(
        open_catalog(None if catalog is None else Path(catalog)), model=model, system=system, layout=layout,
        precision=precision, stack=stack, seq=count("seq", seq), partition=partition, transport=transport,
        network=network, generate=generate, rl=rl, mode=mode, lora_rank=count("lora_rank", lora_rank),
        optimizer=optimizer, storage=storage, samples=samples, checkpoint=checkpoint,
    )  # fmt: skip
    return shown_answer(answer(question))
