"""The error table over a handful of rows whose scores are worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.catalog.published import PublishedRun
from scalewright.planner.validation.error_table import error_table
from scalewright.planner.validation.validate import ValidatedRow


def run(number: int, source: str = "A", *, gpu: str = "A100", oom: bool = False, batch: int = 8) -> PublishedRun:
    return PublishedRun.model_validate(
        {
            "id": f"{source}-{number}",
            "source": source,
            "model": {"name": "gpt", "layers": 4, "hidden": 64, "heads": 4, "ffn_hidden": 256, "vocab": 100, "seq": 32},
            "hardware": {"gpu": gpu, "gpus": 8, "gpus_per_node": 8},
            "layout": {"dp": 8, "tp": 1, "pp": 1, "global_batch": batch},
            "dtype": "bf16",
            "measured": {"oom": oom},
        }
    )


def timed(published: PublishedRun, predicted: float, measured: float, **more: Any) -> ValidatedRow:
    given: dict[str, Any] = {
        "rule_step_s": measured * 2,
        "interval_s": (predicted * 0.8, predicted * 1.2),
        "fits": True,
    } | more
    return ValidatedRow(run=published, predicted_step_s=predicted, measured_step_s=measured, **given)


def test_each_group_weighs_the_same_in_the_balanced_error() -> None:
    rows = [timed(run(i), 1.1, 1.0) for i in range(3)] + [timed(run(9, "B"), 0.5, 1.0)]
    overall = error_table(rows).overall
    assert overall["mape_frac"] == pytest.approx((0.1 * 3 + 0.5) / 4)
    assert overall["balanced_mape_frac"] == pytest.approx((0.1 + 0.5) / 2)
    assert overall["rule_balanced_mape_frac"] == pytest.approx(1.0)
    assert overall["num_groups"] == 2
    assert overall["bias_frac"] == pytest.approx((0.1 * 3 - 0.5) / 4)


def test_groups_are_source_gpu_and_dtype_and_lines_of_one_document_belong_together() -> None:
    rows = [timed(run(1, "doc:L10"), 1, 1), timed(run(2, "doc:L99"), 1, 1), timed(run(3, "doc:L5", gpu="H100"), 1, 1)]
    assert set(error_table(rows).groups) == {("doc", "A100", "bf16"), ("doc", "H100", "bf16")}


def test_rows_without_a_time_count_but_do_not_score() -> None:
    rows = [
        timed(run(1), 1.1, 1.0),
        ValidatedRow(run=run(2), reason="no layers"),
        ValidatedRow(run=run(3), predicted_step_s=2.0),
    ]
    overall = error_table(rows).overall
    assert (overall["num_rows"], overall["num_expressed"], overall["num_timed"]) == (3, 2, 1)
    assert overall["mape_frac"] == pytest.approx(0.1)


def test_group_without_a_time_does_not_enter_the_balance() -> None:
    rows = [timed(run(1), 1.1, 1.0), ValidatedRow(run=run(2, "B"), reason="no layers")]
    assert error_table(rows).overall["balanced_mape_frac"] == pytest.approx(0.1)


def test_reasons_are_counted_most_common_first() -> None:
    rows = [ValidatedRow(run=run(i), reason="rare" if i == 0 else "common") for i in range(3)]
    assert list(error_table(rows).reasons.items()) == [("common", 2), ("rare", 1)]


def test_out_of_memory_runs_are_caught_and_false_alarms_counted() -> None:
    rows = [
        ValidatedRow(run=run(1, oom=True), predicted_step_s=1.0, fits=False),
        ValidatedRow(run=run(2, oom=True), predicted_step_s=1.0, fits=True),
        timed(run(3), 1.0, 1.0, fits=False),
        timed(run(4), 1.0, 1.0, fits=True),
        timed(run(5), 1.0, 1.0, fits=True),
        ValidatedRow(run=run(6, oom=True), reason="no layers"),
    ]
    overall = error_table(rows).overall
    assert (overall["num_oom"], overall["num_oom_caught"]) == (2, 1)
    assert (overall["num_ran"], overall["num_false_alarms"]) == (3, 1)


def test_memory_error_is_over_rows_that_published_a_peak() -> None:
    rows = [
        timed(run(1), 1, 1, predicted_memory_bytes=90.0, measured_memory_bytes=100.0),
        timed(run(2), 1, 1, predicted_memory_bytes=130.0, measured_memory_bytes=100.0),
        timed(run(3), 1, 1, predicted_memory_bytes=5.0),
    ]
    overall = error_table(rows).overall
    assert overall["num_memory"] == 2
    assert overall["memory_mape_frac"] == pytest.approx(0.2)
    assert overall["memory_bias_frac"] == pytest.approx(0.1)


def test_layouts_are_ranked_inside_one_problem_of_five_or_more() -> None:
    ranked = [timed(run(i), predicted=float(5 - i), measured=float(i + 1)) for i in range(5)]
    too_few = [timed(run(i, batch=16), predicted=float(i + 1), measured=float(i + 1)) for i in range(4)]
    overall = error_table([*ranked, *too_few]).overall
    assert overall["num_problems"] == 1
    assert overall["spearman"] == pytest.approx(-1.0)
    assert overall["pairwise_accuracy_frac"] == pytest.approx(0.0)
    assert overall["regret_frac"] == pytest.approx(4.0)


def test_coverage_is_the_share_inside_the_interval() -> None:
    rows = [timed(run(1), 1.0, 1.1), timed(run(2), 1.0, 1.5), timed(run(3), 1.0, 1.2), timed(run(4), 1.0, 0.5)]
    assert error_table(rows).overall["coverage_frac"] == pytest.approx(0.5)


def test_left_out_coverage_judges_a_source_by_the_others_only() -> None:
    alike = [timed(run(i, s), 1.0, 1.0 + i / 100) for s in ("A", "B") for i in range(5)]
    odd = [timed(run(1, "C"), 1.0, 9.0)]
    assert error_table(odd).overall["left_out_coverage_frac"] is None
    coverage_frac = error_table([*alike, *odd]).overall["left_out_coverage_frac"]
    assert isinstance(coverage_frac, float)
    assert coverage_frac <= 2 / 3, "the odd source lies outside what the others say"


def test_empty_table_has_no_scores() -> None:
    overall = error_table([]).overall
    assert overall["num_rows"] == 0
    assert overall["mape_frac"] is None
    assert overall["balanced_mape_frac"] is None


def test_problems_say_what_we_chose_what_was_best_and_how_far_apart_we_saw_them() -> None:
    rows = [timed(run(i), predicted=1.0 + i / 10, measured=2.0 - i / 10) for i in range(5)]
    (problem,) = error_table(rows).problems
    assert problem.num_layouts == 5
    assert problem.regret_frac == pytest.approx(2.0 / 1.6 - 1.0)
    assert problem.gap_frac == pytest.approx(0.4)
    assert problem.chosen == "tp=1,pp=1,dp=8,mbs=1"


def test_each_group_has_its_own_coverage() -> None:
    rows = [timed(run(1, "A"), 1.0, 1.1), timed(run(2, "B"), 1.0, 1.5), timed(run(3, "B"), 1.0, 1.0)]
    groups = error_table(rows).groups
    assert groups["A", "A100", "bf16"]["coverage_frac"] == 1.0
    assert groups["B", "A100", "bf16"]["coverage_frac"] == 0.5


def test_left_out_coverage_counts_in_units_of_the_interval() -> None:
    """Twice the error in an interval twice as wide is as well covered."""
    narrow = [timed(run(i, "A"), 1.0, 1.0 + i / 100, interval_s=(0.9, 1.1)) for i in range(1, 6)]
    wide = [timed(run(i, "B"), 1.0, (1.0 + i / 100) ** 2, interval_s=(0.9**2, 1.1**2)) for i in range(1, 6)]
    bold = [timed(run(i, "B"), 1.0, (1.0 + i / 100) ** 2, interval_s=(0.9, 1.1)) for i in range(1, 6)]
    fair, unfair = (error_table([*narrow, *rows]).overall["left_out_coverage_frac"] for rows in (wide, bold))
    assert isinstance(fair, float)
    assert isinstance(unfair, float)
    assert fair >= 0.6 > unfair
