"""A prediction as HTML: the figures, why it does not fit, where time and memory go, and notes."""

from __future__ import annotations

from scalewright import units
from scalewright.costs.breakdown import Breakdown
from scalewright.planner.answer import CONFIDENCE_TITLES, Answer, Change
from scalewright.planner.figures import TransformerFigures
from scalewright.report.console import rate_words
from scalewright.report.notebook import html
from scalewright.report.planner.memory import plain_memory_rows

MIN_SHARE_FRAC = 0.005
"""Terms below this share of the whole are left out of the bars."""
MAX_TERMS = 8
"""Of a change, the terms that differ most."""


def answer_html(answer: Answer) -> str:
    question, machine = answer.question, answer.question.machine
    nodes = f"{question.num_nodes} node{'s' if question.num_nodes > 1 else ''}"
    title = f"{question.spec.id} on {question.num_gpus} x {machine.accelerator.id} ({machine.name}, {nodes})"
    setup = f"{question.recipe.name}, stack {question.stack.id}, layout {question.layout.brief}"
    return html.block(
        html.paragraph(title, bold=True),
        html.paragraph(answer.model_words, muted=True),
        html.paragraph(setup, muted=True),
        html.table(["", "predicted", ""], _figures(answer)),
        html.paragraph(f"Does not fit: {answer.why_not}", bold=True) if not answer.fits else "",
        breakdown_html(answer.time, units.SECONDS, caption="where the time goes"),
        breakdown_html(answer.memory, units.BYTES, caption="where the memory goes"),
        *html.notes(answer.warnings),
    )


def _figures(answer: Answer) -> list[tuple[str, str, str]]:
    low, high = (units.format(end, units.SECONDS) for end in answer.interval_s)
    each = rate_words(answer.rate_per_s / answer.question.num_gpus, f"{answer.figures.unit}s/s per device")
    rows = [
        ("time", units.format(answer.time_s, units.SECONDS), f"90 % interval {low} to {high}"),
        ("at least", units.format(answer.bound_s, units.SECONDS), "physical bound"),
        ("throughput", rate_words(answer.rate_per_s, f"{answer.figures.unit}s/s"), each),
    ]
    if isinstance(answer.figures, TransformerFigures):
        rows.append(("MFU", units.format(answer.figures.mfu_frac, units.FRACTION), "of the dense peak"))
    rows += plain_memory_rows(answer)
    if answer.energy is not None:
        rows.append(("energy", units.format(float(answer.energy.total), units.JOULES), _money(answer)))
    rows.append(("confidence", answer.confidence, CONFIDENCE_TITLES[answer.confidence]))
    return rows


def _money(answer: Answer) -> str:
    parts = []
    if answer.money is not None:
        parts.append(units.format(float(answer.money.total), units.USD))
    if answer.carbon is not None:
        parts.append(units.format(float(answer.carbon.total), units.KGCO2E))
    return ", ".join(parts)


def breakdown_html(breakdown: Breakdown, dimension: units.Dimension, *, caption: str) -> str:
    """The leaves of a breakdown with bars, largest first."""
    total = float(breakdown.total)
    leaves = [term for _, term in breakdown.walk() if not term.parts and float(term.total) > MIN_SHARE_FRAC * total]
    leaves.sort(key=lambda term: -float(term.total))
    rows = [
        (leaf.name.replace("_", " "), units.format(float(leaf.total), dimension), float(leaf.total) / total)
        for leaf in leaves
    ]
    return html.bars(rows, caption=f"{caption} ({units.format(total, dimension)})")


def change_html(change: Change) -> str:
    """A what-if: before beside after, and the terms that differ."""
    before, after = change.before, change.after
    figures = [
        (
            "time",
            *(units.format(a.time_s, units.SECONDS) for a in (before, after)),
            "" if change.unequal else f"{-change.gain_frac:+.1%}",
        ),
        (
            "memory",
            *(units.format(a.memory_bytes, units.BYTES) for a in (before, after)),
            f"{after.memory_bytes / before.memory_bytes - 1.0:+.1%}",
        ),
        ("memory fits", *(a.verdict for a in (before, after)), ""),
    ]
    terms = [
        (name.replace("_", " "), units.format_difference(seconds, units.SECONDS))
        for name, seconds in change.terms[:MAX_TERMS]
    ]
    return html.block(
        html.paragraph(f"what if {change.name}", bold=True),
        html.paragraph(change.summary),
        html.table(["", "before", "after", "change"], figures, right=("before", "after", "change")),
        html.table(["term", "difference"], terms, right=("difference",)),
    )
