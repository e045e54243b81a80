"""A graph of jobs, resolved: checked for cycles, put in order, items counted. Pure; nothing is submitted here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError, UnknownNameError
from scalewright.launch.graph.file import GraphFile, Relation, StageFile, asked_for, read_items
from scalewright.launch.plan_job import whole_run_of
from scalewright.records.documents import digest, document, read_document
from scalewright.records.loader import restore, stored
from scalewright.sites.walltime import format_walltime

KIND = "resolved-graph"
RELATIONS: dict[Relation, str] = {"ok": "afterok", "any": "afterany", "notok": "afternotok", "corr": "aftercorr"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    limit: int
    backoff_s: float
    longest_s: float

    def wait_s(self, num_failures: int) -> float:
        """How long to wait after the n-th failure: doubling, up to the longest."""
        return float(min(self.backoff_s * 2.0 ** (num_failures - 1), self.longest_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    file: str
    key: str
    min_score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    name: str
    command: tuple[str, ...]
    script: Path | None
    plan: Path | None
    options: Mapping[str, Any]
    """What else the job asks for, by the names of `JobRequest`."""
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
    """Device time that the plan predicts."""

    @property
    def num_gpus(self) -> int:
        """Of one job, those of its spare nodes among them; 0 where a script of somebody's own says it."""
        return ((self.num_nodes or 0) + int(self.options.get("num_spares", 0))) * self.gpus_per_node

    @property
    def num_items(self) -> int:
        return max(len(self.items), 1)

    @property
    def is_chained(self) -> bool:
        """Whether what follows may be submitted now, with Slurm's own dependencies: this stage ends only once."""
        return self.retries.limit == 0 and self.gate is None

    @property
    def gpu_s_per_item(self) -> float | None:
        """Device time of one item: what the plan predicts, else all that its time limit allows; None: not known."""
        if self.planned_gpu_s is not None:
            return self.planned_gpu_s
        if self.num_nodes is None or self.walltime_s is None:
            return None
        return float(self.num_gpus * self.walltime_s)

    @property
    def gpu_s(self) -> float | None:
        one = self.gpu_s_per_item
        return None if one is None else one * self.num_items


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    name: str
    site: str
    folder: Path
    """Where the file lies; its paths start here, and so do the jobs."""
    stages: Mapping[str, Stage]
    """In an order in which each comes after all that it waits for."""
    exclude_after: int
    warn_gpu_hours: float | None
    limit_gpu_hours: float | None
    system: str

    @property
    def num_items(self) -> int:
        return sum(stage.num_items for stage in self.stages.values())

    def as_document(self) -> dict[str, Any]:
        body = stored(self)
        return document(KIND, {"id": digest(body), **body})

    def waits_for_the_driver(self) -> set[str]:
        """Stages that can be submitted only once somebody has looked at what came before."""
        held: set[str] = set()
        for name, stage in self.stages.items():
            if any(not self.stages[up].is_chained or up in held for up in stage.after):
                held.add(name)
        return held


def resolve(file: GraphFile, path: Path, *, gpus_of_site: Callable[[], int] = lambda: 0) -> Graph:
    """The graph of a file; `gpus_of_site` says what a node has where a stage does not."""
    folder = path.resolve().parent
    order = _ordered(file, path)
    site_gpus: list[int] = []

    def gpus() -> int:
        if not site_gpus:
            site_gpus.append(gpus_of_site())
        return site_gpus[0]

    stages = {name: _stage(name, file.stages[name], file, folder, path, gpus) for name in order}
    for name, stage in stages.items():
        for up, relation in stage.after.items():
            if relation == "corr" and len(stages[up].items) != len(stage.items):
                raise ConfigError(
                    f"{path}: {name} follows {up} item by item, but they have {stage.num_items} and "
                    f"{stages[up].num_items} items: give both the same number"
                )
    return Graph(
        name=file.name, site=file.site, folder=folder, stages=stages, exclude_after=file.exclude_after,
        warn_gpu_hours=file.budget.warn_gpu_hours, limit_gpu_hours=file.budget.limit_gpu_hours,
        system=file.budget.system,
    )  # fmt: skip


def load_graph(path: Path) -> Graph:
    """A resolved graph as it was written beside the jobs."""
    return restore(read_document(path, KIND), Graph, where=str(path))


def _ordered(file: GraphFile, path: Path) -> list[str]:
    for name, stage in file.stages.items():
        for up in stage.after:
            if up not in file.stages:
                raise UnknownNameError("stage", up, file.stages, hint=f"{path}: {name} waits for it")
    sorter = TopologicalSorter({name: list(stage.after) for name, stage in file.stages.items()})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        raise ConfigError(
            f"{path}: stages wait for each other in a circle ({' after '.join(circle)}): take one of these out of after"
        ) from error


def _stage(
    name: str, stage: StageFile, file: GraphFile, folder: Path, path: Path, site_gpus: Callable[[], int]
) -> Stage:
    asked = asked_for(stage, file.defaults)
    nodes, gpus, walltime_s = asked.get("nodes"), asked.get("gpus_per_node", 0), asked.get("time")
    planned_gpu_s: float | None = None
    plan = folder / stage.plan if stage.plan else None
    if plan is not None:
        nodes, gpus, planned_gpu_s = _planned(plan)
    elif stage.command:
        if nodes is None or walltime_s is None:
            what = "nodes" if nodes is None else "time"
            raise ConfigError(f"{path}: stage {name} does not say its {what}: write it there or under defaults")
        gpus = gpus or site_gpus()
    if not stage.script and not file.site:
        raise ConfigError(f"{path}: stage {name} needs a site to be made into a script: write site = or give --site")
    gate, script = stage.gate, folder / stage.script if stage.script else None
    if script is not None and not script.is_file():
        raise ConfigError(f"{script}: no such file; stage {name} wants to submit it")
    return Stage(
        name=name, command=stage.command, script=script, plan=plan, options=_options(asked), num_nodes=nodes,
        gpus_per_node=gpus, walltime_s=walltime_s, items=_items(stage, folder), width=stage.width,
        after=dict(stage.after), singleton=stage.singleton, planned_gpu_s=planned_gpu_s,
        retries=RetryRule(
            limit=stage.retries.limit, backoff_s=stage.retries.backoff, longest_s=stage.retries.longest
        ),
        gate=None if gate is None else GateRule(file=gate.file, key=gate.key, min_score=gate.min),
    )  # fmt: skip


def _options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage asks for besides its size and time, by the names of `JobRequest`."""
    renamed = {"env": "variables", "notice": "notice_s", "spares": "num_spares"}
    apart = ("nodes", "gpus_per_node", "time")
    found = {renamed.get(name, name): value for name, value in asked.items() if name not in apart}
    return found | ({"notice_s": int(found["notice_s"])} if "notice_s" in found else {})


def _planned(path: Path) -> tuple[int, int, float]:
    plan = read_document(path, "plan")
    whole = whole_run_of(plan, where=str(path))
    nodes = int(plan["num_nodes"])
    return nodes, -(-int(plan["num_gpus"]) // nodes), float(whole["device_time_s"])


def _items(stage: StageFile, folder: Path) -> tuple[str, ...]:
    if not stage.items_file:
        return stage.items
    return read_items(folder / stage.items_file)


def with_items(graph: Graph, kept: Mapping[str, int]) -> Graph:
    """The graph with only the first so many items of some stages."""
    stages = {n: replace(s, items=s.items[: kept[n]]) if n in kept else s for n, s in graph.stages.items()}
    return replace(graph, stages=stages)


def outline(graph: Graph) -> list[str]:
    """The graph as lines of text: each stage with its size, and below it what it waits for."""
    lines = [f"{graph.name}: {len(graph.stages)} stages, {graph.num_items} items"]
    held = graph.waits_for_the_driver()
    for name, stage in graph.stages.items():
        lines.append(f"  {name}: {_size(stage)}")
        lines += [f"    {RELATIONS[relation]} {up}" for up, relation in stage.after.items()]
        if stage.singleton:
            lines.append("    singleton")
        if stage.retries.limit:
            lines.append(f"    up to {stage.retries.limit} retries, the first after {stage.retries.backoff_s:g} s")
        if stage.gate is not None:
            lines.append(f"    gate: {stage.gate.key} of {stage.gate.file} at least {stage.gate.min_score:g}")
        if name in held:
            lines.append("    submitted by the driver, after what comes before has ended")
    return lines


def _size(stage: Stage) -> str:
    parts = [f"{len(stage.items)} items, {stage.width} at once"] if stage.items else ["one job"]
    if stage.num_nodes is not None:
        parts.append(f"{stage.num_nodes} nodes x {stage.gpus_per_node} GPUs")
    if stage.walltime_s is not None:
        parts.append(format_walltime(stage.walltime_s))
    return ", ".join(parts)


def dot(graph: Graph) -> str:
    """The graph in the language of Graphviz."""
    lines = [f"digraph {_quoted(graph.name)} {{", "  rankdir=LR; node [shape=box];"]
    for name, stage in graph.stages.items():
        lines.append(f"  {_quoted(name)} [label={_quoted(f'{name} ({stage.num_items})')}];")
        lines += [f"  {_quoted(up)} -> {_quoted(name)} [label={_quoted(rel)}];" for up, rel in stage.after.items()]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
