"""A pipeline from its file to its result: the phases in order, resumed after a kill, one run in a folder at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.data.room import check_room
from scalewright.data.text.duplicates.span_anchors import SPANS, num_span_tasks
from scalewright.data.text.duplicates.span_cuts import CUTS
from scalewright.data.text.duplicates.tasks import (
    EXACT,
    NEAR,
    VERIFY,
    kept_bytes,
    kinds_of,
    num_group_tasks,
    num_verify_tasks,
)
from scalewright.data.text.execution.backend import Backend, PhaseTasks
from scalewright.data.text.execution.clean_task import CLEAN
from scalewright.data.text.execution.job import JOB_NAME, DataJob, read_job, write_job
from scalewright.data.text.execution.preparation import WORK_PER_TEXT, expected_text_bytes
from scalewright.data.text.execution.result import build_result, read_result
from scalewright.data.text.execution.tasks import MARK, write_phase_plan
from scalewright.data.text.execution.work_files import TaskFiles, write_array
from scalewright.data.text.reading.documents import NO_TEXT
from scalewright.data.text.reading.inputs import RESULT_NAME
from scalewright.data.text.tokens.contamination import benchmark_ngrams
from scalewright.data.text.tokens.finish_task import FINISH
from scalewright.data.text.writing.shard_task import SHARD
from scalewright.data.whole import writing
from scalewright.errors import ConfigError
from scalewright.records.documents import write_document

WORK_NAME = ".work"
LOCK_NAME = ".lock"
PhaseProgress = Callable[[str, int, int], None]
"""Called with the phase, tasks done and all tasks."""


def no_phase_progress(phase: str, num_done: int, num_tasks: int) -> None:
    """For callers that do not show it."""


def run_job(
    job: DataJob, backend: Backend, *, on_progress: PhaseProgress = no_phase_progress, keep_work: bool = False
) -> dict[str, Any]:
    """Run a job, or go on with it; the result is a document, also written to the output folder."""
    out = Path(job.out)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with _held(out):
        finished = _finished(job)
        if finished is not None:
            return finished
        _begin_work(job)
        run = _Run(job, backend, on_progress)
        result = run.all_phases()
        with writing(out):
            write_document(out / RESULT_NAME, result)
        if not keep_work:
            shutil.rmtree(out / WORK_NAME, ignore_errors=True)
    return result


@contextlib.contextmanager
def _held(out: Path) -> Iterator[None]:
    """The right to write to a folder. A second run is refused, not queued: it would only repeat the work."""
    path = out / LOCK_NAME
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            raise ConfigError(
                f"{out}: another run ({holder}) is writing to this folder; wait for it or choose another --out"
            ) from error
        except OSError:
            pass  # a file system without locks
        with writing(path):
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.close(handle)


def _finished(job: DataJob) -> dict[str, Any] | None:
    """The result of this job if it is there; a folder with anything else is refused."""
    out = Path(job.out)
    if (out / RESULT_NAME).is_file():
        result = read_result(out)
        if result["id"] != job.id:
            raise ConfigError(
                f"{out}: holds the result of another pipeline, or the inputs have changed since; choose another --out"
            )
        return result
    own = {WORK_NAME, LOCK_NAME}
    if (out / WORK_NAME / JOB_NAME).is_file():
        if read_job(out / WORK_NAME).id != job.id:
            raise ConfigError(
                f"{out}: holds an unfinished run of another pipeline or of inputs that have changed since; "
                f"choose another --out, or delete {out}"
            )
        return None
    foreign = sorted(path.name for path in out.iterdir() if path.name not in own)
    if foreign:
        raise ConfigError(f"{out}: is not empty ({foreign[0]}) and no run made it; choose another --out")
    return None


def _begin_work(job: DataJob) -> None:
    out, work = Path(job.out), Path(job.out) / WORK_NAME
    if (work / JOB_NAME).is_file():
        for remnant in [*work.glob("*/.*.tmp"), *work.glob(".*.tmp"), *out.glob(".shard-*.tmp")]:
            remnant.unlink(missing_ok=True)  # of killed workers: we hold the folder
        return
    text_bytes = expected_text_bytes(job.files)
    check_room(out, num_bytes=int(text_bytes * WORK_PER_TEXT), num_files=12 * len(job.chunks) + 100)
    with writing(work):
        work.mkdir(exist_ok=True)
        if job.pipeline.decontaminate is not None:
            write_array(work / "benchmarks.npy", benchmark_ngrams(job.pipeline.decontaminate, job.path))
        write_job(work, job)


class _Run:
    """The phases of one job."""

    def __init__(self, job: DataJob, backend: Backend, on_progress: PhaseProgress) -> None:
        self.job, self.backend, self.on_progress = job, backend, on_progress
        self.work = Path(job.out) / WORK_NAME
        self.phases: list[dict[str, Any]] = []

    def phase(self, name: str, num_tasks: int, **plan: Any) -> list[dict[str, Any]]:
        """Run the tasks of a phase that are not done; the summaries of all."""
        with writing(self.work):
            write_phase_plan(self.work, name, {"num_tasks": num_tasks, **plan})
        files = TaskFiles(self.work, name)
        todo = tuple(number for number in range(num_tasks) if not files.is_done(number))
        num_done = num_tasks - len(todo)
        self.on_progress(name, num_done, num_tasks)

        def on_done(number: int, summary: dict[str, Any]) -> None:  # noqa: ARG001  as back ends call it
            nonlocal num_done
            num_done += 1
            self.on_progress(name, num_done, num_tasks)

        began_s = time.perf_counter()
        if todo:
            self.backend.run(PhaseTasks(work=self.work, phase=name, numbers=todo), on_done)
        summaries = [files.summary(number) for number in range(num_tasks)]
        cpu_s = sum(float(one["task_cpu_s"]) for one in summaries)
        self.phases.append({"name": name, "wall_s": time.perf_counter() - began_s, "cpu_s": cpu_s})
        return summaries

    def all_phases(self) -> dict[str, Any]:
        cleaned = self.phase(CLEAN, len(self.job.chunks))
        self._check_read(cleaned)
        counts = [one["num_docs"] for one in cleaned]
        write_array(self.work / "offsets.npy", np.cumsum([0, *counts]).astype(np.int64))
        clusters = self._find_duplicates(sum(counts))
        kinds = kinds_of(self.job.pipeline.deduplicate)
        left_bytes = kept_bytes(self.work, kinds[-1] if kinds else None)
        write = self.job.pipeline.write
        num_shards = write.num_shards or max(1, -(-left_bytes // write.shard))
        self._find_spans(cleaned)
        finished = self.phase(FINISH, len(self.job.chunks), num_shards=num_shards)
        shards = self.phase(SHARD, num_shards)
        return build_result(
            self.job, self.work, cleaned=cleaned, finished=finished, shards=shards, clusters=clusters,
            phases=self.phases, num_workers=self.backend.num_workers,
        )  # fmt: skip

    def _find_duplicates(self, num_documents: int) -> dict[str, Any]:
        step = self.job.pipeline.deduplicate
        clusters: dict[str, Any] = {}
        for kind in kinds_of(step):
            assert step is not None
            num_tasks, num_verify = num_group_tasks(step, kind, num_documents), 0
            groups = self.phase(kind, num_tasks)
            if kind == NEAR:
                num_verify = num_verify_tasks(self.work, num_tasks)
                checked = self.phase(VERIFY, num_verify, num_near_tasks=num_tasks)
                clusters |= {
                    "num_pairs": sum(one["num_pairs"] for one in groups),
                    "num_verified": sum(one["num_pairs"] for one in checked),
                }
            (marked,) = self.phase(f"{MARK}{kind}", 1, num_group_tasks=num_tasks, num_verify=num_verify)
            if kind == NEAR:
                clusters |= marked
            elif kind == EXACT:
                clusters["num_exact"] = marked["num_drops"]
        return clusters

    def _find_spans(self, cleaned: list[dict[str, Any]]) -> None:
        """Look for repeated runs of words if the pipeline cuts them."""
        step = self.job.pipeline.deduplicate
        if step is not None and step.spans:
            num_tasks = num_span_tasks(sum(one["num_spans"] for one in cleaned))
            self.phase(SPANS, num_tasks)
            self.phase(CUTS, len(self.job.chunks), num_span_tasks=num_tasks)

    def _check_read(self, cleaned: list[dict[str, Any]]) -> None:
        """If not one document could be read, say why instead of writing an empty set."""
        num_read = sum(one["steps"].get("read", {}).get("docs_out", 0) for one in cleaned)
        if num_read:
            return
        shutil.rmtree(self.work, ignore_errors=True)  # so that the same folder takes the corrected pipeline
        problems: dict[str, int] = {}
        places: list[str] = []
        for one in cleaned:
            for problem, count in one["problems"].items():
                problems[problem] = problems.get(problem, 0) + count
                places += one["places"].get(problem, [])
        if not problems:
            raise ConfigError(f"no document in {len(self.job.files)} files: the inputs are empty; check [read] paths")
        counts = ", ".join(f"{problem} ({count})" for problem, count in sorted(problems.items()))
        hint = f"; set text_field in [read], now {self.job.pipeline.read.text_field!r}" if NO_TEXT in problems else ""
        raise ConfigError(f"no document could be read: {counts}, the first at {places[0]}{hint}")
