"""Gates of a pipeline: the interval of a rise against published examples, verdicts, and what they write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pipeline_cases import record, wilson

from scalewright.records.reasoning import Rate
from scalewright.study.pipeline.findings import mean_rise
from scalewright.study.pipeline.gate import FILE, judge, key_of_gate, rise, write_gate
from scalewright.study.pipeline.tables import StageGate


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [((56, 70), (48, 80), 0.0524, 0.3339), ((5, 56), (0, 29), -0.0381, 0.1926), ((10, 10), (0, 20), 0.6791, 1.0)],
)
def test_the_interval_of_a_rise_is_that_of_the_published_examples(
    first: tuple[int, int], second: tuple[int, int], low: float, high: float
) -> None:
    change = rise(wilson(*first), wilson(*second))
    assert change.value_frac == pytest.approx(first[0] / first[1] - second[0] / second[1])
    assert change.low_frac == pytest.approx(low, abs=6e-5)
    assert change.high_frac == pytest.approx(high, abs=6e-5)


def test_seeds_that_agree_do_not_shrink_the_error_of_the_problems() -> None:
    one = rise(wilson(230, 500), wilson(185, 500))
    assert mean_rise([one]) == one
    assert mean_rise([one, one, one]).low_frac == pytest.approx(one.low_frac)
    spread = [replace(one, value_frac=one.value_frac + d) for d in (-0.03, 0.0, 0.03)]
    assert mean_rise(spread).low_frac < one.low_frac


@pytest.mark.parametrize(
    ("gate", "passes"),
    [
        (StageGate(over="sft", by=0.08), True),
        (StageGate(over="sft", by=0.1), False),
        (StageGate(over="sft", by=0.0, bound="low"), True),
        (StageGate(over="sft", by=0.04, bound="low"), False),
        (StageGate(by=0.45), True),
        (StageGate(by=0.5), False),
        (StageGate(by=0.41, figure="sampled"), True),
    ],
)
def test_a_gate_is_passed_by_the_value_or_by_the_low_end(gate: StageGate, passes: bool) -> None:
    after, before = record("grpo", 230), record("sft", 185)
    result = judge(gate, "grpo", after, before if gate.over else None)
    assert result.passes is passes
    assert ("the pipeline ends here" in result.sentence) is not passes
    assert result.sentence.startswith("grpo: ")


def test_a_stage_without_accuracy_passes_no_gate(tmp_path: Path) -> None:
    silent = replace(record("sft", 1), accuracy=None)
    result = judge(StageGate(over="sft", by=-1.0), "grpo", record("grpo", 400), silent)
    assert not result.passes
    assert "sft has no greedy accuracy" in result.sentence
    write_gate(tmp_path / "job", result)
    assert "value_frac" not in json.loads((tmp_path / "job" / FILE).read_text())


def test_the_file_of_a_gate_has_the_number_that_a_graph_of_jobs_compares(tmp_path: Path) -> None:
    gate = StageGate(over="sft", by=0.02, bound="low")
    result = judge(gate, "grpo", record("grpo", 230), record("sft", 185))
    write_gate(tmp_path, result)
    body = json.loads((tmp_path / FILE).read_text())
    assert body["schema"] == "scalewright.stage-gate/1"
    assert (body[key_of_gate(gate)] >= gate.by) is result.passes is True
    assert Rate(value_frac=0.09, low_frac=body["low_frac"], high_frac=body["high_frac"]).low_frac < 0.09
