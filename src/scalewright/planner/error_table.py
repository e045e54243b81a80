"""The error table: scores per (source, GPU, dtype) and overall, over validated rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright.costs.interval import COVERAGE_FRAC
from scalewright.planner import scores
from scalewright.planner.scores import Array
from scalewright.planner.validate import ValidatedRow
from scalewright.records.documents import document

MIN_PROBLEM_ROWS = 5
"""Rows of one problem (same model, machine and batch, other layouts) that make ranking them a question."""

Scores = dict[str, float | int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTable:
    rows: tuple[ValidatedRow, ...]
    groups: dict[tuple[str, str, str], Scores]
    overall: Scores
    reasons: dict[str, int]

    def as_document(self) -> dict[str, Any]:
        groups = [
            {"source": source, "gpu": gpu, "dtype": dtype, **found}
            for (source, gpu, dtype), found in self.groups.items()
        ]
        body = {
            "overall": self.overall,
            "groups": groups,
            "reasons": self.reasons,
            "rows": [row.as_dict() for row in self.rows],
        }
        return document("validation", body)


def error_table(rows: Sequence[ValidatedRow]) -> ErrorTable:
    by_group: dict[tuple[str, str, str], list[ValidatedRow]] = defaultdict(list)
    for row in rows:
        by_group[row.group].append(row)
    groups = {key: time_scores(members) for key, members in sorted(by_group.items())}
    overall = time_scores(rows) | balanced_scores(groups) | order_scores(rows) | memory_scores(rows)
    overall |= coverage_scores(by_group)
    reasons = Counter(row.reason for row in rows if row.reason is not None)
    return ErrorTable(rows=tuple(rows), groups=groups, overall=overall, reasons=dict(reasons.most_common()))


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


def order_scores(rows: Sequence[ValidatedRow]) -> Scores:
    """How well we rank layouts inside one problem."""
    problems: dict[tuple[object, ...], list[ValidatedRow]] = defaultdict(list)
    for row in rows:
        if row.is_timed:
            problems[problem_key(row)].append(row)
    timed = [_timed(members) for members in problems.values() if len(members) >= MIN_PROBLEM_ROWS]
    return {
        "num_problems": len(timed),
        "spearman": scores.mean_of(scores.spearman(p, m) for p, m, _ in timed),
        "regret_frac": scores.mean_of(scores.regret_frac(p, m) for p, m, _ in timed),
        "pairwise_accuracy_frac": scores.mean_of(scores.pairwise_accuracy_frac(p, m) for p, m, _ in timed),
    }


def memory_scores(rows: Sequence[ValidatedRow]) -> Scores:
    known = [r for r in rows if r.predicted_memory_bytes is not None and r.measured_memory_bytes is not None]
    predicted = np.array([r.predicted_memory_bytes for r in known], dtype=np.float64)
    measured = np.array([r.measured_memory_bytes for r in known], dtype=np.float64)
    expressed = [r for r in rows if r.fits is not None]
    failed = [r for r in expressed if r.run.measured.oom]
    ran = [r for r in expressed if not r.run.measured.oom]
    return {
        "num_memory": len(known),
        "memory_mape_frac": scores.mape_frac(predicted, measured) if known else None,
        "memory_bias_frac": scores.bias_frac(predicted, measured) if known else None,
        "num_oom": len(failed),
        "num_oom_caught": sum(not r.fits for r in failed),
        "num_ran": len(ran),
        "num_false_alarms": sum(not r.fits for r in ran),
    }


def coverage_scores(by_group: dict[tuple[str, str, str], list[ValidatedRow]]) -> Scores:
    """Share of measured times inside the interval: as shipped, and with each source left out of its own quantiles."""
    ratios: dict[tuple[str, str, str], Array] = {}
    inside: list[bool] = []
    for key, members in by_group.items():
        predicted, measured, _ = _timed(members)
        if len(measured):
            ratios[key] = measured / predicted
        for row in members:
            if row.is_timed and row.interval_s is not None and row.measured_step_s is not None:
                inside.append(row.interval_s[0] <= row.measured_step_s <= row.interval_s[1])
    return {
        "interval_frac": COVERAGE_FRAC,
        "coverage_frac": float(np.mean(inside)) if inside else None,
        "left_out_coverage_frac": left_out_coverage_frac(ratios),
    }


def residual_quantiles(ratios: dict[tuple[str, str, str], Array]) -> tuple[float, float]:
    """5 % and 95 % quantiles of measured over predicted, each group weighing the same."""
    values = np.concatenate(list(ratios.values()))
    weights = np.concatenate([np.full(len(r), 1.0 / len(r)) for r in ratios.values()])
    tail = (1.0 - COVERAGE_FRAC) / 2.0
    low = scores.weighted_quantile(values, weights, tail)
    return low, scores.weighted_quantile(values, weights, 1.0 - tail)


def left_out_coverage_frac(ratios: dict[tuple[str, str, str], Array]) -> float | None:
    """Coverage of each source by the quantiles of the others, averaged over groups; None with one source."""
    sources = {key[0] for key in ratios}
    covered: list[float] = []
    for left_out in sources:
        others = {key: r for key, r in ratios.items() if key[0] != left_out}
        if not others:
            continue
        low, high = residual_quantiles(others)
        mine = [r for key, r in ratios.items() if key[0] == left_out]
        covered += [float(np.mean((r >= low) & (r <= high))) for r in mine]
    return float(np.mean(covered)) if covered else None
