"""The Python interface as a notebook meets it: what it loads, what it returns, how it shows itself, what it refuses."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import RememberedCli

import scalewright as sw
import scalewright.catalog
from scalewright.catalog.types import KINDS

Cli = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "pydantic", "rich", "typer", "torch", "pandas", "matplotlib")


def loaded_by(statements: str) -> list[str]:
    """Modules that a fresh interpreter has after the statements."""
    code = f"{statements}; import sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def test_importing_the_package_loads_nothing_else() -> None:
    modules = loaded_by("import scalewright as sw; sw.__version__; dir(sw)")
    assert [name for name in modules if name.partition(".")[0] in HEAVY] == []
    assert [name for name in modules if name.startswith("scalewright.")] == []


def test_a_question_to_the_catalogue_loads_no_torch_and_no_plots() -> None:
    modules = loaded_by("import scalewright as sw; repr(sw.catalog.systems)")
    assert [name for name in modules if name.partition(".")[0] in ("torch", "pandas", "matplotlib")] == []


def test_every_name_of_the_interface_is_there_and_documented() -> None:
    for name in sw.__all__:
        assert getattr(sw, name) is not None
    for name in ("predict", "predict_many", "plan", "validate", "layouts"):
        assert getattr(sw, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'predicted'"):
        _ = sw.predicted  # type: ignore[attr-defined]


def test_rooms_that_are_called_are_still_rooms() -> None:
    import scalewright.lint.engine
    import scalewright.study.points

    assert scalewright.lint.engine.known_rules()
    assert scalewright.study.points.open_study
    assert callable(sw.lint)
    assert callable(sw.study)


def test_kinds_of_the_catalogue_are_tables_and_hide_no_module() -> None:
    assert set(KINDS) <= set(scalewright._CATALOG_NAMES)  # type: ignore[attr-defined]
    modules = {info.name for info in pkgutil.iter_modules(scalewright.catalog.__path__)}
    assert not modules & set(scalewright._CATALOG_NAMES)  # type: ignore[attr-defined]
    systems = sw.catalog.systems
    assert sw.catalog.systems() == systems
    assert "leonardo" in systems
    assert "leonardo" in systems._repr_html_()
    assert systems["leonardo"]["booster.num_nodes"] == 3456
    assert next(iter(systems.columns())) == "id"
    with pytest.raises(AttributeError, match="choose accelerators"):
        _ = sw.catalog.sistems


def test_entries_are_found_and_compared_as_the_command_does(cli: Cli) -> None:
    ratios = json.loads(cli("catalog", "compare", "h100-sxm", "a100-sxm-80gb", "--json").stdout)["ratios"]
    columns = sw.catalog.compare("h100-sxm", "a100-sxm-80gb").columns()
    given = dict(zip(columns["figure"], columns["ratio"], strict=True))
    assert given["memory_bandwidth"] == pytest.approx(ratios["memory_bandwidth"])
    with pytest.raises(sw.ConfigError) as caught:
        sw.catalog.find("h100-sxn")
    assert f"error: {caught.value}\n" == cli("catalog", "h100-sxn").stderr


def test_lint_takes_a_path_or_a_text_and_says_what_the_command_says(cli: Cli, tmp_path: Path) -> None:
    script = ROOT / "docs" / "examples" / "inherited.sbatch"
    by_path, by_text = (sw.lint(given, site="leonardo") for given in (script, script.read_text()))
    printed = json.loads(cli("lint", str(script), "--site", "leonardo", "--json").stdout)
    assert by_path.document() == printed
    assert by_path.rules == by_text.rules
    assert by_path[0].line == by_path.columns()["line"][0]
    fixed = tmp_path / "fixed.sbatch"
    fixed.write_text(by_path.fixed())
    assert len(sw.lint(fixed, site="leonardo")) < len(by_path)
    assert by_path.diff().startswith("---")
    assert by_path[0].rule in by_path._repr_html_()


def test_a_clean_script_says_so() -> None:
    report = sw.lint("#!/bin/bash\necho hello\n", select=["no-time"])
    assert "no findings" in repr(report)
    assert "no findings" in report._repr_html_()


def test_lint_refuses_as_the_command_does(cli: Cli, tmp_path: Path) -> None:
    missing = tmp_path / "none.sh"
    with pytest.raises(sw.ConfigError) as caught:
        sw.lint(missing)
    assert cli("lint", str(missing)).stderr == f"error: {caught.value}\n"


def test_text_of_a_script_cannot_inject_html() -> None:
    report = sw.lint("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --parition=<img src=x>\nsrun python train.py\n")
    assert "<img" not in report._repr_html_()


def test_validation_has_the_rows_and_scores_of_the_command(remembered_cli: RememberedCli) -> None:
    validation = sw.validate()
    printed = json.loads(remembered_cli("validate", "--json").stdout)
    assert validation.scores == printed["overall"]
    assert len(validation.columns()["id"]) == printed["overall"]["num_rows"]
    assert "Korthikanti 2022" in validation._repr_html_()


def test_a_study_is_predicted_as_the_command_does(cli: Cli) -> None:
    study = sw.study("interconnect")
    report = study.predict()
    printed = json.loads(cli("study", "predict", "interconnect", "--json").stdout)
    assert [point["predicted"] for point in report.document()["points"]] == [
        {name: vars_of(number) for name, number in point["predicted"].items()} for point in printed["points"]
    ]
    assert len(study) == len(printed["points"])
    assert len(report.columns()["problem"]) == len(study)
    assert study.study.file.title in study._repr_html_()
    assert report.report.title in report._repr_html_()


def vars_of(number: dict[str, object]) -> dict[str, object]:
    return dict(number)


def test_a_misspelt_study_is_refused_as_the_command_does(cli: Cli) -> None:
    with pytest.raises(sw.ConfigError) as caught:
        sw.study("storge")
    assert cli("study", "predict", "storge").stderr == f"error: {caught.value}\n"


def test_columns_become_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = sw.catalog.accelerators.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert "h100-sxm" in set(frame["id"])
