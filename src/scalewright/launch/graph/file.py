"""The graph file, as users write it: one `[jobs.NAME]` table for each job, with its command and what it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from scalewright import units
from scalewright.catalog.facts import Strict
from scalewright.errors import ConfigError
from scalewright.records.documents import read_text
from scalewright.records.loader import Prepared, load_toml
from scalewright.sites.walltime import Walltime

KIND = "graph"
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
Relation = Literal["ok", "any", "notok", "corr"]
"""When a job may start: ok, all items of the other job succeeded; any, all ended; notok, one did not succeed; corr,
item n starts after item n of the other job. Slurm calls them afterok, afterany, afternotok and aftercorr."""


def _duration(text: Any) -> Any:
    if not isinstance(text, str):
        raise ValueError(f'{text!r} is not a time: write it with its unit, such as "60 s"')
    try:
        return units.parse(text, units.SECONDS)
    except ConfigError as error:
        raise ValueError(str(error)) from error


Duration = Annotated[float, BeforeValidator(_duration, json_schema_input_type=str)]
Word = Annotated[str, Field(min_length=1)]


class Retries(Strict):
    """Failed items are submitted again, without the others. The wait doubles from `backoff` up to `longest`."""

    limit: int = Field(ge=0, le=20)
    backoff: Duration = 60.0
    longest: Duration = 3600.0


class Gate(Strict):
    """A job passes if the number `key` (dots for inner keys) of a JSON file in its run directory is at least `min`."""

    file: Word
    key: Word
    min: float

    @model_validator(mode="after")
    def _stays_inside(self) -> Gate:
        if self.file.startswith("/") or ".." in Path(self.file).parts:
            raise ValueError(f"gate file {self.file!r} must be a path inside the job's run directory")
        return self


class Resources(Strict):
    """What a job requests. Empty or 0: the site's default, as with `launch`."""

    nodes: int | None = Field(default=None, ge=1)
    gpus_per_node: int = Field(default=0, ge=0)
    spares: int = Field(default=0, ge=0)
    """Additional nodes, so that the job can leave out bad ones."""
    time: Walltime | None = None
    account: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    launcher: Literal["auto", "srun", "torchrun"] = "auto"
    transport: str = "auto"
    modules: tuple[str, ...] = ()
    venv: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    directives: dict[str, str] = Field(default_factory=dict)
    """More options of sbatch by name, such as exclude."""
    notice: Duration = 0.0
    requeue: bool = True


class GraphJobTable(Resources):
    """One `[jobs.NAME]` table. Exactly one of `command`, `script` and `plan` says what runs."""

    command: tuple[Word, ...] = ()
    script: str = ""
    """The user's own job script, submitted unchanged."""
    plan: str = ""
    """A plan written by `scalewright plan --out`."""
    after: dict[str, Relation] = Field(default_factory=dict)
    singleton: bool = False
    """Wait for every other job with the same name and user."""
    items: tuple[Word, ...] = ()
    """One array task for each. The command gets its item as `{item}` and as $SCALEWRIGHT_ITEM."""
    items_file: str = ""
    width: int = Field(default=20, ge=1)
    """Items that may run at once."""
    retries: Retries = Retries(limit=0)
    gate: Gate | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> GraphJobTable:
        sources = [name for name in ("command", "script", "plan") if getattr(self, name)]
        if len(sources) != 1:
            raise ValueError(f"a job has one of command, script and plan, found {' and '.join(sources) or 'none'}")
        if self.script and self.spares:
            raise ValueError("spares work with command or plan only: your own script does not check its nodes")
        if self.items and self.items_file:
            raise ValueError("a job has items or items_file, not both")
        if any("\n" in item for item in self.items):
            raise ValueError("an item must be one line")
        if self.plan and (self.items or self.items_file):
            raise ValueError("a plan is one run: leave out items and items_file")
        return self


class BudgetFile(Strict):
    """GPU-hours that the graph may use, and the catalogued system that gives prices and power."""

    warn_gpu_hours: float | None = Field(default=None, ge=0)
    limit_gpu_hours: float | None = Field(default=None, ge=0)
    system: str = ""


class GraphFile(Strict):
    schema_: str = Field(alias="schema")
    name: str = Field(pattern=NAME)
    site: str = ""
    """Profile of the cluster. Jobs with a command or a plan need it."""
    exclude_after: int = Field(default=2, ge=1)
    """A node is excluded after this many items failed on it, if items succeeded on other nodes."""
    budget: BudgetFile = BudgetFile()
    defaults: Resources = Resources()
    jobs: dict[Annotated[str, Field(pattern=NAME)], GraphJobTable] = Field(min_length=1)


def load_graph_file(path: Path) -> GraphFile:
    return load_toml(path, GraphFile, kind=KIND, prepare=_refuse_stages)


def _refuse_stages(table: dict[str, Any]) -> Prepared:
    if "stages" not in table:
        return table, []
    stages = table["stages"]
    name = next(iter(stages), "NAME") if isinstance(stages, dict) else "NAME"
    renamed = {key: value for key, value in table.items() if key != "stages"} | {"jobs": stages}
    return renamed, [f"has [stages.{name}], the old name of a graph's jobs: write [jobs.{name}]"]


def job_resources(job: GraphJobTable, defaults: Resources) -> Resources:
    """The resources of a job: its own values, else the defaults. The environment variables of both are merged.

    `model_fields_set` of the value returned names what the file gives.
    """
    own = {name: getattr(job, name) for name in job.model_fields_set if name in Resources.model_fields}
    if "env" in own:
        own["env"] = {**defaults.env, **job.env}
    return defaults.model_copy(update=own)


def read_items(path: Path) -> tuple[str, ...]:
    """One item of work per line."""
    lines = read_text(path).split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if not lines:
        raise ConfigError(f"{path}: has no lines; write one item per line")
    empty = next((number for number, line in enumerate(lines, start=1) if not line.strip()), 0)
    if empty:
        raise ConfigError(f"{path}, line {empty}: is empty; write one item per line")
    return tuple(lines)
