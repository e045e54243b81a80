"""Progress of a study, read from its results folder and the queue, without contact to the running processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from scalewright.launch.slurm.job_state import JobState
from scalewright.records import metric_names as names
from scalewright.records.documents import document, read_document
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.study.execution import num_steps_of
from scalewright.study.measure import Try, tries
from scalewright.study.pipeline.progress import block_of
from scalewright.study.points import Study
from scalewright.study.site_run import InQueue, Key
from scalewright.study.store import Store

STOPPED = (ExitCode.REQUEUE, ExitCode.INTERRUPTED)
"""Exit codes of a run that was stopped from outside, and that continues where it was."""
CONTINUE = "run the study again to continue"
State = Literal["waiting", "queued", "running", "finished", "failed", "interrupted", "skipped"]
"""queued: its job waits at a site; skipped: a gate before it was not passed."""
STALE_S = 120.0
"""A run without a new event for so long, while no process holds the study, was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TryStatus:
    """One repeat of one point."""

    point: str
    labels: dict[str, str]
    repeat: int
    state: State
    done: int = 0
    """Steps."""
    total: int = 0
    rate: float | None = None
    """Tokens or images per second, of the latest step."""
    took_s: float | None = None
    left_s: float | None = None
    reason: str = ""
    job: str = ""
    """The scheduler's number of its latest job, where points run as jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStatus:
    study: str
    tries: tuple[TryStatus, ...]
    is_running: bool
    left_s: float | None
    """Estimated time for the remaining tries, from the finished ones or else from the running one."""

    def count(self, state: State) -> int:
        return sum(one.state == state for one in self.tries)

    def as_document(self) -> dict[str, Any]:
        return document("study-status", asdict(self))


def status_of(
    study: Study, store: Store, *, queue: Mapping[Key, InQueue] = MappingProxyType({}), now_s: float | None = None
) -> StudyStatus:
    """`queue` holds the latest jobs of points that run at a site."""
    now = time.time() if now_s is None else now_s
    running = store.is_held() or any(job.is_open for job in queue.values())
    statuses = tuple(
        _with_gates(
            study, store, tried,
            _with_job(_one(store, tried, running, now), queue.get((tried.point.id, tried.repeat))),
        )
        for tried in tries(study)
    )  # fmt: skip
    done = [one.took_s for one in statuses if one.state == "finished" and one.took_s is not None]
    running_tries = [
        one for one in statuses if one.state == "running" and one.took_s is not None and one.left_s is not None
    ]
    each = done or [(one.took_s or 0.0) + (one.left_s or 0.0) for one in running_tries]
    num_open = sum(one.state in ("waiting", "queued") for one in statuses)
    ahead = sum(one.left_s or 0.0 for one in running_tries)
    left_s = ahead + num_open * sum(each) / len(each) if each else None
    return StudyStatus(study=study.file.id, tries=statuses, is_running=running, left_s=left_s)


def _one(store: Store, tried: Try, is_running: bool, now_s: float) -> TryStatus:
    run = store.run(tried.point, tried.repeat)
    common: dict[str, Any] = {"point": tried.point.id, "labels": tried.point.labels, "repeat": tried.repeat}
    problem = store.read_problem(tried.point, tried.repeat)
    if not run.config.exists():
        return TryStatus(**common, state="failed" if problem else "waiting", reason=problem)
    info = run.read_exit_info()
    done, rate, step_s, first_s, last_s = _progress(run)
    total = _total(run)
    common |= {"done": done, "total": total, "rate": rate}
    took_s = None if first_s is None or last_s is None else last_s - first_s
    if info is not None:
        if info.code in STOPPED:
            return TryStatus(**common, state="interrupted", took_s=took_s, reason=CONTINUE)
        state: State = "finished" if info.finished else "failed"
        return TryStatus(**common, state=state, took_s=took_s, reason="" if info.finished else info.reason)
    if not is_running and (last_s is None or now_s - last_s > STALE_S):
        return TryStatus(**common, state="interrupted", reason=CONTINUE)
    left_s = None if step_s is None else step_s * max(total - done, 0)
    return TryStatus(**common, state="running", took_s=took_s, left_s=left_s)


def _with_gates(study: Study, store: Store, tried: Try, status: TryStatus) -> TryStatus:
    """A stage that waits, with the gate that it will not get past."""
    if study.pipeline is None or status.state not in ("waiting", "failed") or status.done:
        return status
    block = block_of(study.pipeline, store, study.pipeline.runs[tried.index], tried.repeat)
    return status if block is None or not block.is_final else replace(status, state="skipped", reason=block.reason)


def _with_job(status: TryStatus, job: InQueue | None) -> TryStatus:
    """What only the scheduler knows: that a try waits, runs, or ended before it could write anything."""
    if job is None or status.state == "finished":
        return status
    if job.state is JobState.RUNNING:
        return replace(status, state="running", job=job.job, reason="")
    if job.is_open:
        return replace(status, state="queued", job=job.job, reason=job.reason)
    if job.state.is_ok or status.state == "failed":
        return replace(status, job=job.job)
    return replace(status, state="failed", job=job.job, reason=f"job {job.job}: {job.reason or job.state}")


def _progress(run: RunDirectory) -> tuple[int, float | None, float | None, float | None, float | None]:
    """Steps done, latest rate, latest step time, first and last time of an event, all of rank 0."""
    path = run.rank_events(0)
    done, rate, step_s, first_s, last_s = 0, None, None, None, None
    if not path.exists():
        return done, rate, step_s, first_s, last_s
    for event in read_events(path):
        first_s, last_s = (event.time if first_s is None else first_s), event.time
        if event.value is None or event.step < 0:
            continue
        if event.name == names.STEP_TIME:
            done, step_s = max(done, event.step + 1), event.value
        elif event.name in (names.TOKENS_PER_S, names.IMAGES_PER_S):
            rate = event.value
    return done, rate, step_s, first_s, last_s


def _total(run: RunDirectory) -> int:
    return num_steps_of(read_document(run.config, _kind(run)))


def _kind(run: RunDirectory) -> str:
    return str(read_document(run.run, "run").get("kind", ""))
