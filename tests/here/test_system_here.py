"""What --system means: a catalogued name, a calibration, or the machine at hand, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from calibration_cases import CPU_VALUES, calibration
from scalewright.catalog import calibration as calibrations
from scalewright.catalog.calibration import Calibration
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import ConfigError, DocumentError
from scalewright.here.place import (
    base_system,
    calibrated_here,
    default_name,
    fingerprint_here,
    place_of,
    versions_here,
)

CATALOG = Catalog((packaged_data(),))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [n for n in os.environ if n.startswith(("SLURM", "SCALEWRIGHT_"))]:
        monkeypatch.delenv(name)
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))  # neither a scheduler nor a GPU's tool
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def of_this_machine(name: str = "mine", **more: object) -> Calibration:
    here = {"fingerprint": fingerprint_here("cpu"), "versions": versions_here(), "name": name}
    return calibration(*CPU_VALUES, **(here | more))  # type: ignore[arg-type]


def test_here_is_the_newest_matching_calibration() -> None:
    calibrations.write(of_this_machine("old", created="2026-01-01T00:00:00Z"))
    calibrations.write(of_this_machine("new", created="2026-06-01T00:00:00Z"))
    calibrations.write(calibration(*CPU_VALUES, name="other"))
    place = place_of(CATALOG, "here")
    assert place.calibration is not None
    assert (place.calibration.name, place.system, place.machine.confidence) == ("new", "laptop", "calibrated")
    assert "calibration new of 2026-06-01" in place.basis


def test_here_without_anything_lists_who_we_could_be() -> None:
    calibrations.write(calibration(*CPU_VALUES, name="other"))
    with pytest.raises(ConfigError, match=r"other \(it was made with .*laptop") as refused:
        place_of(CATALOG, "here")
    assert refused.value.exit_code == 2
    assert calibrated_here(CATALOG, num_ranks=1, device="cpu") is None


def test_the_variable_comes_first_and_may_name_either_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    calibrations.write(of_this_machine("mine"))
    monkeypatch.setenv("SCALEWRIGHT_SYSTEM", "lumi")
    assert place_of(CATALOG, "here").system == "lumi"
    monkeypatch.setenv("SCALEWRIGHT_SYSTEM", "mine")
    assert place_of(CATALOG, "here").machine.confidence == "calibrated"


def test_here_refuses_a_calibration_of_another_machine_or_version(monkeypatch: pytest.MonkeyPatch) -> None:
    calibrations.write(calibration(*CPU_VALUES, name="other"))
    monkeypatch.setenv("SCALEWRIGHT_SYSTEM", "other")
    with pytest.raises(ConfigError, match="not this machine as it is now"):
        place_of(CATALOG, "here")
    assert place_of(CATALOG, "other").machine.confidence == "calibrated"  # by name it is that machine
    calibrations.write(of_this_machine("aged", versions=versions_here() | {"torch": "1.0"}))
    monkeypatch.setenv("SCALEWRIGHT_SYSTEM", "aged")
    with pytest.raises(ConfigError, match=r"torch 1\.0, not"):
        place_of(CATALOG, "here")


def test_the_schedulers_cluster_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "Leonardo")
    assert place_of(CATALOG, "here").system == "leonardo"
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "nowhere")
    with pytest.raises(ConfigError, match="'nowhere' is not catalogued"):
        place_of(CATALOG, "here")


def test_partition_and_transport_of_a_calibration_are_its_own() -> None:
    calibrations.write(of_this_machine())
    with pytest.raises(ConfigError, match="leave --partition out"):
        place_of(CATALOG, "mine", partition="gpu")
    with pytest.raises(ConfigError, match="leave --transport out"):
        place_of(CATALOG, "mine", transport="tcp")


def test_a_cpu_refines_the_plain_machine_and_a_gpu_the_nodes_that_have_it() -> None:
    cpu = fingerprint_here("cpu")
    assert base_system(CATALOG, cpu, None) == ("laptop", "local")
    assert default_name(CATALOG, cpu) == f"cpu-{cpu.num_cores}-cores"
    h200 = calibration(device="cuda").fingerprint
    assert base_system(CATALOG, h200, None) == ("generic-h200", "gpu")
    assert default_name(CATALOG, h200) == "h200-sxm-x1"
    unknown = h200.model_copy(update={"name": "Abacus 3000"})
    with pytest.raises(ConfigError, match="name the system to refine"):
        base_system(CATALOG, unknown, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "scalewright.calibration/2"}, "newer"),
        ({"schema": "scalewright.plan/1"}, "is a plan document"),
        ({"colour": "blue"}, "unknown key 'colour'"),
        ({"name": "another"}, "must be the file's name"),
        ({"budget_s": -1}, "budget_s"),
        ({"residuals": [{"name": n, "factor": 1, "low": 1, "high": 1} for n in
                        ("products", "host", "norms", "elementwise")]}, "residuals"),
    ],
)  # fmt: skip
def test_files_are_read_strictly(own_home: Path, change: dict[str, object], words: str) -> None:
    path = calibrations.write(of_this_machine())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DocumentError, match=words) as refused:
        calibrations.load("mine")
    assert "\n" not in str(refused.value)
    assert calibrations.matching(fingerprint_here("cpu"), versions_here()) == []  # a broken file is nobody's


@pytest.mark.parametrize("name", ["here", "../up", "Upper", "", "a b", "x" * 65])
def test_names_that_would_not_be_files_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        calibrations.check_name(name)


def test_a_file_survives_the_way_to_the_disk_and_back() -> None:
    line = {"op": "all-reduce", "dtype": "fp32", "num_ranks": 2, "num_nodes": 1, "from_bytes": 0, "alpha_s": 1e-5,
            "bytes_per_s": 1e9}  # fmt: skip
    made = of_this_machine(collectives=[line])
    calibrations.write(made)
    assert calibrations.load("mine") == made
    assert calibrations.load("mine").id == made.id
