"""The driver of a graph: it reads the queue, decides, submits and records. It can be killed after any pass."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from scalewright.errors import ScalewrightError
from scalewright.launch.graph.graph import Graph
from scalewright.launch.graph.job_scripts import (
    graph_job_scripts,
    job_name,
    own_options,
    part_folder,
    script_path,
    write_scripts,
)
from scalewright.launch.graph.manifest import LaunchFolder, LaunchManifest, SlurmJob
from scalewright.launch.graph.outcome import after_failure, after_silence, below_gate
from scalewright.launch.graph.progress import ALL_PARTS, Decision, JobToSubmit, decide, excluded_nodes, views
from scalewright.launch.slurm.commands import NO_TASK, Slurm, Statuses, Submission
from scalewright.launch.slurm.job_state import RETRIED, JobState, TaskStatus
from scalewright.launch.slurm.sbatch import NoJobIdError
from scalewright.launch.slurm.task_ranges import format_ranges
from scalewright.records.documents import write_document
from scalewright.records.node_list import expand_nodes
from scalewright.sites.scheduler import SchedulerAwayError
from scalewright.sites.types import Site

SBATCH_DONE_S = 5.0
"""An sbatch whose driver died has ended after this time. Before it, a tag missing from the queue may still appear."""
MAX_ARRAY_TASKS = 1000
"""Slurm's default limit is 1001. The scheduler is asked for its limit only if a job has more items than this."""
GROWTH = 1.5
"""Factor between two waits of `watch` while nothing changes."""


@dataclass(slots=True, kw_only=True)
class Driver:
    """One launch in the hands of one process."""

    folder: LaunchFolder
    graph: Graph
    slurm: Slurm
    site: Site | None = None
    say: Callable[[str], object] = str
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    manifest: LaunchManifest = field(init=False)

    def begin(self) -> None:
        """Write a new graph and its scripts. The manifest is written with the first planned jobs."""
        graph_jobs = self.graph.jobs.values()
        largest = max(graph_job.num_items for graph_job in graph_jobs)
        size = MAX_ARRAY_TASKS if largest <= MAX_ARRAY_TASKS else max(self.slurm.max_array_size() - 1, 1)
        self.manifest = new_manifest(self.graph.name, size)
        # All scripts are rendered before the first is written: a refused job leaves nothing behind.
        for scripts in [graph_job_scripts(self.graph, job, self.folder, self.site, size) for job in graph_jobs]:
            write_scripts(scripts)
        write_document(self.folder.graph, self.graph.as_document())

    def take_up(self) -> None:
        """Read the manifest of an earlier driver. Jobs without an id are searched in the queue by tag, else dropped."""
        self.manifest = self.folder.read()
        without_id = [job for job in self.manifest.slurm_jobs if not job.id]
        if not without_id:
            return
        youngest_s = self.now() - max(job.planned_s for job in without_id)
        if youngest_s < SBATCH_DONE_S:
            self.sleep(SBATCH_DONE_S - max(youngest_s, 0.0))
        id_by_tag = self.slurm.find([job.tag for job in without_id])
        jobs = [replace(job, id=id_by_tag.get(job.tag, job.id)) for job in self.manifest.slurm_jobs]
        self.manifest = replace(self.manifest, slurm_jobs=tuple(job for job in jobs if job.id))
        self.folder.write(self.manifest)

    def step(self) -> Decision:
        """One pass: read the queue, decide, submit. The manifest on disk is complete after each of these."""
        self.look()
        return self.act()

    def act(self) -> Decision:
        if self.folder.stop.exists() and not self.manifest.is_stopped:
            self.cancel(())
        decision = decide(self.graph, self.manifest, now_s=self.now())
        if decision.skipped:
            self.manifest = replace(self.manifest, skipped={**self.manifest.skipped, **decision.skipped})
            self.folder.write(self.manifest)
            for name, reason in decision.skipped.items():
                self.say(f"{name} is skipped: {reason}")
        if decision.to_submit:
            self.submit(decision.to_submit)
        return decision

    def look(self) -> bool:
        """Ask the scheduler about every open task and record what changed; true if something changed."""
        open_tasks = self.open_tasks()
        if not open_tasks or not self.learn(self.slurm.status(open_tasks)):
            return False
        self.folder.write(self.manifest)
        return True

    def open_tasks(self) -> dict[str, list[int]]:
        """Tasks by job id that have not ended, as far as the manifest knows."""
        return {job.id: _numbers(job) for job in self.manifest.slurm_jobs if job.id and not job.has_ended}

    def learn(self, statuses: Statuses) -> bool:
        """Put the scheduler's statuses into the manifest; true if something changed."""
        open_jobs = [job for job in self.manifest.slurm_jobs if job.id and not job.has_ended]
        changed = [new for job in open_jobs if (new := self._updated(job, statuses)) != job]
        self.manifest = self.manifest.replaced(changed)
        return bool(changed)

    def _updated(self, job: SlurmJob, statuses: Statuses) -> SlurmJob:
        """The job with new states of its tasks, from the scheduler or else from the files of the tasks."""
        states, elapsed_s = job.task_states(), job.elapsed_s
        reasons: dict[int, str] = {}
        failures, successes, ended = Counter(job.failures), Counter(job.successes), False
        gate = self.graph.jobs[job.graph_job].gate if job.graph_job in self.graph.jobs else None
        for task, old in list(states.items()):
            status = statuses.get((job.id, task if job.is_array else NO_TASK))
            if old.has_ended or (status is None and self.slurm.is_blind):
                continue
            new, reason = _state_and_reason(job, task, status)
            if new is JobState.COMPLETED and gate is not None:
                reason = below_gate(job, task, gate)
                new = JobState.BELOW_GATE if reason else new
            states[task], reasons[task] = new, reason
            if not new.has_ended:
                continue
            ended = True
            nodes = () if status is None else expand_nodes(status.nodes)
            elapsed_s += 0.0 if status is None else status.elapsed_s
            (failures if new in RETRIED else successes if new.is_ok else Counter()).update(nodes)
        return job.with_states(
            states,
            reason=_reason_to_show(states, reasons, job.reason),
            elapsed_s=elapsed_s,
            failures=dict(failures),
            successes=dict(successes),
            ended_s=self.now() if ended else job.ended_s,
        )

    def submit(self, to_submit: Sequence[JobToSubmit]) -> None:
        """Record all jobs before the first sbatch, and each id as soon as sbatch returns it."""
        first = len(self.manifest.slurm_jobs)
        exclude = excluded_nodes(self.manifest, self.graph.exclude_after)
        jobs = [self._slurm_job(planned, first + index, exclude) for index, planned in enumerate(to_submit)]
        before = self.manifest
        self.manifest = self.manifest.replaced(jobs)
        self.folder.write(self.manifest)
        try:
            for job, planned in zip(jobs, to_submit, strict=True):
                if self.folder.stop.exists():
                    self._forget_unsubmitted(before, first)
                    break
                self._submit_one(job, planned)
        except ScalewrightError as error:
            # If the scheduler gave no answer, it may still have accepted the job: the record of it stays.
            if not isinstance(error, SchedulerAwayError | NoJobIdError):
                self._forget_unsubmitted(before, first)
            error.args = (f"{error}{self._submitted_so_far()}",)
            raise

    def _forget_unsubmitted(self, before: LaunchManifest, first: int) -> None:
        self.manifest = before.replaced(job for job in self.manifest.slurm_jobs[first:] if job.id)
        self.folder.write(self.manifest)

    def _submitted_so_far(self) -> str:
        ids = [job.id for job in self.manifest.slurm_jobs if job.id and not job.has_ended]
        if not ids:
            return ""
        shown = ", ".join(ids[:10]) + (", ..." if len(ids) > 10 else "")
        return (
            f"; {len(ids)} jobs are submitted ({shown}): continue with 'scalewright jobs resume {self.folder.path}' "
            f"or cancel them with 'scalewright jobs cancel {self.folder.path}'"
        )

    def _slurm_job(self, planned: JobToSubmit, number: int, exclude: tuple[str, ...]) -> SlurmJob:
        graph_job = self.graph.jobs[planned.graph_job]
        size = self.manifest.max_array_tasks
        run_dir = part_folder(self.folder, graph_job, planned.part, size)
        return SlurmJob(
            tag=f"{self.manifest.token}-{number}", name=job_name(self.graph, graph_job), graph_job=planned.graph_job,
            part=planned.part, attempt=planned.attempt, first_item=planned.part * size,
            script=str(script_path(run_dir)), run_dir=str(run_dir), planned_s=self.now(),
            tasks=format_ranges(planned.tasks) if graph_job.items else "",
            width=min(graph_job.width, len(planned.tasks)) if graph_job.items else 0, exclude=exclude,
            options=own_options(self.graph, graph_job, run_dir), num_gpus=graph_job.num_gpus,
        )  # fmt: skip

    def _submit_one(self, job: SlurmJob, planned: JobToSubmit) -> None:
        dependency = self._dependency(planned)
        submission = Submission(
            script=Path(job.script), name=job.name, tag=job.tag, tasks=job.tasks, width=job.width,
            dependency=dependency, exclude=job.exclude, options=job.options, run_dir=job.run_dir,
        )  # fmt: skip
        submitted = replace(job, id=self.slurm.submit(submission), dependency=dependency)
        self.folder.note_id(submitted)
        self.manifest = self.manifest.replaced([submitted])
        items = f", items {job.tasks}" if job.is_array else ""
        attempt = f", attempt {job.attempt + 1}" if job.attempt else ""
        self.say(f"{job.graph_job}: job {submitted.id}{items}{attempt}")

    def _dependency(self, planned: JobToSubmit) -> str:
        """The value of sbatch's --dependency, with the ids that are known by now."""
        pieces = []
        for kind, graph_job, part in planned.after:
            ids = [j.id for j in self.manifest.slurm_jobs_of(graph_job) if part in (ALL_PARTS, j.part) and j.id]
            if kind == "singleton":
                pieces.append(kind)
            elif ids:
                pieces.append(":".join([kind, *ids]))
        return ",".join(pieces)

    def go_on(self, *, retry_failed: bool) -> Decision:
        """One pass for a launch that was stopped or abandoned; `retry_failed` gives failed items one more attempt."""
        self.folder.stop.unlink(missing_ok=True)
        self.look()
        changes: dict[str, object] = {"is_stopped": False}
        if retry_failed:
            all_views = views(self.graph, self.manifest)
            failed = [v.graph_job.name for v in all_views.values() if v.is_final and not v.is_skipped and not v.all_ok]
            changes["slurm_jobs"] = tuple(
                _made_retryable(job) if job.graph_job in failed else job for job in self.manifest.slurm_jobs
            )
            used = {n: max(all_views[n].num_failures.values(), default=0) for n in failed}
            changes["forgiven"] = {
                **self.manifest.forgiven,
                **{n: max(used[n] + 1 - self.graph.jobs[n].retries.limit, 0) for n in failed},
            }
            changes["skipped"] = {}
        self.manifest = replace(self.manifest, **changes)  # type: ignore[arg-type]
        self.folder.write(self.manifest)
        return self.act()

    def cancel(self, graph_jobs: Sequence[str]) -> list[str]:
        """Cancel the open Slurm jobs of these jobs. Empty: of the whole launch, and nothing more is submitted."""
        ids = self._open_ids(graph_jobs)
        self.manifest = replace(self.manifest, is_stopped=self.manifest.is_stopped or not graph_jobs)
        self.folder.write(self.manifest)
        if ids:
            self.slurm.cancel(ids)
            self.look()
        return ids

    def requeue(self, graph_jobs: Sequence[str]) -> list[str]:
        self.look()
        running = [
            f"{job.id}_{task}" if job.is_array else job.id
            for job in self.manifest.slurm_jobs if not graph_jobs or job.graph_job in graph_jobs
            for task, state in job.task_states().items() if state is JobState.RUNNING
        ]  # fmt: skip
        if running:
            self.slurm.requeue(running)
            self.look()
        return running

    def _open_ids(self, graph_jobs: Sequence[str]) -> list[str]:
        chosen = (job for job in self.manifest.slurm_jobs if not graph_jobs or job.graph_job in graph_jobs)
        return [job.id for job in chosen if job.id and not job.has_ended]

    def watch(self, *, shortest_s: float, longest_s: float) -> Decision:
        """Make passes until every job has ended. The wait grows while nothing changes and shrinks after a change."""
        wait_s = shortest_s
        while True:
            changed = self.look()
            decision = self.act()
            if decision.is_done:
                return decision
            moved = changed or bool(decision.to_submit)
            wait_s = max(shortest_s, wait_s / GROWTH) if moved else min(wait_s * GROWTH, longest_s)
            until_due = wait_s if decision.due_s is None else max(decision.due_s - self.now(), 0.1)
            self.sleep(min(wait_s, until_due))


def new_manifest(name: str, max_array_tasks: int) -> LaunchManifest:
    created = datetime.now(UTC).isoformat()
    return LaunchManifest(name=name, created=created, max_array_tasks=max_array_tasks, token=secrets.token_hex(4))


def _reason_to_show(states: Mapping[int, JobState], new_reasons: Mapping[int, str], old_reason: str) -> str:
    """The one reason of a job: that of its latest failed task, else why its tasks wait."""
    failed = [why for task, why in new_reasons.items() if why and states[task].has_ended and not states[task].is_ok]
    if failed:
        return failed[-1]
    if any(state.has_ended and not state.is_ok for state in states.values()):
        return old_reason
    return next((why for task, why in new_reasons.items() if why and not states[task].has_ended), "")


def _made_retryable(job: SlurmJob) -> SlurmJob:
    """The job with its cancelled, out-of-memory and below-gate tasks counted as failed, so that they are retried."""
    never_retried = {JobState.CANCELLED, JobState.OUT_OF_MEMORY, JobState.BELOW_GATE}
    return job.with_states({t: JobState.FAILED if s in never_retried else s for t, s in job.task_states().items()})


def _numbers(job: SlurmJob) -> list[int]:
    return [t for t, s in job.task_states().items() if not s.has_ended] if job.is_array else [NO_TASK]


def _state_and_reason(job: SlurmJob, task: int, status: TaskStatus | None) -> tuple[JobState, str]:
    if status is None:
        return after_silence(job, task)
    if status.state is JobState.FAILED:
        return after_failure(job, task, status)
    return status.state, status.reason
