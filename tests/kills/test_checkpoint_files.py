"""Checkpoints on disk: published whole, verified, kept by policy, refused when damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewright.errors import DocumentError, EnvironmentFailedError
from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint_files import CheckpointFolder, CheckpointManifest, file_sum, problem_with, read_manifest


def save(directory: RunDirectory, step: int, *, keep: int = 2) -> Path:
    folder = CheckpointFolder(directory, keep=keep)
    folder.prepare(step)
    part = folder.saving(step) / "__0_0.distcp"
    part.write_bytes(b"weights" * step)
    assert step not in directory.checkpoint_steps()
    files = {part.name: file_sum(part)}
    return folder.publish(
        CheckpointManifest(step=step, layout="dp=1", world_size=1, state={"num_updates": step}, files=files)
    )


def test_newest_are_kept_and_nothing_else_is_left(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for step in (10, 20, 30, 40):
        save(directory, step)
    assert directory.checkpoint_steps() == [30, 40]
    assert sorted(p.name for p in directory.checkpoints.iterdir()) == ["step-00000030", "step-00000040"]


def test_manifest_comes_back(tmp_path: Path) -> None:
    folder = save(RunDirectory(tmp_path), 7)
    manifest = read_manifest(folder)
    assert (manifest.step, manifest.state, list(manifest.files)) == (7, {"num_updates": 7}, ["__0_0.distcp"])
    assert problem_with(folder, manifest) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    folder = save(RunDirectory(tmp_path), 7)
    part, manifest = folder / "__0_0.distcp", read_manifest(folder)
    if damage == "remove":
        part.unlink()
    else:
        content = part.read_bytes()
        part.write_bytes(content[:-1] if damage == "cut" else content[:-1] + b"X")
    assert "__0_0.distcp" in (problem_with(folder, manifest) or "")


def test_half_a_manifest_is_refused(tmp_path: Path) -> None:
    folder = save(RunDirectory(tmp_path), 7)
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(DocumentError):
        read_manifest(folder)


def test_what_a_killed_save_left_is_cleared(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    left = CheckpointFolder(directory, keep=2)
    left.prepare(5)
    (left.saving(5) / "__0_0.distcp").write_bytes(b"half")
    save(directory, 6)
    assert [p.name for p in directory.checkpoints.iterdir()] == ["step-00000006"]


def test_a_folder_that_cannot_be_written_is_the_environments_fault(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file in the way")
    with pytest.raises(EnvironmentFailedError, match="no checkpoint can be written"):
        save(RunDirectory(tmp_path), 1)


def publish(directory: RunDirectory, step: int, *, is_finite: bool = True, damaged: bool = False) -> Path:
    folder = CheckpointFolder(directory, keep=2)
    folder.prepare(step)
    part = folder.saving(step) / "__0_0.distcp"
    part.write_bytes(b"weights" * step)
    files = {part.name: file_sum(part)}
    final = folder.publish(
        CheckpointManifest(step=step, layout="dp=1", world_size=1, state={}, files=files, is_finite=is_finite)
    )
    if damaged:
        (final / "__0_0.distcp").write_bytes(b"cut")
    return final


def test_no_finite_checkpoint_is_dropped_for_one_that_is_not(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for step in (1, 2):
        publish(directory, step)
    for step in (3, 4, 5, 6):
        publish(directory, step, is_finite=False)
    assert directory.checkpoint_steps() == [1, 2, 6]
    publish(directory, 7)
    publish(directory, 8)
    assert directory.checkpoint_steps() == [7, 8]


def test_a_damaged_checkpoint_takes_no_place(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    publish(directory, 1)
    publish(directory, 2, damaged=True)
    publish(directory, 3)
    assert directory.checkpoint_steps() == [1, 2, 3]
    publish(directory, 4)
    assert directory.checkpoint_steps() == [3, 4]


@pytest.mark.parametrize("key", ["step", "state", "files", "world_size", "is_finite"])
def test_a_manifest_that_was_changed_is_refused(tmp_path: Path, key: str) -> None:
    folder = save(RunDirectory(tmp_path), 7)
    path = folder / "manifest.json"
    doc = json.loads(path.read_text())
    doc[key] = {"step": 204, "state": {"num_updates": 204}, "files": {}, "world_size": 4, "is_finite": False}[key]
    path.write_text(json.dumps(doc))
    with pytest.raises(DocumentError, match="was changed after it was written"):
        read_manifest(folder)


def test_a_manifest_without_its_digest_is_refused(tmp_path: Path) -> None:
    folder = save(RunDirectory(tmp_path), 7)
    path = folder / "manifest.json"
    doc = json.loads(path.read_text())
    del doc["digest"]
    path.write_text(json.dumps(doc))
    with pytest.raises(DocumentError, match="has no digest of its content"):
        read_manifest(folder)


def test_a_manifest_in_the_folder_of_another_step_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    folder = save(directory, 7)
    folder.rename(directory.checkpoint(204))
    with pytest.raises(DocumentError, match="says step 7 in a folder named step-00000204"):
        read_manifest(directory.checkpoint(204))
