"""The file in which people describe a graph of jobs: stages, what each runs, and what each waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from scalewright import units
from scalewright.catalog.facts import Strict
from scalewright.errors import ConfigError
from scalewright.records.documents import read_text
from scalewright.records.loader import load_toml
from scalewright.sites.walltime import Walltime

KIND = "graph"
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
Relation = Literal["ok", "any", "notok", "corr"]
"""afterok, afterany, afternotok, aftercorr: all succeeded; all ended; one did not succeed; item n after item n."""


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
    """Items that failed are submitted again, alone. Waits double from `backoff` to `longest`."""

    limit: int = Field(ge=0, le=20)
    backoff: Duration = 60.0
    longest: Duration = 3600.0


class Gate(Strict):
    """A score that decides what follows: `key` (dots for inner keys) of a JSON file in the run directory."""

    file: Word
    key: Word
    min: float

    @model_validator(mode="after")
    def _stays_inside(self) -> Gate:
        if self.file.startswith("/") or ".." in Path(self.file).parts:
            raise ValueError(f"gate file {self.file!r} must be inside the stage's run directory")
        return self


class Resources(Strict):
    """What a job asks for. Empty or 0: the site's own choice, as with `launch`."""

    nodes: int | None = Field(default=None, ge=1)
    gpus_per_node: int = Field(default=0, ge=0)
    spares: int = Field(default=0, ge=0)
    """Nodes asked for on top, so that bad ones can be left out."""
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


class StageFile(Resources):
    """One of `command`, `script` and `plan` says what runs."""

    command: tuple[Word, ...] = ()
    script: str = ""
    """A job script of one's own, submitted as it is."""
    plan: str = ""
    """A plan that `scalewright plan --out` wrote."""
    after: dict[str, Relation] = Field(default_factory=dict)
    singleton: bool = False
    """Waits for every other job of the same name and user."""
    items: tuple[Word, ...] = ()
    """One array task each; `{item}` in the command stands for it, as does $SCALEWRIGHT_ITEM."""
    items_file: str = ""
    width: int = Field(default=20, ge=1)
    """Items that may run at once."""
    retries: Retries = Retries(limit=0)
    gate: Gate | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> StageFile:
        given = [name for name in ("command", "script", "plan") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"a stage has one of command, script and plan, found {' and '.join(given) or 'none'}")
        if self.script and self.spares:
            raise ValueError(
                "spares are for jobs whose script is made here: a script of one's own does not check nodes"
            )
        if self.items and self.items_file:
            raise ValueError("a stage has items or items_file, not both")
        if any("\n" in item for item in self.items):
            raise ValueError("an item must be one line")
        if self.plan and (self.items or self.items_file):
            raise ValueError("a plan is one run: leave out its items")
        return self


class BudgetFile(Strict):
    """GPU-hours that the graph may use, and the system whose prices and power hold."""

    warn_gpu_hours: float | None = Field(default=None, ge=0)
    limit_gpu_hours: float | None = Field(default=None, ge=0)
    system: str = ""


class GraphFile(Strict):
    schema_: str = Field(alias="schema")
    name: str = Field(pattern=NAME)
    site: str = ""
    """Profile of the cluster; needed where a stage has a command or a plan."""
    exclude_after: int = Field(default=2, ge=1)
    """A node is left out once so many items failed on it while others succeeded elsewhere."""
    budget: BudgetFile = BudgetFile()
    defaults: Resources = Resources()
    stages: dict[Annotated[str, Field(pattern=NAME)], StageFile] = Field(min_length=1)


def load_graph_file(path: Path) -> GraphFile:
    return load_toml(path, GraphFile, kind=KIND)


def asked_for(stage: StageFile, defaults: Resources) -> dict[str, Any]:
    """What a stage asks for, by the names of `Resources`: its own values, and the defaults where it has none.

    Variables of both hold; the stage's win. What neither gives is left out.
    """
    found = {name: getattr(defaults, name) for name in defaults.model_fields_set}
    found |= {name: getattr(stage, name) for name in stage.model_fields_set if name in Resources.model_fields}
    return found | ({"env": {**defaults.env, **stage.env}} if "env" in found else {})


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
