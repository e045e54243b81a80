"""Checkpoints as files: published by one rename, described by a manifest, verified by checksums, deleted by age.

A checkpoint is written under a hidden name. When every rank's files are on disk, the manifest with their sizes and
SHA-256 goes in, and the folder gets its real name: a reader sees a whole checkpoint or none. A
checkpoint that is deleted loses its real name first, for the same reason.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalewright.errors import DocumentError, EnvironmentFailedError
from scalewright.records.documents import digest, document, read_document, write_document
from scalewright.records.plain_file import open_plain
from scalewright.records.run_directory import MANIFEST, RunDirectory

KIND = "checkpoint"
DIGEST = "digest"
STEP_PREFIX = "step-"
SAVING, DELETING = ".saving-", ".deleting-"
READ_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """Size and checksum of a file in a checkpoint."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """Contents of a whole checkpoint."""

    step: int
    """Steps that were done when it was saved."""
    layout: str
    world_size: int
    state: dict[str, Any]
    """Numbers of the training state that are not tensors."""
    files: dict[str, FileSum]
    is_finite: bool = True
    """Whether every number of its tensors was finite. Others are never kept instead of one that is."""

    def document(self) -> dict[str, Any]:
        files = {name: {"bytes": f.num_bytes, "sha256": f.sha256} for name, f in sorted(self.files.items())}
        body = {
            "step": self.step,
            "created": datetime.now(UTC).isoformat(),
            "layout": self.layout,
            "world_size": self.world_size,
            "state": self.state,
            "files": files,
            "is_finite": self.is_finite,
        }
        return document(KIND, body | {DIGEST: digest(body)})


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest, if it is as it was written: by its own digest, and by the step in the folder's name."""
    doc = read_document(folder / MANIFEST, KIND)
    _check_digest(folder, doc)
    try:
        files = {n: FileSum(num_bytes=int(f["bytes"]), sha256=str(f["sha256"])) for n, f in doc["files"].items()}
        manifest = CheckpointManifest(
            step=int(doc["step"]),
            layout=str(doc["layout"]),
            world_size=int(doc["world_size"]),
            state=dict(doc["state"]),
            files=files,
            is_finite=doc.get("is_finite", True) is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DocumentError(
            f"{folder / MANIFEST}: is not a whole manifest ({error}); use another checkpoint"
        ) from error
    named = step_named(folder)
    if manifest.step < 0 or named not in (None, manifest.step):
        raise DocumentError(
            f"{folder / MANIFEST}: says step {manifest.step} in a folder named {folder.name}; use another checkpoint"
        )
    for name in manifest.files:
        if Path(name).name != name or name in ("", ".", ".."):
            raise DocumentError(f"{folder / MANIFEST}: names the file {name!r} elsewhere; use another checkpoint")
    return manifest


def _check_digest(folder: Path, doc: dict[str, Any]) -> None:
    body = {key: value for key, value in doc.items() if key not in ("schema", DIGEST)}
    if DIGEST not in doc:
        raise DocumentError(f"{folder / MANIFEST}: has no {DIGEST} of its content; use another checkpoint")
    if doc[DIGEST] != digest(body):
        raise DocumentError(f"{folder / MANIFEST}: was changed after it was written; use another checkpoint")


def step_named(folder: Path) -> int | None:
    """The step that a folder is named for; None if it has another name."""
    number = folder.name.removeprefix(STEP_PREFIX)
    return int(number) if number != folder.name and number.isdecimal() and len(number) < 19 else None


def file_sum(path: Path) -> FileSum:
    """Size and SHA-256 of a file, read back from where it was written."""
    total, sha = 0, hashlib.sha256()
    with open_plain(path) as file:
        while block := file.read(READ_BYTES):
            sha.update(block)
            total += len(block)
    return FileSum(num_bytes=total, sha256=sha.hexdigest())


def problem_with(folder: Path, manifest: CheckpointManifest, *, only: slice = slice(None)) -> str | None:
    """How the files differ from the manifest; None if they match. `only` selects a share, so ranks divide the work."""
    for name, expected in sorted(manifest.files.items())[only]:
        path = folder / name
        try:
            if path.stat().st_size != expected.num_bytes:
                return f"{name} has {path.stat().st_size} bytes, not {expected.num_bytes}"
            if file_sum(path) != expected:
                return f"{name} does not have the SHA-256 of the manifest"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        except DocumentError as error:
            return f"{name} cannot be read: {error}"
    return None


class CheckpointFolder:
    """The checkpoints of one run. One rank publishes and deletes; all ranks write and read."""

    def __init__(self, directory: RunDirectory, *, keep: int) -> None:
        self._directory, self._keep = directory, keep
        self.damaged: set[Path] = set()
        """Those that did not load in this process."""

    def saving(self, step: int) -> Path:
        """The hidden folder in which a checkpoint is written."""
        final = self._directory.checkpoint(step)
        return final.with_name(SAVING + final.name)

    def prepare(self, step: int) -> None:
        """Create the hidden folder of a save, after removing what killed saves left."""
        try:
            self._directory.checkpoints.mkdir(parents=True, exist_ok=True)
            for remnant in self._directory.checkpoints.glob(".*"):
                if remnant.name.startswith((SAVING, DELETING)):
                    shutil.rmtree(remnant, ignore_errors=True)
            self.saving(step).mkdir()
        except OSError as error:
            raise EnvironmentFailedError(
                f"{self._directory.checkpoints}: no checkpoint can be written: {error.strerror}; "
                "free space or choose another --run-dir"
            ) from error

    def publish(self, manifest: CheckpointManifest) -> Path:
        """Give a written checkpoint its name, then delete those that the policy drops."""
        hidden, final = self.saving(manifest.step), self._directory.checkpoint(manifest.step)
        write_document(hidden / MANIFEST, manifest.document())
        sync_folder(hidden)
        if final.exists():
            self._delete(final)  # an earlier attempt saved this step and was stopped right after
        hidden.rename(final)
        sync_folder(final.parent)
        for folder in self.superseded():
            self._delete(folder)
        return final

    def superseded(self) -> list[Path]:
        """Those that the policy drops: all before the last `keep` good ones, and all but the newest that is not finite.

        One that is damaged, or whose numbers are not finite, is no good one: it takes the place of none.
        """
        folders = self.newest_first()
        good = [folder for folder in folders if self._is_good(folder)]
        if len(good) > self._keep:
            oldest_kept = folders.index(good[self._keep - 1])
            dropped = folders[oldest_kept + 1 :]
        else:
            dropped = []
        others = [folder for folder in folders if folder not in good and folder not in dropped]
        return dropped + others[1:]

    def _is_good(self, folder: Path) -> bool:
        """By what is quickly seen: the manifest, the sizes of its files, and what loading showed."""
        if folder in self.damaged:
            return False
        try:
            manifest = read_manifest(folder)
            sizes = all((folder / name).stat().st_size == one.num_bytes for name, one in manifest.files.items())
        except (DocumentError, OSError):
            return False
        return sizes and manifest.is_finite

    def discard(self, step: int) -> None:
        shutil.rmtree(self.saving(step), ignore_errors=True)

    def newest_first(self) -> list[Path]:
        return [self._directory.checkpoint(step) for step in reversed(self._directory.checkpoint_steps())]

    def _delete(self, folder: Path) -> None:
        dying = folder.with_name(DELETING + folder.name)
        shutil.rmtree(dying, ignore_errors=True)
        folder.rename(dying)
        sync_folder(folder.parent)
        shutil.rmtree(dying, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Write a folder's names to disk: only then does a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
