"""Carries a graph forward: looks at the queue, decides, submits, writes down. Each pass can be the last one."""

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
    job_name,
    own_options,
    part_folder,
    script_path,
    stage_scripts,
    write_scripts,
)
from scalewright.launch.graph.manifest import Job, LaunchFolder, Manifest
from scalewright.launch.graph.outcome import after_failure, after_silence, below_gate
from scalewright.launch.graph.progress import ALL_PARTS, Decision, Wanted, decide, excluded_nodes, views
from scalewright.launch.slurm.commands import NO_TASK, Slurm, Statuses, Submission
from scalewright.launch.slurm.job_state import RETRIED, JobState, TaskStatus
from scalewright.launch.slurm.task_ranges import format_ranges
from scalewright.records.documents import write_document
from scalewright.records.node_list import expand_nodes
from scalewright.sites.scheduler import SchedulerAwayError
from scalewright.sites.types import Site

YOUNG_S = 5.0
"""An sbatch that outlived its driver is done by then: younger intents are not taken for lost."""
MAX_ARRAY_TASKS = 1000
"""Slurm's own default allows 1001; asked of the scheduler only where a stage has more items."""
GROWTH = 1.5


@dataclass(slots=True, kw_only=True)
class Driver:
    folder: LaunchFolder
    graph: Graph
    slurm: Slurm
    site: Site | None = None
    say: Callable[[str], object] = str
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    manifest: Manifest = field(init=False)

    def begin(self) -> None:
        """Write down a new graph and its scripts; the manifest follows with the first intents."""
        largest = max(stage.num_items for stage in self.graph.stages.values())
        size = MAX_ARRAY_TASKS if largest <= MAX_ARRAY_TASKS else max(self.slurm.max_array_size() - 1, 1)
        self.manifest = new_manifest(self.graph.name, size)
        scripts = [
            stage_scripts(self.graph, stage, self.folder, self.site, size) for stage in self.graph.stages.values()
        ]
        for stage in scripts:
            write_scripts(stage)
        write_document(self.folder.graph, self.graph.as_document())

    def take_up(self) -> None:
        """Read what an earlier driver left. Intents without an id are looked up; those nobody knows are dropped."""
        self.manifest = self.folder.read()
        open_tags = [job for job in self.manifest.jobs if not job.id]
        if not open_tags:
            return
        youngest_s = self.now() - max(job.planned_s for job in open_tags)
        if youngest_s < YOUNG_S:
            self.sleep(YOUNG_S - max(youngest_s, 0.0))
        found = self.slurm.find([job.tag for job in open_tags])
        jobs = [replace(job, id=found.get(job.tag, job.id)) for job in self.manifest.jobs]
        self.manifest = replace(self.manifest, jobs=tuple(job for job in jobs if job.id))
        self.folder.write(self.manifest)

    def step(self) -> Decision:
        """One pass: look, decide, submit. The manifest on disk is whole after each part of it."""
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
        if decision.wanted:
            self.submit(decision.wanted)
        return decision

    def look(self) -> bool:
        """Ask the scheduler about every open task and write down what changed; true where something did."""
        asked = self.open_tasks()
        if not asked or not self.learn(self.slurm.status(asked)):
            return False
        self.folder.write(self.manifest)
        return True

    def open_tasks(self) -> dict[str, list[int]]:
        """Tasks by job id that have not ended, as far as is known."""
        return {job.id: _numbers(job) for job in self.manifest.jobs if job.id and not job.is_settled}

    def learn(self, statuses: Statuses) -> bool:
        """Take over what the scheduler says; true where it is news."""
        asked = [job for job in self.manifest.jobs if job.id and not job.is_settled]
        changed = [new for job in asked if (new := self._seen(job, statuses)) != job]
        self.manifest = self.manifest.replaced(changed)
        return bool(changed)

    def _seen(self, job: Job, statuses: Statuses) -> Job:
        """The job with what the scheduler, or else its own files, say of its tasks."""
        states, elapsed_s = job.task_states(), job.elapsed_s
        told: dict[int, str] = {}
        failures, successes, ended = Counter(job.failures), Counter(job.successes), False
        gate = self.graph.stages[job.stage].gate if job.stage in self.graph.stages else None
        for task, old in list(states.items()):
            status = statuses.get((job.id, task if job.is_array else NO_TASK))
            if old.is_settled or (status is None and self.slurm.is_blind):
                continue
            new, why = _judged(job, task, status)
            if new is JobState.COMPLETED and gate is not None:
                why = below_gate(job, task, gate)
                new = JobState.BELOW_GATE if why else new
            states[task], told[task] = new, why
            if not new.is_settled:
                continue
            ended = True
            nodes = () if status is None else expand_nodes(status.nodes)
            elapsed_s += 0.0 if status is None else status.elapsed_s
            (failures if new in RETRIED else successes if new.is_ok else Counter()).update(nodes)
        return job.with_states(
            states,
            reason=_worst(states, told, job.reason),
            elapsed_s=elapsed_s,
            failures=dict(failures),
            successes=dict(successes),
            settled_s=self.now() if ended else job.settled_s,
        )

    def submit(self, wanted: Sequence[Wanted]) -> None:
        """All are written down before the first sbatch; each id is kept the moment it is known."""
        first = len(self.manifest.jobs)
        exclude = excluded_nodes(self.manifest, self.graph.exclude_after)
        jobs = [self._job(want, first + index, exclude) for index, want in enumerate(wanted)]
        before = self.manifest
        self.manifest = self.manifest.replaced(jobs)
        self.folder.write(self.manifest)
        try:
            for job, want in zip(jobs, wanted, strict=True):
                if self.folder.stop.exists():
                    self._forget_unsubmitted(before, first)
                    break
                self._submit_one(job, want)
        except ScalewrightError as error:
            if not isinstance(error, SchedulerAwayError):  # else it may have been taken: the intents stay
                self._forget_unsubmitted(before, first)
            error.args = (f"{error}{self._submitted_so_far()}",)
            raise

    def _forget_unsubmitted(self, before: Manifest, first: int) -> None:
        self.manifest = before.replaced(job for job in self.manifest.jobs[first:] if job.id)
        self.folder.write(self.manifest)

    def _submitted_so_far(self) -> str:
        ids = [job.id for job in self.manifest.jobs if job.id and not job.is_settled]
        if not ids:
            return ""
        shown = ", ".join(ids[:10]) + (", ..." if len(ids) > 10 else "")
        return (
            f"; {len(ids)} jobs are submitted ({shown}): go on with 'scalewright jobs resume {self.folder.path}' "
            f"or end them with 'scalewright jobs cancel {self.folder.path}'"
        )

    def _job(self, want: Wanted, number: int, exclude: tuple[str, ...]) -> Job:
        stage = self.graph.stages[want.stage]
        size = self.manifest.max_array_tasks
        run_dir = part_folder(self.folder, stage, want.part, size)
        return Job(
            tag=f"{self.manifest.token}-{number}", name=job_name(self.graph, stage), stage=want.stage, part=want.part,
            attempt=want.attempt, first_item=want.part * size, script=str(script_path(run_dir)), run_dir=str(run_dir),
            planned_s=self.now(), tasks=format_ranges(want.tasks) if stage.items else "",
            width=min(stage.width, len(want.tasks)) if stage.items else 0, exclude=exclude,
            options=own_options(self.graph, stage, run_dir),
            num_gpus=stage.num_gpus,
        )  # fmt: skip

    def _submit_one(self, job: Job, want: Wanted) -> None:
        dependency = self._dependency(want)
        submission = Submission(
            script=Path(job.script), name=job.name, tag=job.tag, tasks=job.tasks, width=job.width,
            dependency=dependency, exclude=job.exclude, options=job.options, run_dir=job.run_dir,
        )  # fmt: skip
        done = replace(job, id=self.slurm.submit(submission), dependency=dependency)
        self.folder.note_id(done)
        self.manifest = self.manifest.replaced([done])
        items = f", items {job.tasks}" if job.is_array else ""
        again = f", attempt {job.attempt + 1}" if job.attempt else ""
        self.say(f"{job.stage}: job {done.id}{items}{again}")

    def _dependency(self, want: Wanted) -> str:
        """Slurm's text, with the ids that are known by now."""
        pieces = []
        for kind, stage, part in want.after:
            ids = [j.id for j in self.manifest.of_stage(stage) if part in (ALL_PARTS, j.part) and j.id]
            if kind == "singleton":
                pieces.append(kind)
            elif ids:
                pieces.append(":".join([kind, *ids]))
        return ",".join(pieces)

    def go_on(self, *, retry_failed: bool) -> Decision:
        """One pass for a launch that was stopped or left; failed items get one more attempt if asked for."""
        self.folder.stop.unlink(missing_ok=True)
        self.look()
        changes: dict[str, object] = {"is_stopped": False}
        if retry_failed:
            seen = views(self.graph, self.manifest)
            bad = [v.stage.name for v in seen.values() if v.is_final and not v.is_skipped and not v.all_ok]
            changes["jobs"] = tuple(_failed_again(job) if job.stage in bad else job for job in self.manifest.jobs)
            used = {n: max(seen[n].num_failures.values(), default=0) for n in bad}
            changes["forgiven"] = {
                **self.manifest.forgiven,
                **{n: max(used[n] + 1 - self.graph.stages[n].retries.limit, 0) for n in bad},
            }
            changes["skipped"] = {}
        self.manifest = replace(self.manifest, **changes)  # type: ignore[arg-type]
        self.folder.write(self.manifest)
        return self.act()

    def cancel(self, stages: Sequence[str]) -> list[str]:
        """Cancel what is open; of a whole launch, nothing more is submitted either."""
        ids = self._open_ids(stages)
        self.manifest = replace(self.manifest, is_stopped=self.manifest.is_stopped or not stages)
        self.folder.write(self.manifest)
        if ids:
            self.slurm.cancel(ids)
            self.look()
        return ids

    def requeue(self, stages: Sequence[str]) -> list[str]:
        self.look()
        running = [
            f"{job.id}_{task}" if job.is_array else job.id
            for job in self.manifest.jobs if not stages or job.stage in stages
            for task, state in job.task_states().items() if state is JobState.RUNNING
        ]  # fmt: skip
        if running:
            self.slurm.requeue(running)
            self.look()
        return running

    def _open_ids(self, stages: Sequence[str]) -> list[str]:
        chosen = (job for job in self.manifest.jobs if not stages or job.stage in stages)
        return [job.id for job in chosen if job.id and not job.is_settled]

    def watch(self, *, shortest_s: float, longest_s: float) -> Decision:
        """Passes until all is settled. Waits grow while nothing changes and shrink when something does."""
        wait_s = shortest_s
        while True:
            changed = self.look()
            decision = self.act()
            if decision.is_done:
                return decision
            moved = changed or bool(decision.wanted)
            wait_s = max(shortest_s, wait_s / GROWTH) if moved else min(wait_s * GROWTH, longest_s)
            until_due = wait_s if decision.due_s is None else max(decision.due_s - self.now(), 0.1)
            self.sleep(min(wait_s, until_due))


def new_manifest(name: str, max_array_tasks: int) -> Manifest:
    created = datetime.now(UTC).isoformat()
    return Manifest(name=name, created=created, max_array_tasks=max_array_tasks, token=secrets.token_hex(4))


def _worst(states: Mapping[int, JobState], told: Mapping[int, str], before: str) -> str:
    """The reason worth showing: of a task that went wrong, which stays; else why tasks wait."""
    bad = [why for task, why in told.items() if why and states[task].is_settled and not states[task].is_ok]
    if bad:
        return bad[-1]
    if any(state.is_settled and not state.is_ok for state in states.values()):
        return before
    return next((why for task, why in told.items() if why and not states[task].is_settled), "")


def _failed_again(job: Job) -> Job:
    """A job whose cancelled, starved or gated tasks count as failed, so that they are tried again."""
    again = {JobState.CANCELLED, JobState.OUT_OF_MEMORY, JobState.BELOW_GATE}
    return job.with_states({t: JobState.FAILED if s in again else s for t, s in job.task_states().items()})


def _numbers(job: Job) -> list[int]:
    return [t for t, s in job.task_states().items() if not s.is_settled] if job.is_array else [NO_TASK]


def _judged(job: Job, task: int, status: TaskStatus | None) -> tuple[JobState, str]:
    if status is None:
        return after_silence(job, task)
    if status.state is JobState.FAILED:
        return after_failure(job, task, status)
    return status.state, status.reason
