"""A resolved graph of jobs: checked for cycles, in order, with all items. Nothing is submitted here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError, UnknownNameError
from scalewright.launch.graph.file import GraphFile, GraphJobTable, Relation, Resources, job_resources, read_items
from scalewright.launch.plan_job import whole_run_of
from scalewright.records.documents import digest, document, read_document
from scalewright.records.loader import restore, stored
from scalewright.sites.walltime import format_walltime

KIND = "resolved-graph"
RELATIONS: dict[Relation, str] = {"ok": "afterok", "any": "afterany", "notok": "afternotok", "corr": "aftercorr"}
"""Slurm's kind of dependency for each relation of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """How often failed items are submitted again, and after which wait."""

    limit: int
    backoff_s: float
    longest_s: float

    def wait_s(self, num_failures: int) -> float:
        """Wait after the n-th failure: it doubles each time, up to the longest."""
        return float(min(self.backoff_s * 2.0 ** (num_failures - 1), self.longest_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """A job passes if the number `key` of this file is at least `min_score`."""

    file: str
    key: str
    min_score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphJob:
    """One job of a graph, or one array of tasks with an item each."""

    name: str
    command: tuple[str, ...]
    script: Path | None
    plan: Path | None
    options: Mapping[str, Any]
    """Other resources that the job requests, by the field names of `JobRequest`."""
    num_nodes: int | None
    gpus_per_node: int
    walltime_s: int | None
    items: tuple[str, ...]
    """Empty: one job without an array."""
    width: int
    after: Mapping[str, Relation]
    singleton: bool
    retries: RetryRule
    gate: GateRule | None
    planned_gpu_s: float | None = None
    """Device time predicted by the plan."""

    @property
    def num_gpus(self) -> int:
        """GPUs of one item, including its spare nodes. 0 if only the user's own script gives the number."""
        return ((self.num_nodes or 0) + int(self.options.get("num_spares", 0))) * self.gpus_per_node

    @property
    def num_items(self) -> int:
        return max(len(self.items), 1)

    @property
    def is_chained(self) -> bool:
        """Whether the jobs after it can be submitted at once, with Slurm's dependencies.

        With retries or a gate they cannot: Slurm takes the end of the first attempt for the end of the job.
        """
        return self.retries.limit == 0 and self.gate is None

    @property
    def gpu_s_per_item(self) -> float | None:
        """Device time of one item: as the plan predicts, else the most that its time limit allows. None: unknown."""
        if self.planned_gpu_s is not None:
            return self.planned_gpu_s
        if self.num_nodes is None or self.walltime_s is None:
            return None
        return float(self.num_gpus * self.walltime_s)

    @property
    def gpu_s(self) -> float | None:
        per_item_s = self.gpu_s_per_item
        return None if per_item_s is None else per_item_s * self.num_items


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    name: str
    site: str
    folder: Path
    """Folder of the graph file. Its relative paths start here, and jobs run here."""
    jobs: Mapping[str, GraphJob]
    """By name. Each job comes after all jobs that it waits for."""
    exclude_after: int
    warn_gpu_hours: float | None
    limit_gpu_hours: float | None
    system: str

    @property
    def num_items(self) -> int:
        return sum(job.num_items for job in self.jobs.values())

    def as_document(self) -> dict[str, Any]:
        body = stored(self)
        return document(KIND, {"id": digest(body), **body})

    def waits_for_the_driver(self) -> set[str]:
        """Names of jobs that the driver submits later, because a job before them has retries or a gate."""
        waiting: set[str] = set()
        for name, job in self.jobs.items():
            if any(not self.jobs[up].is_chained or up in waiting for up in job.after):
                waiting.add(name)
        return waiting


def resolve(file: GraphFile, path: Path, *, gpus_of_site: Callable[[], int] = lambda: 0) -> Graph:
    """The graph of a file. `gpus_of_site` gives the GPUs per node for jobs that do not say."""
    folder = path.resolve().parent
    order = _ordered(file, path)
    site_gpus: list[int] = []

    def gpus() -> int:
        if not site_gpus:
            site_gpus.append(gpus_of_site())
        return site_gpus[0]

    jobs = {name: _graph_job(name, file.jobs[name], file, folder, path, gpus) for name in order}
    for name, job in jobs.items():
        for up, relation in job.after.items():
            if relation == "corr" and len(jobs[up].items) != len(job.items):
                raise ConfigError(
                    f"{path}: {name} follows {up} item by item, but {name} has {job.num_items} items and {up} has "
                    f"{jobs[up].num_items}: give both the same number"
                )
    return Graph(
        name=file.name, site=file.site, folder=folder, jobs=jobs, exclude_after=file.exclude_after,
        warn_gpu_hours=file.budget.warn_gpu_hours, limit_gpu_hours=file.budget.limit_gpu_hours,
        system=file.budget.system,
    )  # fmt: skip


def load_graph(path: Path) -> Graph:
    """The resolved graph that was written into the launch folder."""
    body = read_document(path, KIND)
    if "stages" in body:  # written before nodes of a graph were called jobs
        body["jobs"] = body.pop("stages")
    return restore(body, Graph, where=str(path))


def _ordered(file: GraphFile, path: Path) -> list[str]:
    for name, job in file.jobs.items():
        for up in job.after:
            if up not in file.jobs:
                raise UnknownNameError("job", up, file.jobs, hint=f"{path}: {name} waits for it")
    sorter = TopologicalSorter({name: list(job.after) for name, job in file.jobs.items()})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        raise ConfigError(
            f"{path}: jobs wait for each other in a circle ({' after '.join(circle)}): remove one of these from after"
        ) from error


def _graph_job(
    name: str, job: GraphJobTable, file: GraphFile, folder: Path, path: Path, site_gpus: Callable[[], int]
) -> GraphJob:
    resources = job_resources(job, file.defaults)
    nodes, gpus, walltime_s = resources.nodes, resources.gpus_per_node, resources.time
    planned_gpu_s: float | None = None
    plan = folder / job.plan if job.plan else None
    if plan is not None:
        nodes, gpus, planned_gpu_s = _planned(plan)
    elif job.command:
        if nodes is None or walltime_s is None:
            missing = "nodes" if nodes is None else "time"
            raise ConfigError(
                f"{path}: job {name} has no {missing}: write {missing} = in [jobs.{name}] or in [defaults]"
            )
        gpus = gpus or site_gpus()
    if not job.script and not file.site:
        raise ConfigError(
            f"{path}: job {name} needs the profile of a site for its script: write site = in the file, or give --site"
        )
    gate, script = job.gate, folder / job.script if job.script else None
    if script is not None and not script.is_file():
        raise ConfigError(f"{script}: no such file; it is the script of job {name}")
    return GraphJob(
        name=name, command=job.command, script=script, plan=plan, options=_options(resources), num_nodes=nodes,
        gpus_per_node=gpus, walltime_s=walltime_s, items=_items(job, folder), width=job.width,
        after=dict(job.after), singleton=job.singleton, planned_gpu_s=planned_gpu_s,
        retries=RetryRule(
            limit=job.retries.limit, backoff_s=job.retries.backoff, longest_s=job.retries.longest
        ),
        gate=None if gate is None else GateRule(file=gate.file, key=gate.key, min_score=gate.min),
    )  # fmt: skip


def _options(resources: Resources) -> dict[str, Any]:
    """What the file gives besides size and time, by the field names of `JobRequest`."""
    renamed = {"env": "variables", "notice": "notice_s", "spares": "num_spares"}
    names = resources.model_fields_set - {"nodes", "gpus_per_node", "time"}
    in_order = [name for name in Resources.model_fields if name in names]
    options = {renamed.get(name, name): getattr(resources, name) for name in in_order}
    return options | ({"notice_s": int(resources.notice)} if "notice" in names else {})


def _planned(path: Path) -> tuple[int, int, float]:
    plan = read_document(path, "plan")
    whole = whole_run_of(plan, where=str(path))
    nodes = int(plan["num_nodes"])
    return nodes, -(-int(plan["num_gpus"]) // nodes), float(whole["device_time_s"])


def _items(job: GraphJobTable, folder: Path) -> tuple[str, ...]:
    if not job.items_file:
        return job.items
    return read_items(folder / job.items_file)


def with_items(graph: Graph, kept: Mapping[str, int]) -> Graph:
    """The graph with only the first `kept[name]` items of each job in `kept`."""
    jobs = {n: replace(job, items=job.items[: kept[n]]) if n in kept else job for n, job in graph.jobs.items()}
    return replace(graph, jobs=jobs)


def outline(graph: Graph) -> list[str]:
    """The graph as text: one line for each job with its size, and below it the jobs it waits for."""
    lines = [f"{graph.name}: {len(graph.jobs)} jobs, {graph.num_items} items"]
    waiting = graph.waits_for_the_driver()
    for name, job in graph.jobs.items():
        lines.append(f"  {name}: {_size(job)}")
        lines += [f"    {RELATIONS[relation]} {up}" for up, relation in job.after.items()]
        if job.singleton:
            lines.append("    singleton")
        if job.retries.limit:
            lines.append(f"    up to {job.retries.limit} retries, the first after {job.retries.backoff_s:g} s")
        if job.gate is not None:
            lines.append(f"    gate: {job.gate.key} of {job.gate.file} at least {job.gate.min_score:g}")
        if name in waiting:
            lines.append("    submitted by the driver when the jobs before it have ended")
    return lines


def _size(job: GraphJob) -> str:
    parts = [f"{len(job.items)} items, {job.width} at once"] if job.items else ["one job"]
    if job.num_nodes is not None:
        parts.append(f"{job.num_nodes} nodes x {job.gpus_per_node} GPUs")
    if job.walltime_s is not None:
        parts.append(format_walltime(job.walltime_s))
    return ", ".join(parts)


def dot(graph: Graph) -> str:
    """The graph as a Graphviz file."""
    lines = [f"digraph {_quoted(graph.name)} {{", "  rankdir=LR; node [shape=box];"]
    for name, job in graph.jobs.items():
        lines.append(f"  {_quoted(name)} [label={_quoted(f'{name} ({job.num_items})')}];")
        lines += [f"  {_quoted(up)} -> {_quoted(name)} [label={_quoted(rel)}];" for up, rel in job.after.items()]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
