"""A language run is made ready: a model too large for copies alone is split, and a resumed run keeps its split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.launch.prepare.language_setup import LanguageRequest, prepare
from scalewright.launch.prepare.outlook import RunTooLargeError
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.model import from_catalog

CATALOG = Catalog((packaged_data(),))
LARGE = LanguageRequest(
    spec=from_catalog(CATALOG.model("megatron-22b")), ranks=16, layout=None, device="cpu", precision="bf16", seq_len=0,
    scaling="given", options={"steps": 10},
)  # fmt: skip


def test_model_that_copies_do_not_hold_is_split_and_fits(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r")
    ready = prepare(CATALOG, LARGE, directory, system="selene", budget_s=1e6)
    assert int(ready.config.layout.num_gpus) == 16
    assert int(ready.config.layout.dp) < 16 or ready.config.layout.zero == 3
    assert ready.outlook is not None
    assert ready.outlook.prediction.fits
    assert not directory.path.exists()


def test_resumed_run_keeps_the_split_that_was_chosen(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r")
    first = prepare(CATALOG, LARGE, directory, system="selene", budget_s=1e6)
    RunDirectory.create_or_resume(directory.path, first.config.document())
    again = prepare(CATALOG, LARGE, directory, system="generic-h200", budget_s=1e6)
    assert again.config == replace(first.config, shape=again.config.shape)
    assert directory.holds(again.config.document())


def test_layout_that_was_given_is_kept_and_refused_where_it_does_not_fit(tmp_path: Path) -> None:
    given = replace(LARGE, layout="dp=16,mbs=1")
    with pytest.raises(RunTooLargeError, match=r"megatron-22b does not fit in memory .*largest preset that fits is"):
        prepare(CATALOG, given, RunDirectory(tmp_path / "r"), system="selene", budget_s=1e6)


def test_several_nodes_without_a_name_run_without_a_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    ready = prepare(CATALOG, LARGE, RunDirectory(tmp_path / "r"), system=None, budget_s=600.0)
    assert ready.outlook is None
    assert "--system" in ready.note
