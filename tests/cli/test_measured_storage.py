"""`--system here`: samples come from and checkpoints go to the storage that a calibration measured; else it says so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from calibration_cases import CPU_VALUES, GPU_VALUES, calibration, value
from scalewright.catalog import calibration as calibrations
from scalewright.catalog.calibration import Value
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.here.place import fingerprint_here, own_storage, place_of, versions_here

Here = Callable[..., subprocess.CompletedProcess[str]]
READS = (value("storage_read_bytes_per_s", 1e9, of="shards"), value("storage_files_per_s", 20.0))
SAVES = (
    value("checkpoint_bytes_per_s", 5e6, of="sync"),
    value("checkpoint_bytes_per_s", 4e6, of="async"),
    value("checkpoint_copy_bytes_per_s", 50e6),
)
SHAPE = "layers=2,hidden=64,heads=2,vocab=512,seq=64"
PREDICT = ("predict", "--model", SHAPE, "--layout", "mbs=4", "--system", "here")
PLAN = ("plan", "--model", SHAPE, "--global-batch", "8", "--gpus", "1", "--steps", "1000000", "--system", "here")


@pytest.fixture
def calibrated(here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    del here  # it has a home of its own
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # neither a scheduler nor a GPU's tool
    for name in ("SLURM_CLUSTER_NAME", "SCALEWRIGHT_SYSTEM"):
        monkeypatch.delenv(name, raising=False)

    def write(*more: Value) -> None:
        calibrations.write(calibration(*CPU_VALUES, *more, name="mine", fingerprint=fingerprint_here("cpu"),
                                       versions=versions_here()))  # fmt: skip

    return write


def test_a_step_waits_for_the_storage_that_was_measured(here: Here, calibrated: Callable[..., None]) -> None:
    calibrated(*READS, *SAVES)
    shards, files = (json.loads(here(*PREDICT, "--json", *more).stdout) for more in ((), ("--samples", "files")))
    assert shards["input"]["storage"] == "measured-mine"
    assert shards["data_wait_s"] == 0.0
    # 4 samples a step of 20 files a second, prepared beside a step that takes far less
    assert files["step_time_s"] == pytest.approx(4 / 20.0)
    assert "from measured-mine" in here(*PREDICT).stdout


def test_an_epoch_of_images_reads_from_the_storage_that_was_measured(
    here: Here, calibrated: Callable[..., None]
) -> None:
    calibrated(value("storage_read_bytes_per_s", 1.1e6, of="shards"), value("storage_files_per_s", 20.0))
    ask = ("predict", "--model", "resnet-50", "--layout", "mbs=4", "--system", "here")
    body = json.loads(here(*ask, "--json").stdout)
    assert body["loader_limit"] == "storage"
    assert body["loader_images_per_s"] == pytest.approx(1.1e6 / 110e3)
    assert body["epoch_images_per_s"] == pytest.approx(min(body["images_per_s"], body["loader_images_per_s"]))
    assert body["epoch_time_s"] == pytest.approx(1_281_167 / body["epoch_images_per_s"], rel=1e-3)
    assert "reading from measured-mine" in " ".join(here(*ask).stdout.split())


def test_a_vision_step_waits_for_it_where_it_is_named(here: Here, calibrated: Callable[..., None]) -> None:
    calibrated(*READS)
    ask = ("predict", "--model", "resnet-50", "--layout", "mbs=4", "--system", "here", "--json")
    ready = json.loads(here(*ask).stdout)
    files = json.loads(here(*ask, "--storage", "here", "--samples", "files").stdout)
    assert ready["input"]["storage"] is None
    assert files["input"]["storage"] == "measured-mine"


def test_checkpoints_cost_what_saves_were_measured_to(here: Here, calibrated: Callable[..., None]) -> None:
    calibrated(*READS, *SAVES)
    run = json.loads(here(*PLAN, "--json").stdout)["whole_run"]
    saved = run["checkpoint"]
    assert saved["storage"] == "measured-mine"
    assert saved["write_s"] == pytest.approx(saved["size_bytes"] / 5e6)
    assert saved["stall_s"] == pytest.approx(saved["size_bytes"] / 50e6)
    assert any("written at 5.00 MB/s: measured, calibration mine" in note for note in run["notes"])
    calibrated(*READS, value("checkpoint_bytes_per_s", 5e6, of="sync"))
    slower = json.loads(here(*PLAN, "--json").stdout)["whole_run"]["checkpoint"]
    assert slower["stall_s"] == pytest.approx(saved["write_s"])  # no copy was measured: training waits for the disk
    assert slower["every_s"] > saved["every_s"]


def test_what_was_not_measured_is_said_and_stays_the_catalogues(here: Here, calibrated: Callable[..., None]) -> None:
    calibrated()
    plan, text = json.loads(here(*PLAN, "--json").stdout), " ".join(here(*PREDICT).stdout.split())
    assert plan["whole_run"]["checkpoint"]["storage"] == "nvme-gen4"
    assert "calibration mine measured no reads and no saves: nvme-gen4 of the catalogue is used" in text
    calibrated(*READS)
    partly = json.loads(here(*PREDICT, "--json").stdout)
    assert any("measured no saves: nvme-gen4" in note for note in partly["warnings"])
    refused = here("predict", "--model", SHAPE, "--layout", "mbs=4", "--system", "laptop", "--storage", "here")
    assert refused.returncode == 2
    assert "no storage was measured on laptop" in refused.stderr


def test_several_nodes_do_not_have_the_storage_of_one(calibrated: Callable[..., None]) -> None:
    calibrated()
    catalog = Catalog((packaged_data(),))
    calibrations.write(calibration(*GPU_VALUES, *READS, *SAVES, name="h200s", device="cuda"))
    place = place_of(catalog, "h200s")
    one, many = (place.storage_of(catalog, num_gpus=nodes * place.machine.gpus_per_node) for nodes in (1, 2))
    assert one is not None
    assert one.id == "measured-h200s"
    assert many == own_storage(catalog, place.system)
