"""The progress of a graph, and the next submissions. Pure functions of a graph, a manifest and the time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewright.launch.graph.graph import RELATIONS, Graph, GraphJob
from scalewright.launch.graph.manifest import LaunchManifest, SlurmJob
from scalewright.launch.slurm.job_state import RETRIED, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphJobView:
    """The items of a graph's job and their states. Items without a Slurm job have no state."""

    graph_job: GraphJob
    states: Mapping[int, JobState]
    num_failures: Mapping[int, int]
    ended_s: Mapping[int, float]
    parts: frozenset[int]
    """Parts that have a Slurm job."""
    is_skipped: bool
    num_parts: int
    extra_retries: int = 0

    def may_retry(self, item: int) -> bool:
        limit = self.graph_job.retries.limit + self.extra_retries
        return self.states[item] in RETRIED and self.num_failures[item] <= limit

    @property
    def is_final(self) -> bool:
        """Whether it is skipped, or all items have ended and none will be retried."""
        if self.is_skipped:
            return True
        return bool(self.states) and all(s.has_ended and not self.may_retry(i) for i, s in self.states.items())

    @property
    def ok_items(self) -> frozenset[int]:
        return frozenset(item for item, state in self.states.items() if state.is_ok)

    @property
    def all_ok(self) -> bool:
        return len(self.ok_items) == self.graph_job.num_items

    def counts(self) -> Counter[str]:
        return Counter(str(state) for state in self.states.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToSubmit:
    """A Slurm job to submit: tasks of one part of a graph's job."""

    graph_job: str
    part: int
    attempt: int
    tasks: tuple[int, ...]
    after: tuple[tuple[str, str, int], ...] = ()
    """Slurm's kind of dependency, the graph's job it is on, and the part of it; ALL_PARTS: every part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the driver does in this pass."""

    to_submit: tuple[JobToSubmit, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Jobs of the graph that will not run, and why."""
    due_s: float | None = None
    """When the next retry is due; None: no retry is waiting."""
    is_done: bool = False


ALL_PARTS = -1


def num_parts(graph_job: GraphJob, max_array_tasks: int) -> int:
    """Number of arrays that its items fill."""
    return math.ceil(graph_job.num_items / max_array_tasks)


def views(graph: Graph, manifest: LaunchManifest) -> dict[str, GraphJobView]:
    jobs: dict[str, list[SlurmJob]] = {name: [] for name in graph.jobs}
    for job in manifest.slurm_jobs:
        jobs.setdefault(job.graph_job, []).append(job)
    return {name: _view(graph_job, jobs[name], manifest) for name, graph_job in graph.jobs.items()}


def _view(graph_job: GraphJob, jobs: list[SlurmJob], manifest: LaunchManifest) -> GraphJobView:
    states: dict[int, JobState] = {}
    failures: Counter[int] = Counter()
    ended_s: dict[int, float] = {}
    for job in jobs:  # in the manifest, a later attempt follows an earlier one and replaces it here
        for task, state in job.task_states().items():
            item = job.first_item + task
            states[item], ended_s[item] = state, job.ended_s
            failures[item] += state in RETRIED
    return GraphJobView(
        graph_job=graph_job, states=states, num_failures=failures, ended_s=ended_s,
        parts=frozenset(job.part for job in jobs), is_skipped=graph_job.name in manifest.skipped,
        num_parts=num_parts(graph_job, manifest.max_array_tasks),
        extra_retries=manifest.forgiven.get(graph_job.name, 0),
    )  # fmt: skip


def decide(graph: Graph, manifest: LaunchManifest, *, now_s: float) -> Decision:
    """What to submit now, what to skip, and when the next retry is due."""
    if manifest.is_stopped:
        return Decision(is_done=all(job.has_ended for job in manifest.slurm_jobs))
    all_views = views(graph, manifest)
    to_submit: list[JobToSubmit] = []
    coming: set[str] = set()
    skipped: dict[str, str] = {}
    due_times_s: list[float] = []
    for name, view in all_views.items():
        if view.is_skipped:
            continue
        if len(view.parts) < view.num_parts:
            first, reason = _first_jobs(graph, all_views, skipped, coming, name, manifest)
            to_submit += first
            coming.update([name] if first else [])
            if reason:
                skipped[name] = reason
        elif reason := _removed_by_slurm(graph, all_views, skipped, name):
            skipped[name] = reason
            continue
        retries, due_s = _retries(view, manifest, now_s)
        to_submit += retries
        due_times_s += [] if due_s is None else [due_s]
    is_done = not to_submit and all(v.is_final or n in skipped for n, v in all_views.items())
    return Decision(
        to_submit=tuple(to_submit), skipped=skipped, due_s=min(due_times_s, default=None), is_done=is_done
    )  # fmt: skip


def _first_jobs(
    graph: Graph, all_views: Mapping[str, GraphJobView], skipped: Mapping[str, str], coming: set[str], name: str,
    manifest: LaunchManifest,
) -> tuple[list[JobToSubmit], str]:  # fmt: skip
    """The parts of a graph's job that have no Slurm job yet, if they may be submitted; or why it will not run.

    `coming` names the jobs whose first submission is in this pass.
    """
    view, graph_job = all_views[name], graph.jobs[name]
    allowed = frozenset(range(graph_job.num_items))
    after: list[tuple[str, str, int]] = []
    follows: list[str] = []
    for up, relation in graph_job.after.items():
        before = all_views[up]
        if before.is_final or up in skipped:
            reason, ok_items = _verdict(before, relation, was_skipped=before.is_skipped or up in skipped)
            if reason:
                return [], "" if view.parts else reason
            allowed = allowed if ok_items is None else allowed & ok_items
        elif before.graph_job.is_chained and (len(before.parts) == before.num_parts or up in coming):
            if relation == "corr":
                follows.append(up)
            else:
                after.append((RELATIONS[relation], up, ALL_PARTS))
        else:
            return [], ""
    after += [("singleton", "", ALL_PARTS)] if graph_job.singleton else []
    size, to_submit = manifest.max_array_tasks, []
    for part in sorted(set(range(view.num_parts)) - view.parts):
        first = part * size
        tasks = tuple(i - first for i in range(first, min(first + size, graph_job.num_items)) if i in allowed)
        if not tasks:
            continue
        own = [*after, *((RELATIONS["corr"], up, part) for up in follows)]
        # Parts run one after the other. Slurm limits tasks at once per array, and the limit is meant for the whole job.
        own += [("afterany", name, part - 1)] if part > 0 else []
        to_submit.append(JobToSubmit(graph_job=name, part=part, attempt=0, tasks=tasks, after=tuple(own)))
    return to_submit, ""


def _removed_by_slurm(
    graph: Graph, all_views: Mapping[str, GraphJobView], skipped: Mapping[str, str], name: str
) -> str:
    """Why Slurm removed a submitted job from its queue: its dependency can no longer be met. Empty: it did not."""
    view = all_views[name]
    if any(state is not JobState.CANCELLED for state in view.states.values()):
        return ""
    for up, relation in graph.jobs[name].after.items():
        before = all_views[up]
        if before.is_final or up in skipped:
            reason, _ = _verdict(before, relation, was_skipped=before.is_skipped or up in skipped)
            if reason:
                return reason
    return ""


def _verdict(before: GraphJobView, relation: str, *, was_skipped: bool) -> tuple[str, frozenset[int] | None]:
    """Why a job that has ended prevents the next one, or else the items that may run next; None: all items."""
    name, ok_items = before.graph_job.name, before.ok_items
    if relation == "ok" and (was_skipped or not before.all_ok):
        return f"{name} did not succeed", None
    if relation == "notok" and not was_skipped and before.all_ok:
        return f"{name} succeeded", None
    if relation == "corr":
        return ("" if ok_items else f"no item of {name} succeeded"), ok_items
    return "", None


def _retries(view: GraphJobView, manifest: LaunchManifest, now_s: float) -> tuple[list[JobToSubmit], float | None]:
    """Failed items whose retry is due, in one Slurm job per part; and the time of the next retry after these."""
    rule, size = view.graph_job.retries, manifest.max_array_tasks
    due: dict[int, list[int]] = {}
    later: list[float] = []
    for item, state in view.states.items():
        if not (state.has_ended and view.may_retry(item)):
            continue
        num_failures = view.num_failures[item]
        at_s = view.ended_s[item] + (rule.wait_s(num_failures) if num_failures <= rule.limit else 0.0)
        if at_s <= now_s:
            due.setdefault(item // size, []).append(item)
        else:
            later.append(at_s)
    to_submit = []
    for part, items in sorted(due.items()):
        attempt = max(view.num_failures[item] for item in items)
        tasks = tuple(sorted(item - part * size for item in items))
        to_submit.append(JobToSubmit(graph_job=view.graph_job.name, part=part, attempt=attempt, tasks=tasks))
    return to_submit, min(later, default=None)


def excluded_nodes(manifest: LaunchManifest, exclude_after: int) -> tuple[str, ...]:
    """Nodes to exclude: most items failed there, and items succeeded elsewhere, so the program is not the cause."""
    failures: Counter[str] = Counter()
    successes: Counter[str] = Counter()
    for job in manifest.slurm_jobs:
        failures.update(job.failures)
        successes.update(job.successes)
    bad = {node for node, count in failures.items() if count >= exclude_after and count > successes[node]}
    return tuple(sorted(bad)) if set(successes) - bad else ()
