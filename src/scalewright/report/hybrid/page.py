"""A run with rollouts as a section of a page, and as a page of its own. No script: charts are SVG with titles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright import units
from scalewright.records.documents import write_text
from scalewright.records.hybrid_report import HybridShown, RoleUse
from scalewright.records.reasoning import CurvePoint
from scalewright.report.figure_file import LINE_COLOURS
from scalewright.report.hybrid import svg
from scalewright.report.hybrid.figures import (
    AGE_COLOURS,
    KIND_COLOURS,
    TRAINED,
    WASTED,
    bars_of,
    carried_by_age,
    carried_by_cuts,
    kind_title,
    seconds,
    settings_sentence,
    token_rows,
    tokens,
    wait_title,
)
from scalewright.report.page_template import page_styles, page_template
from scalewright.report.pipeline.figures import CURVE_TITLES

if TYPE_CHECKING:
    from markupsafe import Markup

STYLES = ("study.css", "pipeline.css", "hybrid.css", "explain.css")
MAX_KINDS = 3
"""Largest kinds of work that the table of roles names."""
MAX_RESTARTS = 20
ROUNDING = 1e-6
"""A figure that changes by less over all steps is constant: a loss or divergence of 32 bit has such noise."""


def write_run_page(
    path: Path, shown: HybridShown, *, title: str, version: str, summary: list[str], curve: Sequence[CurvePoint] = (),
    findings: Markup | str = "",
) -> None:  # fmt: skip
    """One file that loads nothing else. `summary`: sentences about the stage, above the section."""
    template = page_template("run.html")
    section = hybrid_section(shown, title="Rollouts and training over time")
    learning, constant = _learning(curve)
    write_text(
        path, template.render(
            title=title, version=version, summary=summary, css=page_styles(STYLES), section=section, findings=findings,
            learning=learning, constant=constant,
        )
    )  # fmt: skip


def _learning(curve: Sequence[CurvePoint]) -> tuple[list[Markup], str]:
    """A chart of every figure that changes over the steps, and which ones do not."""
    from markupsafe import Markup

    charts, constant = [], []
    for name, title in CURVE_TITLES.items():
        points = [(point.step, float(value)) for point in curve if (value := getattr(point, name)) is not None]
        is_share = name.endswith("_frac")
        if not points:
            continue
        values = [value for _, value in points]
        if max(values) - min(values) <= ROUNDING:
            about = f"{100 * values[0]:.3g} %" if is_share else f"{values[0]:.3g}"
            constant.append(f"{title} ({about if abs(values[0]) > ROUNDING else 0})")
            continue
        chart = svg.line(
            f"{title[0].upper()}{title[1:]}", points, num_steps=curve[-1].step + 1, stroke=LINE_COLOURS[0],
            is_share=is_share,
        )  # fmt: skip
        charts.append(Markup(chart))
    return charts, ", ".join(constant)


def hybrid_section(shown: HybridShown, *, title: str = "") -> Markup:
    """The section of one run. It has no ids, so a page may have several."""
    from markupsafe import Markup

    template = page_template("hybrid.html")
    kinds = [kind for kind in KIND_COLOURS if any(kind in lane.seconds_by_kind for lane in shown.lanes)]
    return Markup(
        template.render(
            title=title, shown=shown, settings=settings_sentence(shown.settings), lanes=_lanes(shown),
            window=_window(shown), ticks=svg.time_ticks(0.0, shown.total_s) if shown.total_s else [],
            key=[{"title": kind_title(kind), "colour": svg.colour(kind)} for kind in kinds],
            roles=[_role(use) for use in shown.roles], charts=[Markup(chart) for chart in _charts(shown)],
            tokens=[(name, f"{num:,}", "" if share is None else f"{share:.1%}")
                    for name, num, share in token_rows(shown)],
            syncs=_syncs(shown), outcomes=_outcomes(shown), restarts=_restarts(shown), pauses=_pauses(shown),
        )
    )  # fmt: skip


def _lanes(shown: HybridShown) -> list[dict[str, Any]]:
    from markupsafe import Markup

    return [
        {
            "title": lane.title,
            "idle": f"{lane.idle_frac:.0%}",
            "strip": Markup(svg.strip(lane, shown)),
            "window": "" if shown.window is None else Markup(svg.window_lane(lane, shown.window)),
        }
        for lane in shown.lanes
    ]


def _window(shown: HybridShown) -> dict[str, Any] | None:
    window = shown.window
    if window is None or (window.start_s <= 0 and window.end_s >= shown.total_s and window.first_step < 0):
        return None
    length_s = window.end_s - window.start_s
    words = f"steps {window.first_step + 1} to {window.last_step + 1}" if window.first_step >= 0 else "whole run"
    if window.first_step == window.last_step >= 0:
        words = f"step {window.first_step + 1}"
    return {
        "words": words,
        "length": seconds(length_s),
        "left": window.start_s / shown.total_s,
        "width": length_s / shown.total_s,
        "ticks": svg.time_ticks(window.start_s, window.end_s),
        "steps": [
            {"at_frac": (start_s - window.start_s) / length_s, "text": f"step {step + 1}"}
            for step, start_s in window.step_starts
        ],
    }


def _role(use: RoleUse) -> dict[str, str]:
    busy = [(kind, value) for kind, value in use.seconds_by_kind.items() if kind != "idle"][:MAX_KINDS]
    waits = [(reason, value) for reason, value in use.waits_s.items() if value / use.present_s >= 0.005]
    return {
        "role": use.role,
        "ranks": f"{use.num_ranks:,}",
        "idle": f"{use.idle_frac:.1%}",
        "waits": ", ".join(f"{wait_title(reason)} {value / use.present_s:.1%}" for reason, value in waits),
        "work": ", ".join(f"{kind_title(kind)} {value / use.present_s:.1%}" for kind, value in busy),
    }


def _charts(shown: HybridShown) -> list[str]:
    steps, charts = shown.iterations, []
    if any(step.carried_by_cuts for step in steps):
        names = ["not cut", "cut once", "cut twice", "cut three times or more"]
        charts.append(
            svg.stacked_bars(
                "Rollouts carried to the next iteration, by cuts (darker: more cuts)", bars_of(steps, carried_by_cuts),
                AGE_COLOURS, names,
            )
        )  # fmt: skip
    if any(step.carried_by_version for step in steps):
        names = ["begun with this version", "1 version old", "2 versions old", "3 or more versions old"]
        charts.append(
            svg.stacked_bars(
                "The same by the version that began them (darker: older)", bars_of(steps, carried_by_age), AGE_COLOURS,
                names,
            )
        )  # fmt: skip
    if shown.num_by_staleness and (len(shown.num_by_staleness) > 1 or shown.settings.staleness):
        bound = shown.settings.staleness or None
        charts.append(
            svg.histogram(
                "Age of trained rollouts", shown.num_by_staleness, bound=bound, fill=AGE_COLOURS[1], over=WASTED
            )
        )
    if any(step.num_trained_tokens or step.num_wasted_tokens for step in steps):
        charts.append(
            svg.stacked_bars(
                "Tokens of an iteration: trained on, and wasted (orange)", bars_of(steps, tokens), (TRAINED, WASTED),
                ["tokens trained on", "tokens wasted"],
            )
        )  # fmt: skip
    return charts


def _syncs(shown: HybridShown) -> list[tuple[str, ...]]:
    return [
        (
            sync.way, f"{sync.count:,}", units.format(sync.bytes / sync.count, units.BYTES),
            seconds(sync.seconds / sync.count), units.format(sync.bytes_per_s, units.BYTES_PER_S),
        )
        for sync in shown.syncs
    ]  # fmt: skip


def _outcomes(shown: HybridShown) -> list[tuple[str, str, str]]:
    num = sum(shown.sandbox_outcomes.values())
    return [(name, f"{count:,}", f"{count / num:.2%}") for name, count in shown.sandbox_outcomes.items()]


def _restarts(shown: HybridShown) -> list[tuple[str, str, str, str]]:
    return [
        (seconds(one.at_s), one.of.replace("-", " "), "" if one.took_s is None else seconds(one.took_s), one.detail)
        for one in shown.restarts[:MAX_RESTARTS]
    ]


def _pauses(shown: HybridShown) -> str:
    if not shown.pauses:
        return ""
    longest = ", ".join(f"{seconds(lasted_s)} at {seconds(at_s)}" for at_s, lasted_s in shown.pauses[:MAX_KINDS])
    more = "" if len(shown.pauses) <= MAX_KINDS else ", ..."
    return f"The axis leaves out time in which no rank ran: {longest}{more}."
