"""Scores of predicted RL steps: by model, mode and framework, by part, and the order of modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalewright import __version__
from scalewright.catalog.library import Catalog
from scalewright.catalog.rl_runs import PublishedRlRun, rl_frameworks, rl_runs
from scalewright.costs.stage import gather_broadcast_time_s, num_synced_tensors, peer_to_peer_time_s
from scalewright.planner.question import resolve_spec
from scalewright.planner.validation.rl_rows import RlRow, machine_of, ordered_pairs_frac, rl_rows
from scalewright.planner.validation.scores import bias_frac, mape_frac, median_ape_frac
from scalewright.records.documents import document

PARTS = {
    "old log-probs": ("old_log_prob_s", ("old_log_probs",)),
    "update": ("update_actor_s", ("update",)),
}
"""Parts that some rows time: their column, and ours."""
SYNC_BYTES = 2.0
"""Of a weight in the rows that time weight sync alone: 16 bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """A part of a step, or a weight sync alone, as published and as predicted."""

    part: str
    what: str
    published_s: float
    predicted_s: float

    @property
    def error_frac(self) -> float:
        return self.predicted_s / self.published_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RlTable:
    """All rows, and what they say together."""

    rows: tuple[RlRow, ...]
    parts: tuple[PartTime, ...]

    @property
    def predicted(self) -> list[RlRow]:
        return [row for row in self.rows if row.prediction is not None]

    @property
    def scored(self) -> list[RlRow]:
        """Rows whose own columns agree."""
        return [row for row in self.predicted if row.run.consistent]

    @property
    def groups(self) -> dict[str, dict[str, list[RlRow]]]:
        """Scored rows by model, by mode and by framework."""
        keys: dict[str, Callable[[RlRow], str]] = {
            "model": lambda row: row.model,
            "mode": lambda row: row.run.policy_kind,
            "framework": lambda row: row.run.framework,
        }
        return {name: _grouped(self.scored, key) for name, key in keys.items()}

    @property
    def order_frac(self) -> float | None:
        """Share of pairs of modes that are ordered as measured."""
        return ordered_pairs_frac([(row, row.predicted_s) for row in self.scored])

    @property
    def reasons(self) -> dict[str, int]:
        """Why rows have no prediction, and how many."""
        reasons = [row.reason for row in self.rows if row.prediction is None]
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}

    def as_document(self) -> dict[str, Any]:
        return document(
            "rl-validation",
            {
                "scalewright": __version__,
                "num_rows": len(self.scored),
                **(rl_scores(self.scored) if self.scored else {}),
                "order_frac": self.order_frac,
                "by": {
                    name: {key: rl_scores(rows) for key, rows in groups.items()} for name, groups in self.groups.items()
                },
                "parts": {
                    name: {"num_rows": len(times), "mape_frac": _mape(times)}
                    for name, times in self.part_groups.items()
                },
                "reasons": self.reasons,
                "rows": [row.as_dict() for row in self.rows],
            },
        )

    @property
    def part_groups(self) -> dict[str, list[PartTime]]:
        names = dict.fromkeys(part.part for part in self.parts)
        return {name: [part for part in self.parts if part.part == name] for name in names}


def rl_table(catalog: Catalog, file: Path | None = None) -> RlTable:
    """Predict the rows of a file; default: those shipped."""
    runs = rl_runs(file)
    rows = rl_rows(catalog, runs)
    parts = [part for row in rows if row.prediction is not None and row.run.consistent for part in _parts(row)]
    return RlTable(rows=tuple(rows), parts=(*parts, *_syncs(catalog, runs)))


def rl_scores(rows: Sequence[RlRow]) -> dict[str, float | int]:
    predicted, measured = np.array([row.predicted_s for row in rows]), np.array([row.step_s for row in rows])
    ends = np.array([row.interval_s for row in rows])
    inside = (ends[:, 0] <= measured) & (measured <= ends[:, 1])
    return {
        "num_rows": len(rows),
        "mape_frac": mape_frac(predicted, measured),
        "median_ape_frac": median_ape_frac(predicted, measured),
        "bias_frac": bias_frac(predicted, measured),
        "coverage_frac": float(np.mean(inside)),
        "mean_width_frac": float(np.mean((ends[:, 1] - ends[:, 0]) / predicted)),
    }


def _grouped(rows: Sequence[RlRow], key: Callable[[RlRow], str]) -> dict[str, list[RlRow]]:
    return {name: [row for row in rows if key(row) == name] for name in dict.fromkeys(key(row) for row in rows)}


def _parts(row: RlRow) -> list[PartTime]:
    """Times of the parts that the row has; what it calls gen is a wait where generator and trainer are apart."""
    assert row.prediction is not None
    figures, run, times = row.prediction.rl, row.run, []
    for name, (column, ours) in PARTS.items():
        published = getattr(run, column)
        if published is not None:
            times.append((name, published, sum(figures.part(part).whole_s for part in ours)))
    if run.generate_sequences_s is not None:
        times.append(("rollout", run.generate_sequences_s, figures.part("rollout").whole_s))
    elif run.gen_s is not None and not row.step.is_split:
        times.append(("rollout", run.gen_s, figures.part("rollout").whole_s))
    return [PartTime(part=name, what=row.what, published_s=p, predicted_s=q) for name, p, q in times if q > 0.0]


def _syncs(catalog: Catalog, runs: Sequence[PublishedRlRun]) -> list[PartTime]:
    """Rows that time a weight sync alone: through one rank, or by a checkpoint engine from peer to peer."""
    frameworks, times = rl_frameworks(), []
    for run in runs:
        if run.weight_sync_s is None or run.trainer_ranks is None or run.rollout_ranks is None:
            continue
        spec, machine = resolve_spec(catalog, frameworks.model_of(run)), machine_of(catalog, run)
        size, tensors = spec.num_params * SYNC_BYTES, num_synced_tensors(spec.transformer)
        if run.checkpoint_engine:
            name, predicted = "sync p2p", peer_to_peer_time_s(
                weights_bytes=size, num_tensors=tensors, num_trainers=run.trainer_ranks,
                num_generators=run.rollout_ranks, num_devices=run.trainer_ranks + run.rollout_ranks, tp=1,
                machine=machine,
            )  # fmt: skip
        else:
            name, predicted = "sync broadcast", gather_broadcast_time_s(
                weights_bytes=size, num_tensors=tensors, num_devices=run.trainer_ranks + run.rollout_ranks,
                machine=machine,
            )  # fmt: skip
        what = f"{run.model}, {run.trainer_ranks} to {run.rollout_ranks} ranks"
        times.append(PartTime(part=name, what=what, published_s=run.weight_sync_s, predicted_s=predicted))
    return times


def _mape(times: Sequence[PartTime]) -> float:
    return sum(abs(part.error_frac) for part in times) / len(times)
