"""The files that a launch writes into a run directory: if nothing is submitted, the folder is as it was before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scalewright.errors import ScalewrightError
from scalewright.launch.graph.manifest import BusyError, LaunchFolder
from scalewright.launch.slurm.sbatch import NoJobIdError
from scalewright.records.run_directory import RunDirectory
from scalewright.sites.scheduler import SchedulerAwayError


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderBefore:
    """What was there before a launch, of the files and folders that it may write."""

    contents: dict[Path, bytes | None]
    """Content of each file; None: there was none."""
    missing: tuple[Path, ...]
    """Folders that did not exist, the innermost first."""

    @classmethod
    def of(cls, directory: RunDirectory, more: Iterable[Path]) -> FolderBefore:
        jobs = LaunchFolder(directory.path)
        files = [
            directory.run, directory.config, directory.plan, directory.prediction, directory.script,
            directory.preflight_request, jobs.manifest, jobs.journal, jobs.graph, jobs.lock, *more,
        ]  # fmt: skip
        folders = {directory.logs, directory.events, directory.checkpoints}
        folders |= {folder for file in files for folder in file.parents}
        missing = sorted((f for f in folders if not f.exists()), key=lambda f: len(f.parts), reverse=True)
        contents = {file: file.read_bytes() if file.is_file() else None for file in files}
        return cls(contents=contents, missing=tuple(missing))

    def restore(self) -> None:
        """Put the files back. A folder that somebody else has put something into stays."""
        for file, content in self.contents.items():
            if content is None:
                file.unlink(missing_ok=True)
            elif not file.is_file() or file.read_bytes() != content:
                file.write_bytes(content)
        for folder in self.missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def kept_if_submitted(directory: RunDirectory, more: Iterable[Path] = ()) -> Iterator[None]:
    """Undo what the block writes if it fails; `more` are further files of it.

    If the scheduler gives no answer, it may have accepted the job, and if another launch works in the folder, the files
    may be its own: then they stay.
    """
    before = FolderBefore.of(directory, more)
    try:
        yield
    except (SchedulerAwayError, NoJobIdError, BusyError):
        raise
    except (ScalewrightError, OSError):
        with contextlib.suppress(OSError):  # the cause is reported, not that a full disk keeps its files
            before.restore()
        raise
