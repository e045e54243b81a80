"""Where a graph stands, and what is to do next. Pure: a graph, a manifest and the time in; submissions out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewright.launch.graph.graph import RELATIONS, Graph, Stage
from scalewright.launch.graph.manifest import Job, Manifest
from scalewright.launch.slurm.job_state import RETRIED, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """A stage by its items. Items that no job covers have no state."""

    stage: Stage
    states: Mapping[int, JobState]
    num_failures: Mapping[int, int]
    settled_s: Mapping[int, float]
    parts: frozenset[int]
    """Parts that have a job."""
    is_skipped: bool
    num_parts: int
    extra_retries: int = 0

    def may_retry(self, item: int) -> bool:
        limit = self.stage.retries.limit + self.extra_retries
        return self.states[item] in RETRIED and self.num_failures[item] <= limit

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        if self.is_skipped:
            return True
        return bool(self.states) and all(s.is_settled and not self.may_retry(i) for i, s in self.states.items())

    @property
    def ok_items(self) -> frozenset[int]:
        return frozenset(item for item, state in self.states.items() if state.is_ok)

    @property
    def all_ok(self) -> bool:
        return len(self.ok_items) == self.stage.num_items

    def counts(self) -> Counter[str]:
        return Counter(str(state) for state in self.states.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A job to submit: tasks of one part of a stage."""

    stage: str
    part: int
    attempt: int
    tasks: tuple[int, ...]
    after: tuple[tuple[str, str, int], ...] = ()
    """Slurm's kind of dependency, and the stage and part it is on; part -1: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    wanted: tuple[Wanted, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    due_s: float | None = None
    """When the next retry is due; None: none is waiting."""
    is_done: bool = False


ALL_PARTS = -1


def num_parts(stage: Stage, max_array_tasks: int) -> int:
    return -(-stage.num_items // max_array_tasks)


def views(graph: Graph, manifest: Manifest) -> dict[str, StageView]:
    jobs: dict[str, list[Job]] = {name: [] for name in graph.stages}
    for job in manifest.jobs:
        jobs.setdefault(job.stage, []).append(job)
    return {name: _view(stage, jobs[name], manifest) for name, stage in graph.stages.items()}


def _view(stage: Stage, jobs: list[Job], manifest: Manifest) -> StageView:
    states: dict[int, JobState] = {}
    failures: Counter[int] = Counter()
    settled: dict[int, float] = {}
    for job in jobs:  # later attempts come later and win
        for task, state in job.task_states().items():
            item = job.first_item + task
            states[item], settled[item] = state, job.settled_s
            failures[item] += state in RETRIED
    return StageView(
        stage=stage, states=states, num_failures=failures, settled_s=settled,
        parts=frozenset(job.part for job in jobs), is_skipped=stage.name in manifest.skipped,
        num_parts=num_parts(stage, manifest.max_array_tasks), extra_retries=manifest.forgiven.get(stage.name, 0),
    )  # fmt: skip


def decide(graph: Graph, manifest: Manifest, *, now_s: float) -> Decision:
    """What to submit now, what to give up, and how long to wait for the next retry."""
    if manifest.is_stopped:
        return Decision(is_done=all(job.is_settled for job in manifest.jobs))
    seen = views(graph, manifest)
    wanted: list[Wanted] = []
    coming: set[str] = set()
    skipped: dict[str, str] = {}
    dues: list[float] = []
    for name, view in seen.items():
        if view.is_skipped:
            continue
        if len(view.parts) < view.num_parts:
            first, reason = _first_jobs(graph, seen, skipped, coming, name, manifest)
            wanted += first
            coming.update([name] if first else [])
            if reason:
                skipped[name] = reason
        elif reason := _never(graph, seen, skipped, name):
            skipped[name] = reason
            continue
        again, due = _retries(view, manifest, now_s)
        wanted += again
        dues += [] if due is None else [due]
    is_done = not wanted and all(v.is_final or n in skipped for n, v in seen.items())
    return Decision(wanted=tuple(wanted), skipped=skipped, due_s=min(dues, default=None), is_done=is_done)


def _first_jobs(
    graph: Graph, seen: Mapping[str, StageView], skipped: Mapping[str, str], coming: set[str], name: str,
    manifest: Manifest,
) -> tuple[list[Wanted], str]:  # fmt: skip
    """The parts of a stage that have no job yet, if they may go; or why the stage will not run."""
    view, stage = seen[name], graph.stages[name]
    allowed = frozenset(range(stage.num_items))
    after: list[tuple[str, str, int]] = []
    follows: list[str] = []
    for up, relation in stage.after.items():
        before = seen[up]
        if before.is_final or up in skipped:
            reason, ok = _verdict(before, relation, was_skipped=before.is_skipped or up in skipped)
            if reason:
                return [], "" if view.parts else reason
            allowed = allowed if ok is None else allowed & ok
        elif before.stage.is_chained and (len(before.parts) == before.num_parts or up in coming):
            if relation == "corr":
                follows.append(up)
            else:
                after.append((RELATIONS[relation], up, ALL_PARTS))
        else:
            return [], ""
    after += [("singleton", "", ALL_PARTS)] if stage.singleton else []
    size, found = manifest.max_array_tasks, []
    for part in sorted(set(range(view.num_parts)) - view.parts):
        first = part * size
        tasks = tuple(i - first for i in range(first, min(first + size, stage.num_items)) if i in allowed)
        if not tasks:
            continue
        own = [*after, *((RELATIONS["corr"], up, part) for up in follows)]
        # One part after the other, so that the cap on tasks at once holds for the stage.
        own += [("afterany", name, part - 1)] if part > 0 else []
        found.append(Wanted(stage=name, part=part, attempt=0, tasks=tasks, after=tuple(own)))
    return found, ""


def _never(graph: Graph, seen: Mapping[str, StageView], skipped: Mapping[str, str], name: str) -> str:
    """Why Slurm took a submitted stage out of its queue: what it waited for has ended otherwise. Empty: it did not."""
    view = seen[name]
    if any(state is not JobState.CANCELLED for state in view.states.values()):
        return ""
    for up, relation in graph.stages[name].after.items():
        before = seen[up]
        if before.is_final or up in skipped:
            reason, _ = _verdict(before, relation, was_skipped=before.is_skipped or up in skipped)
            if reason:
                return reason
    return ""


def _verdict(before: StageView, relation: str, *, was_skipped: bool) -> tuple[str, frozenset[int] | None]:
    """Why a stage that has ended does not let another run, or which items it lets run; None: all of them."""
    name, ok = before.stage.name, before.ok_items
    if relation == "ok" and (was_skipped or not before.all_ok):
        return f"{name} did not succeed", None
    if relation == "notok" and not was_skipped and before.all_ok:
        return f"{name} succeeded", None
    if relation == "corr":
        return ("" if ok else f"no item of {name} succeeded"), ok
    return "", None


def _retries(view: StageView, manifest: Manifest, now_s: float) -> tuple[list[Wanted], float | None]:
    """Failed items that are due, alone, in one job per part; and when the next one will be."""
    rule, size = view.stage.retries, manifest.max_array_tasks
    due: dict[int, list[int]] = {}
    later: list[float] = []
    for item, state in view.states.items():
        if not (state.is_settled and view.may_retry(item)):
            continue
        num_failures = view.num_failures[item]
        at_s = view.settled_s[item] + (rule.wait_s(num_failures) if num_failures <= rule.limit else 0.0)
        if at_s <= now_s:
            due.setdefault(item // size, []).append(item)
        else:
            later.append(at_s)
    found = []
    for part, items in sorted(due.items()):
        attempt = max(view.num_failures[item] for item in items)
        tasks = tuple(sorted(item - part * size for item in items))
        found.append(Wanted(stage=view.stage.name, part=part, attempt=attempt, tasks=tasks))
    return found, min(later, default=None)


def excluded_nodes(manifest: Manifest, exclude_after: int) -> tuple[str, ...]:
    """Nodes to leave out: mostly failures there, and something succeeded elsewhere, so that it is not the program."""
    failures: Counter[str] = Counter()
    successes: Counter[str] = Counter()
    for job in manifest.jobs:
        failures.update(job.failures)
        successes.update(job.successes)
    bad = {node for node, count in failures.items() if count >= exclude_after and count > successes[node]}
    return tuple(sorted(bad)) if set(successes) - bad else ()
