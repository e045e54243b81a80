"""The table of gains over seeds: ratios at equal trained tokens, and the paired difference of accuracy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import c3po_gain

from scalewright.records.reasoning import CurvePoint, append_row, curve_writer
from scalewright.records.run_directory import RunDirectory


def row(seed: int, *, rollout: float, marks: tuple[str, str]) -> str:
    ways = [
        {"accuracy_frac": m.count("1") / len(m), "sampled_frac": 0.5, "marks": m, "wasted_frac": 0.01,
         "staleness_mean": 1.5, "staleness_max": 5}
        for m in marks
    ]  # fmt: skip
    gain = {"figure": "gain", "seed": seed, "rollout_gain": rollout, "whole_gain": 1.4, "num_equal_tokens": 1000.0,
            "all_done": ways[0], "budget": ways[1], "accuracy_rise": [0.25, 0.0, 0.5]}  # fmt: skip
    return json.dumps({"figure": "decode_step"}) + "\n" + json.dumps(gain) + "\n"


def test_the_table_has_gains_and_accuracy_with_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{seed}.jsonl" for seed in range(3)]
    for seed, path in enumerate(paths):
        path.write_text(row(seed, rollout=1.9 + 0.1 * seed, marks=("1100", "1110")))
    c3po_gain.show(paths)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 0: rollout 1.90x, whole 1.40x at 1000 tokens; all done 0.500 greedy")
    assert "rollout gain, 95 % over 3 seeds: 2.00 (1.75 to 2.25)" in lines
    assert "all_done: greedy 0.500 (0.254 to 0.746)" in lines
    assert any(line.startswith("accuracy of the budget minus all-done: +0.250") for line in lines)


def test_times_are_summed_over_the_parts_of_steps(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    writer = curve_writer(directory, first_step=0)
    for step, num_tokens in enumerate((0, 30, 50)):
        seconds = {"generation": 2.0, "training": 1.0, "evaluation": 9.0}
        append_row(writer, CurvePoint(step=step, num_tokens=num_tokens, seconds_by_part=seconds).row())
    writer.close()
    columns = c3po_gain.cumulative(tmp_path, num_warm_up=0)
    assert columns["tokens"].tolist() == [0, 0, 30, 80]
    assert columns["rollout_s"].tolist() == [0, 2, 4, 6]
    assert float(np.interp(55.0, columns["tokens"], columns["whole_s"])) == pytest.approx(7.5)


def test_steps_that_compile_do_not_count(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    writer = curve_writer(directory, first_step=0)
    for step, generation_s in enumerate((90.0, 2.0, 2.0, 50.0, 2.0)):
        append_row(writer, CurvePoint(step=step, num_tokens=10, seconds_by_part={"generation": generation_s}).row())
    writer.close()
    columns = c3po_gain.cumulative(tmp_path, num_warm_up=1)
    assert columns["whole_s"].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert columns["tokens"].tolist() == [0.0, 10.0, 20.0, 30.0]
