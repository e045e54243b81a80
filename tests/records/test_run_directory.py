"""The run directory: new, resumed, refused, and how an attempt ended."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.records.documents import document
from scalewright.records.run_directory import ExitInfo, RunDirectory, new_run_id

CONFIG = document("language-run", {"model_id": "gpt2-tiny", "steps": 5, "optimizer": {"learning_rate": 0.1}})


def ended(**changes: object) -> ExitInfo:
    whole = ExitInfo(code=3, reason="first", job="j", attempt=0, rank=1, last_checkpoint=None, time=1.0)
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_new_directory_holds_configuration_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "r1"
    RunDirectory.create_or_resume(path, CONFIG, plan_id="p", study_id="s")
    assert json.loads((path / "config.json").read_text()) == CONFIG
    run = json.loads((path / "run.json").read_text())
    assert run["schema"] == "scalewright.run/1"
    assert (run["id"], run["kind"], run["plan"], run["study"]) == ("r1", "language-run", "p", "s")


def test_same_configuration_resumes_and_another_is_refused_untouched(tmp_path: Path) -> None:
    RunDirectory.create_or_resume(tmp_path / "r", CONFIG)
    before = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}
    RunDirectory.create_or_resume(tmp_path / "r", dict(reversed(list(CONFIG.items()))))
    other = CONFIG | {"optimizer": {"learning_rate": 0.2}}
    with pytest.raises(ConfigError, match=r"optimizer.learning_rate is 0.1, not 0.2.*another --run-dir"):
        RunDirectory.create_or_resume(tmp_path / "r", other)
    assert {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()} == before


def test_folder_with_other_things_and_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"not empty \(thesis.tex\)"):
        RunDirectory.create_or_resume(tmp_path, CONFIG)
    with pytest.raises(ConfigError, match="is a file"):
        RunDirectory.create_or_resume(tmp_path / "thesis.tex", CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_start_that_was_killed_before_the_configuration_can_be_repeated(tmp_path: Path) -> None:
    RunDirectory.create_or_resume(tmp_path / "r", CONFIG)
    (tmp_path / "r" / "config.json").unlink()
    assert RunDirectory.create_or_resume(tmp_path / "r", CONFIG).config.exists()


def test_place_that_cannot_be_written_is_the_environments_fault() -> None:
    with pytest.raises(EnvironmentFailedError, match="cannot be written"):
        RunDirectory.create_or_resume(Path("/proc/scalewright-run"), CONFIG)


def test_opening_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run directory"):
        RunDirectory.open(tmp_path)


def test_second_launcher_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    directory = RunDirectory.create_or_resume(tmp_path / "r", CONFIG)
    with directory.held(), pytest.raises(ConfigError, match="another run is active"), directory.held():
        pass
    with directory.held():
        pass


def test_first_cause_of_an_attempt_stays(tmp_path: Path) -> None:
    directory = RunDirectory.create_or_resume(tmp_path / "r", CONFIG)
    assert directory.read_exit_info() is None
    directory.write_exit_info(ended())
    directory.write_exit_info(ended(reason="dragged down", rank=0))
    assert directory.read_exit_info() == ended()
    directory.write_exit_info(ended(reason="known cause"), is_cause=True)
    assert directory.read_exit_info() == ended(reason="known cause")


def test_next_attempt_replaces_the_end_of_the_one_before(tmp_path: Path) -> None:
    directory = RunDirectory.create_or_resume(tmp_path / "r", CONFIG)
    directory.write_exit_info(ended())
    directory.write_exit_info(ended(attempt=1, code=0, reason="finished"))
    info = directory.read_exit_info()
    assert info is not None
    assert info.finished


def test_broken_end_is_replaced(tmp_path: Path) -> None:
    directory = RunDirectory.create_or_resume(tmp_path / "r", CONFIG)
    directory.exit_info.write_text('{"schema": "scalewright.exit-info/1", "odd": 1}')
    directory.write_exit_info(ended())
    assert directory.read_exit_info() == ended()


def test_checkpoint_counts_once_its_manifest_is_there(tmp_path: Path) -> None:
    directory = RunDirectory.create_or_resume(tmp_path / "r", CONFIG)
    for step in (5, 10):
        directory.checkpoint(step).mkdir()
    assert directory.last_checkpoint() is None
    (directory.checkpoint(5) / "manifest.json").write_text("{}")
    assert directory.last_checkpoint() == directory.checkpoint(5)


def test_run_id_is_utc_time_and_a_slug() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert new_run_id("language GPT2/tiny 2", now=now) == "20260102T030405Z-language-gpt2-tiny-2"


def test_names_of_hosts_cannot_leave_the_folder(tmp_path: Path) -> None:
    path = RunDirectory(tmp_path).node_events("../../etc/x")
    assert path.resolve().parent == (tmp_path / "events").resolve()
