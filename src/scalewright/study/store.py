"""The folder of a study's results: which study it is, its run directories, and one writer at a time.

study.json                   which study, from which file, by which version
points.json                  every point: its id, labels and what it resolves to
runs/POINT/repeat-N/         a run directory for each time a point was measured
pipeline.json                stages of a pipeline: their points, gates and sizes
problems/POINT-repeat-N.json why a point could not be started
jobs/NNNN/                   a launch folder for each time that points were submitted as jobs
report/                      what `study report` writes
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalewright import __version__
from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError
from scalewright.records.documents import document, read_document, write_document
from scalewright.records.loader import restore, stored
from scalewright.records.named_path import NamedPath
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import Point
from scalewright.study.expressions import Value
from scalewright.study.pipeline.stages import PlannedPipeline, references, with_folders
from scalewright.study.points import Study

KIND = "study-results"
PIPELINE = "study-pipeline"


@dataclass(frozen=True, slots=True)
class Store:
    """Results of one study."""

    path: Path

    study = NamedPath("study.json")
    points = NamedPath("points.json")
    pipeline = NamedPath("pipeline.json")
    report = NamedPath("report")
    jobs = NamedPath("jobs")

    def run(self, point: Point, repeat: int) -> RunDirectory:
        return self.run_of(point.id, repeat)

    def run_of(self, point: str, repeat: int) -> RunDirectory:
        """The run directory of a point by its id."""
        return RunDirectory(self.path / "runs" / point / f"repeat-{repeat}")

    def problem(self, point: Point, repeat: int) -> Path:
        return self.path / "problems" / f"{point.id}-repeat-{repeat}.json"

    @classmethod
    def create_or_resume(cls, path: Path, study: Study) -> Store:
        """A new folder, or the one that holds this study. Another study, or the same with other points, is refused."""
        store = cls(path)
        if store.study.exists():
            store.check(study)
            store._write_pipeline(study)  # gates may have changed: they are no part of a point
            return store
        if path.is_file():
            raise ConfigError(f"{path}: is a file: name a folder with --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
            strangers = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
        except OSError as error:
            raise EnvironmentFailedError(
                f"{path}: results cannot be written: {error.strerror}; choose another folder with --out"
            ) from error
        if strangers:
            raise ConfigError(f"{path}: is not empty ({strangers[0]}) and holds no study: choose another --out")
        write_document(store.points, document("study-points", {"points": [_point(p) for p in study.points]}))
        store._write_pipeline(study)
        body = {
            "study": study.file.id,
            "id": study.id,
            "title": study.file.title,
            "file": str(study.path.resolve()),
            "scalewright": __version__,
            "created": datetime.now(UTC).isoformat(),
        }
        write_document(store.study, document(KIND, body))  # last: with it the folder counts as a study's
        return store

    @classmethod
    def open(cls, path: Path) -> Store:
        store = cls(path)
        if not store.study.is_file():
            raise ConfigError(
                f"{path}: holds no results of a study, because it has no {store.study.name}: check the path"
            )
        return store

    def check(self, study: Study) -> None:
        results = read_document(self.study, KIND)
        if results.get("study") != study.file.id:
            raise ConfigError(
                f"{self.path}: holds results of the study {results.get('study')!r}, not of {study.file.id!r}: "
                "choose another folder with --out"
            )
        if results.get("id") != study.id:
            raise ConfigError(
                f"{self.path}: holds results of {study.file.id!r} with other points: the study file has changed; "
                "choose another folder with --out, or undo the change"
            )

    def _write_pipeline(self, study: Study) -> None:
        if study.pipeline is not None:
            write_document(self.pipeline, document(PIPELINE, stored(study.pipeline)))

    def read_pipeline(self) -> PlannedPipeline | None:
        """The stages of a pipeline as they were run last; None if the study has none."""
        if not self.pipeline.exists():
            return None
        body = {key: value for key, value in read_document(self.pipeline, PIPELINE).items() if key != "schema"}
        return restore(body, PlannedPipeline, where=str(self.pipeline))

    def options_of(self, options: Mapping[str, Value], repeat: int) -> dict[str, Value]:
        """Options of a point with the run directory in place of every point that they name."""
        folders = {point: str(self.run_of(point, repeat).path.resolve()) for point in references(options)}
        return with_folders(options, folders)

    def read_points(self) -> list[Point]:
        """Every point, as it was when the results were started."""
        study = str(read_document(self.study, KIND).get("study", ""))
        rows = read_document(self.points, "study-points").get("points", [])
        try:
            return [Point(id=r["id"], study=study, labels=r["labels"], resolved=r["resolved"]) for r in rows]
        except (KeyError, TypeError) as error:
            raise DocumentError(
                f"{self.points}: is incomplete ({error!r}): choose another folder with --out"
            ) from error

    def is_finished(self, point: Point, repeat: int) -> bool:
        """Whether that repeat was measured to its end."""
        run = self.run(point, repeat)
        info = run.read_exit_info() if run.config.exists() else None
        return info is not None and info.finished

    def write_problem(self, point: Point, repeat: int, reason: str) -> None:
        body = {"point": point.id, "repeat": repeat, "reason": reason, "time": datetime.now(UTC).isoformat()}
        write_document(self.problem(point, repeat), document("study-problem", body))

    def read_problem(self, point: Point, repeat: int) -> str:
        """Why it could not start; empty if it could, or was never tried."""
        path = self.problem(point, repeat)
        try:
            return str(read_document(path, "study-problem").get("reason", "")) if path.exists() else ""
        except DocumentError as error:
            return str(error)

    def is_held(self) -> bool:
        """Whether a run of this study is in progress."""
        try:
            handle = os.open(self.path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
        finally:
            os.close(handle)
        return False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Refuse a second run of the same study at the same time."""
        handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise ConfigError(
                        f"{self.path}: the study is already running here: wait for it, or watch it with "
                        f"scalewright study status STUDY --results {self.path}"
                    ) from error
            yield
        finally:
            os.close(handle)


def _point(point: Point) -> dict[str, Any]:
    return {"id": point.id, "labels": point.labels, "resolved": point.resolved}
