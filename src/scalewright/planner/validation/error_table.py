"""The error table: scores per (source, GPU, dtype) and overall, over validated rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.catalog.library import Catalog
from scalewright.catalog.published import load_runs, packaged_memory_runs, packaged_runs
from scalewright.costs.interval import COVERAGE_FRAC
from scalewright.costs.room import MEMORY_KINDS
from scalewright.errors import ConfigError
from scalewright.planner.validation import scores
from scalewright.planner.validation.scores import Array
from scalewright.planner.validation.validate import ValidatedRow, validate_run
from scalewright.records.documents import document

MIN_PROBLEM_ROWS = 5
"""Rows of one problem (same model, machine and batch, other layouts) that make ranking them a question."""

LEAST_WIDTH = 0.01
"""An interval cut off by the peak rate may end at the prediction; no measurement is better than 1 %."""

Scores = dict[str, float | int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedLayouts:
    """One model, machine and batch measured with several layouts: which we would choose, and which was best."""

    model: str
    num_gpus: int
    global_batch: int
    num_layouts: int
    chosen: str
    best: str
    regret_frac: float
    gap_frac: float
    """How much slower than our choice we predict the best one: below the measurements' noise it is no choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTable:
    rows: tuple[ValidatedRow, ...]
    groups: dict[tuple[str, str, str], Scores]
    overall: Scores
    reasons: dict[str, int]
    problems: tuple[RankedLayouts, ...]
    """Every set of layouts that is ranked, the one we would regret most first."""
    of_memory: tuple[ValidatedRow, ...] = ()
    """Rows that only their memory is scored of."""

    def as_document(self) -> dict[str, Any]:
        groups = [
            {"source": source, "gpu": gpu, "dtype": dtype, **scores_of_group}
            for (source, gpu, dtype), scores_of_group in self.groups.items()
        ]
        body = {
            "overall": self.overall,
            "groups": groups,
            "reasons": self.reasons,
            "problems": [asdict(problem) for problem in self.problems],
            "rows": [row.as_dict() for row in self.rows],
            "memory_rows": [row.as_dict() for row in self.of_memory],
        }
        return document("validation", body)


def validation_table(catalog: Catalog, path: Path | None) -> ErrorTable:
    """Predict the runs of a file, default those shipped, and score them."""
    runs = load_runs(path or packaged_runs())
    if not runs:
        raise ConfigError(f"{path} holds no rows: write one JSON object a line (docs/validation.md has the keys)")
    beside = load_runs(packaged_memory_runs()) if path is None else []
    return error_table(*([validate_run(catalog, run) for run in some] for some in (runs, beside)))


def error_table(rows: Sequence[ValidatedRow], of_memory: Sequence[ValidatedRow] = ()) -> ErrorTable:
    """Scores of the rows; `of_memory` are rows that only their memory is scored of."""
    by_group: dict[tuple[str, str, str], list[ValidatedRow]] = defaultdict(list)
    for row in rows:
        by_group[row.group].append(row)
    ranked = ranked_problems(rows)
    left_out = left_out_coverage(by_group)
    groups = {
        key: time_scores(members) | coverage_scores(members) | {"left_out_coverage_frac": left_out.get(key)}
        for key, members in sorted(by_group.items())
    }
    overall = time_scores(rows) | balanced_scores(groups) | order_scores(ranked) | memory_scores((*rows, *of_memory))
    overall |= coverage_scores(rows) | {"left_out_coverage_frac": scores.mean_of(left_out.values())}
    reasons = Counter(row.reason for row in rows if row.reason is not None)
    problems = sorted((_problem(members) for members in ranked), key=lambda problem: -problem.regret_frac)
    return ErrorTable(
        rows=tuple(rows),
        groups=groups,
        overall=overall,
        reasons=dict(reasons.most_common()),
        problems=tuple(problems),
        of_memory=tuple(of_memory),
    )


def _timed(rows: Iterable[ValidatedRow]) -> tuple[Array, Array, Array]:
    timed = [r for r in rows if r.is_timed]
    predicted = np.array([r.predicted_step_s for r in timed], dtype=np.float64)
    measured = np.array([r.measured_step_s for r in timed], dtype=np.float64)
    rule = np.array([r.rule_step_s for r in timed], dtype=np.float64)
    return predicted, measured, rule


def time_scores(rows: Sequence[ValidatedRow]) -> Scores:
    predicted, measured, rule = _timed(rows)

    def score(function: Callable[[Array, Array], float], guess: Array) -> float | None:
        return function(guess, measured) if len(measured) else None

    return {
        "num_rows": len(rows),
        "num_expressed": sum(r.reason is None for r in rows),
        "num_timed": len(measured),
        "mape_frac": score(scores.mape_frac, predicted),
        "median_ape_frac": score(scores.median_ape_frac, predicted),
        "bias_frac": score(scores.bias_frac, predicted),
        "rule_mape_frac": score(scores.mape_frac, rule),
        "rule_median_ape_frac": score(scores.median_ape_frac, rule),
    }


def balanced_scores(groups: dict[tuple[str, str, str], Scores]) -> Scores:
    """Each (source, GPU, dtype) weighs the same, so that one large source cannot hide the others."""
    return {
        "balanced_mape_frac": scores.mean_of(g["mape_frac"] for g in groups.values()),
        "rule_balanced_mape_frac": scores.mean_of(g["rule_mape_frac"] for g in groups.values()),
        "num_groups": sum(g["mape_frac"] is not None for g in groups.values()),
    }


def problem_key(row: ValidatedRow) -> tuple[object, ...]:
    """Same source, GPU, dtype, model shape, sequence, GPUs and global batch: only the layout differs."""
    m, h = row.run.model, row.run.hardware
    shape = (m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn_hidden, m.vocab, m.gated, m.seq)
    return (*row.group, *shape, h.gpus, row.run.layout.global_batch)


def ranked_problems(rows: Sequence[ValidatedRow]) -> list[list[ValidatedRow]]:
    """Timed rows of each problem that has enough of them."""
    problems: dict[tuple[object, ...], list[ValidatedRow]] = defaultdict(list)
    for row in rows:
        if row.is_timed:
            problems[problem_key(row)].append(row)
    return [members for members in problems.values() if len(members) >= MIN_PROBLEM_ROWS]


def _problem(members: Sequence[ValidatedRow]) -> RankedLayouts:
    predicted, measured, _ = _timed(members)
    chosen, best = int(np.argmin(predicted)), int(np.argmin(measured))
    first = members[0].run
    return RankedLayouts(
        model=first.model.name,
        num_gpus=first.hardware.gpus or 0,
        global_batch=first.layout.global_batch or 0,
        num_layouts=len(members),
        chosen=_knobs(members[chosen]),
        best=_knobs(members[best]),
        regret_frac=scores.regret_frac(predicted, measured),
        gap_frac=float(predicted[best] / predicted[chosen] - 1.0),
    )


def _knobs(row: ValidatedRow) -> str:
    layout = row.run.layout
    return f"tp={layout.tp},pp={layout.pp},dp={layout.dp},mbs={layout.micro_batch or 1}"


def order_scores(problems: Sequence[Sequence[ValidatedRow]]) -> Scores:
    """How well we rank layouts inside one problem."""
    timed = [_timed(members) for members in problems]
    return {
        "num_problems": len(timed),
        "spearman": scores.mean_of(scores.spearman(p, m) for p, m, _ in timed),
        "regret_frac": scores.mean_of(scores.regret_frac(p, m) for p, m, _ in timed),
        "pairwise_accuracy_frac": scores.mean_of(scores.pairwise_accuracy_frac(p, m) for p, m, _ in timed),
    }


def memory_scores(rows: Sequence[ValidatedRow]) -> Scores:
    """Error of each kind of memory figure, runs out of memory that are foreseen, and alarms about runs that ran."""
    known = [r for r in rows if r.predicted_memory_bytes is not None and r.measured_memory_bytes is not None]
    expressed = [r for r in rows if r.fits is not None]
    failed = [r for r in expressed if r.run.measured.oom]
    ran = [r for r in expressed if not r.run.measured.oom]
    kinds: Scores = {}
    for kind in MEMORY_KINDS:
        own = [r for r in known if r.run.measured.memory_kind == kind]
        kinds |= {f"num_memory_{kind}": len(own)} | {f"memory_{kind}_{k}": v for k, v in _memory_errors(own).items()}
    return {
        "num_memory": len(known),
        **{f"memory_{name}": value for name, value in _memory_errors(known).items()},
        **kinds,
        "num_oom": len(failed),
        "num_oom_caught": sum(not r.fits for r in failed),
        "num_oom_tight": sum(r.room == "tight" for r in failed),
        "num_oom_missed": sum(r.room == "fits" for r in failed),
        "num_ran": len(ran),
        "num_false_alarms": sum(not r.fits for r in ran),
    }


def _memory_errors(rows: Sequence[ValidatedRow]) -> Scores:
    predicted = np.array([r.predicted_memory_bytes for r in rows], dtype=np.float64)
    measured = np.array([r.measured_memory_bytes for r in rows], dtype=np.float64)
    return {
        "mape_frac": scores.mape_frac(predicted, measured) if rows else None,
        "bias_frac": scores.bias_frac(predicted, measured) if rows else None,
    }


def coverage_scores(rows: Iterable[ValidatedRow]) -> Scores:
    """How many measured times lie inside the interval as shipped, how wide it is, and its Winkler score."""
    known = [
        (row.interval_s, row.predicted_step_s, row.measured_step_s)
        for row in rows
        if row.interval_s is not None and row.predicted_step_s is not None and row.measured_step_s is not None
    ]
    if not known:
        return dict.fromkeys(("coverage_frac", "width_frac", "winkler_frac")) | {"interval_frac": COVERAGE_FRAC}
    low, high = np.array([ends for ends, _, _ in known]).T
    predicted, measured = np.array([times for _, *times in known]).T
    return {
        "interval_frac": COVERAGE_FRAC,
        "coverage_frac": float(np.mean((low <= measured) & (measured <= high))),
        "width_frac": float(np.mean((high - low) / predicted)),
        "winkler_frac": float(np.mean(scores.winkler(low, high, measured, COVERAGE_FRAC) / predicted)),
    }


def residual_quantiles(ratios: dict[tuple[str, str, str], Array]) -> tuple[float, float]:
    """5 % and 95 % quantiles of residuals, each group weighing the same."""
    values = np.concatenate(list(ratios.values()))
    weights = np.concatenate([np.full(len(r), 1.0 / len(r)) for r in ratios.values()])
    tail = (1.0 - COVERAGE_FRAC) / 2.0
    low = scores.weighted_quantile(values, weights, tail)
    return low, scores.weighted_quantile(values, weights, 1.0 - tail)


def _places(rows: Iterable[ValidatedRow]) -> Array:
    """Where measured times lie in their intervals: 0 as predicted, -1 and 1 at the ends, by logarithm."""
    places = []
    for row in rows:
        if row.interval_s is None or row.predicted_step_s is None or row.measured_step_s is None:
            continue
        off = np.log(row.measured_step_s / row.predicted_step_s)
        end = row.interval_s[1] if off >= 0 else row.interval_s[0]
        width = abs(np.log(end / row.predicted_step_s))
        places.append(off / max(width, LEAST_WIDTH))
    return np.array(places, dtype=np.float64)


def left_out_coverage(by_group: dict[tuple[str, str, str], list[ValidatedRow]]) -> dict[tuple[str, str, str], float]:
    """Coverage of each group by the quantiles of the other sources; none with one source.

    A residual counts in units of its own interval, so that rows with a wide one and rows with a narrow one compare.
    """
    places = {key: own for key, members in by_group.items() if len(own := _places(members))}
    covered: dict[tuple[str, str, str], float] = {}
    for key, mine in places.items():
        others = {other: r for other, r in places.items() if other[0] != key[0]}
        if others:
            low, high = residual_quantiles(others)
            covered[key] = float(np.mean((mine >= low) & (mine <= high)))
    return covered
