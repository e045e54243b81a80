"""Stored runs of other training programs: the stored errors are today's, and a cut-off file of rows is gone on with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scalewright.catalog.calibration import Calibration
from scalewright.catalog.library import Catalog, packaged_data

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("engines_fit", "engines_h200"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def programs(benchmarks: None) -> dict[str, Any]:
    import engines_fit

    rows = [json.loads(line) for line in engines_fit.ROWS.read_text().splitlines()]
    base = Calibration.model_validate_json(engines_fit.BASE.read_text())
    return dict(engines_fit.judged(Catalog((packaged_data(),)), base, rows))


def test_stored_errors_are_those_of_todays_model(programs: dict[str, Any]) -> None:
    import engines_fit

    stored = json.loads(engines_fit.FITS.read_text())
    assert programs.keys() == stored.keys()
    for name, program in programs.items():
        for now, then in zip(program["runs"], stored[name]["runs"], strict=True):
            assert now["label"] == then["label"]
            for key in engines_fit.KEYS:
                assert now[key] == pytest.approx(then[key], abs=2e-3), (
                    f"{name} {now['label']} {key}: run benchmarks/engines_fit.py --write"
                )


def test_factors_of_another_program_do_better_than_none(programs: dict[str, Any]) -> None:
    """Runs that no factor was fitted to: within 30 %, and within 20 % when only one run is left out."""
    runs = [run for program in programs.values() for run in program["runs"] if run["other_program"] is not None]
    assert len(runs) == 7
    for run in runs:
        assert abs(run["other_program"]) < 0.3 < abs(run["before"])
        assert abs(run["left_out_held"]) < 0.2


def test_factors_of_the_catalogue_are_those_of_the_fit(programs: dict[str, Any]) -> None:
    shipped = Catalog((packaged_data(),)).stack("eager").engine_factors["deepspeed"]
    fitted = programs["deepspeed"]["factors"]
    assert shipped.host.value == pytest.approx(fitted["host"]["factor"], abs=0.01)
    assert shipped.elementwise.value == pytest.approx(fitted["elementwise"]["factor"], abs=0.01)
    assert shipped.update is not None
    assert shipped.update.value == pytest.approx(fitted["update"]["factor"], abs=0.01)


def test_rows_that_a_file_has_are_not_measured_again(benchmarks: None, tmp_path: Path) -> None:
    import engines_h200

    run = {"kind": "run", "engine": "trl", "model": "a", "settings": ["x=1"], "measured_s": 0.1}
    own = {"kind": "own", "model": "a", "compile": "off", "measured_s": 0.1}
    out = tmp_path / "rows.jsonl"
    out.write_text(f"{json.dumps(run)}\n{json.dumps(own)}\n{json.dumps(run)[:30]}")
    assert len(engines_h200.rows_of(out)) == 2
    assert engines_h200.known_runs(out) == {("run", "trl", "a", "x=1"), ("own", "a", "off")}
    assert engines_h200.known_runs(tmp_path / "absent.jsonl") == set()
