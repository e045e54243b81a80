"""Published RL steps (published/rl_runs.jsonl) and our predictions, as `validate --kind rl` prints them. Measured."""

from __future__ import annotations

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.planner.validation.rl_rows import RlRow, read_rl_left_out
from scalewright.planner.validation.rl_table import RlTable, rl_scores, rl_table

MODELS = ("deepseek-v3", "llama3-8b", "qwen2.5-7b", "qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-32b")


@pytest.fixture(scope="module")
def table() -> RlTable:
    return rl_table(Catalog((packaged_data(),)))


def test_steps_take_what_is_published(table: RlTable) -> None:
    """All rows, fitted constants. On 2026-11-16: MAPE 10 %, 428 % a day before."""
    scores = rl_scores(table.scored)
    assert scores["num_rows"] == 46
    assert scores["mape_frac"] <= 0.15
    assert abs(scores["bias_frac"]) <= 0.08
    assert scores["coverage_frac"] >= 0.85


def test_every_model_is_predicted_by_the_others(table: RlTable) -> None:
    """Each model left out of the fit: 20 % on average, and none is off by more than a third."""
    left_out = read_rl_left_out()
    assert set(left_out["models"]) == set(MODELS) == {row.model for row in table.scored}
    assert left_out["mape_frac"] <= 0.20
    assert all(scores["mape_frac"] <= 0.33 for scores in left_out["models"].values())
    assert left_out["order_frac"] >= 0.90


def test_steps_whose_lengths_are_published_are_close(table: RlTable) -> None:
    """NeMo-RL prints mean lengths; verl does not, so that its rows have an assumed one."""
    rows = [row for row in table.scored if row.run.framework == "NeMo-RL"]
    assert rl_scores(rows)["mape_frac"] <= 0.12
    assert max(abs(row.error_frac) for row in rows) <= 0.35


def test_modes_are_in_the_published_order(table: RlTable) -> None:
    assert table.order_frac is not None
    assert table.order_frac >= 0.95


def test_staleness_shortens_steps_as_in_verls_ablation(table: RlTable) -> None:
    """Published: 231, 171, 146 and 151 s for 0, 0.1, 0.3 and 0.5; the last is 0.65 of the first, predicted 0.49."""

    def is_ablation(row: RlRow) -> bool:
        return "staleness" in (row.run.mode or "")

    times = [row.predicted_s for row in table.predicted if is_ablation(row)]
    assert times[0] > times[1] >= times[2] >= times[3]
    assert 0.4 <= times[3] / times[0] <= 0.9


def test_what_cannot_be_predicted_says_why(table: RlTable) -> None:
    assert len(table.reasons) == 1
    assert "DAPO" in next(iter(table.reasons))


def test_stored_scores_are_those_of_the_shipped_constants(table: RlTable) -> None:
    """A model's error with the constants that the others give, predicted anew: what fit_rl.py stored."""
    from scalewright.planner.validation.rl_rows import rl_rows

    stored = read_rl_left_out()["models"]["llama3-8b"]
    runs = [row.run for row in table.scored if row.model == "llama3-8b"]
    rows = rl_rows(Catalog((packaged_data(),)), runs, values=stored["values"])
    assert rl_scores(rows)["mape_frac"] == pytest.approx(stored["mape_frac"], abs=0.005)
