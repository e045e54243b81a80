"""The types of a site profile, frozen and strict. Every value that could be wrong has its source."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field, model_validator

from scalewright.catalog.facts import Id, Strict
from scalewright.sites.account_pattern import pattern_problem
from scalewright.sites.walltime import Walltime

T = TypeVar("T")
Launcher = Literal["srun", "torchrun"]
Confidence = Literal["high", "low"]
Family = Literal["infiniband", "slingshot", "ethernet", "unknown"]
LAUNCHERS: tuple[Launcher, ...] = ("srun", "torchrun")

_PLACEHOLDER = re.compile(r"\{([a-z_]*)\}")
PLACEHOLDERS = ("nodes", "gpus", "total_gpus", "cpus", "node_cpus", "memory_gb")
_FLAG = re.compile(r"^--[a-z][a-z-]*(=[A-Za-z0-9_.,:;@+/{}*-]+)?$")
_VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
KNOWN_VARIABLES = ("USER", "HOME", "SCRATCH", "WORK", "SLURM_JOB_ID", "SLURM_JOB_ACCOUNT", "SLURM_JOB_USER")


def _flag(text: str) -> str:
    if not _FLAG.match(text):
        raise ValueError(f"{text!r} is not a flag in the form --name or --name=value")
    unknown = [name for name in _PLACEHOLDER.findall(text) if name not in PLACEHOLDERS]
    if unknown:
        raise ValueError(f"{text!r} has the unknown placeholder {unknown[0]!r}: use {', '.join(PLACEHOLDERS)}")
    return text


def _expandable(text: str) -> str:
    unknown = [name for name in _VARIABLE.findall(text) if name not in KNOWN_VARIABLES]
    if unknown:
        raise ValueError(f"{text!r} uses the unknown variable {unknown[0]}: use {', '.join(KNOWN_VARIABLES)}")
    return _one_line(text)


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} must be one line of printable text")
    return text


Seconds = Annotated[Walltime, Field(gt=0)]
Flag = Annotated[str, AfterValidator(_flag)]
Line = Annotated[str, AfterValidator(_one_line)]
Expandable = Annotated[str, AfterValidator(_expandable)]
"""Text in which the job's shell fills in KNOWN_VARIABLES, such as ${USER}; all else is literal."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9_]*$")]
"""Upper case: job scripts use lower-case names for their own variables."""


class SiteSource(Strict):
    """Where values come from. The file has each source once, under `[sources.KEY]`."""

    kind: Literal["official-doc", "project-config", "user-notes", "live", "assumed"]
    """official-doc: the operator's documentation; project-config: another project's job script; live: the scheduler."""
    text: str = Field(min_length=8)
    url: str = ""
    dated: date | None = None
    """Date of the version that was read, if it has one."""
    checked: date
    """The day when the value was last compared with the source."""
    confidence: Confidence = "high"


class Sourced(Strict):
    """A value or table with its source."""

    source: SiteSource
    note: Line = ""


class SourcedValue(Sourced, Generic[T]):
    """One value and its source."""

    value: T


class Account(Sourced):
    required: bool = True
    pattern: str = ""
    """Regular expression. An account that does not match only causes a note, because sites change their naming."""
    form: Line = ""
    """The pattern in plain words."""

    @model_validator(mode="after")
    def _compiles(self) -> Account:
        problem = pattern_problem(self.pattern)
        if problem:
            raise ValueError(f"pattern {self.pattern!r} is not a regular expression: {problem}")
        return self


class Selection(Sourced):
    """The default choice of nodes. `{account}` in qos stands for the account."""

    partition: str = ""
    qos: str = ""
    constraint: str = ""
    mandatory: tuple[Literal["account", "partition", "qos", "constraint", "time", "nodes"], ...] = ()


class SitePartition(Sourced):
    """A partition and its limits."""

    name: Name
    max_time: Seconds | None = None
    default_time: Seconds | None = None
    max_nodes: int | None = Field(default=None, gt=0)
    min_nodes: int = Field(default=1, gt=0)
    max_jobs: int | None = Field(default=None, gt=0)
    """Largest number of jobs per user, running and waiting."""
    max_running: int | None = Field(default=None, gt=0)
    whole_node: bool = True
    """False: the partition allocates CPUs and GPUs, and several jobs may share a node."""
    has_gpus: bool = True
    preempts: bool = False
    """Jobs here are preempted by other jobs and requeued."""


class Qos(Sourced):
    """A quality of service and its limits."""

    name: Name
    max_time: Seconds | None = None
    max_nodes: int | None = Field(default=None, gt=0)
    min_nodes: int = Field(default=1, gt=0)
    max_cpus: int | None = Field(default=None, gt=0)
    max_jobs: int | None = Field(default=None, gt=0)


class SizeBin(Sourced):
    """Time limit for a range of node counts."""

    min_nodes: int = Field(gt=0)
    max_nodes: int = Field(gt=0)
    max_time: Seconds
    partition: str = ""
    """Only in this partition; empty: in all."""


class Billing(Sourced):
    """The unit that the site bills GPU nodes in."""

    unit: Line
    """As the site prints it: node-hours, core-hours, GPU-hours."""
    per_node_hour: float = Field(gt=0)
    """Units for one whole node and hour."""


class Forbidden(Sourced):
    """A flag of sbatch or srun that must not be used on the site."""

    flag: Annotated[str, Field(pattern=r"^--[a-z][a-z-]*$")]
    why: Line


class JobLayout(Sourced):
    """How ranks are started: flags for the header, srun and torchrun, with placeholders such as {gpus} and {cpus}."""

    sbatch: tuple[Flag, ...]
    srun: tuple[Flag, ...] = ()
    torchrun: tuple[Flag, ...] = ()
    devices: Literal["all", "one"] = "all"
    """How many of its node's devices a rank sees."""


class Binding(Sourced):
    """CPU binding for a launcher. The first that matches is used."""

    launcher: Launcher
    cpu_bind: Annotated[str, Field(pattern=r"^[a-z_]+(:[0-9A-Fa-fx,]+)?$")]
    partitions: tuple[str, ...] = ()
    """Empty: all."""
    gpus: int | None = Field(default=None, gt=0)
    """Only with this number of GPUs per node, because masks name the cores of a whole node; None: with any."""


class EnvValue(Sourced):
    """An environment variable that jobs set on the site."""

    name: VariableName
    value: Expandable
    where: Literal["job", "rank"] = "job"
    """rank: set in each rank, after Slurm has set its own variables."""
    launchers: tuple[Launcher, ...] = LAUNCHERS
    transports: tuple[Id, ...] = ()
    """Only with these transports; empty: with all."""
    full_node: bool = False
    """Only if the job uses all GPUs of a node."""


class SiteTransport(Sourced):
    """A transport of the site, by its catalogue id, and the modules and flags that it needs."""

    id: Id
    modules: tuple[Name | Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+/-]+$")], ...] = ()
    sbatch: tuple[Flag, ...] = ()


class Runtime(Sourced):
    """A container runtime of the site."""

    kind: Literal["apptainer", "pyxis", "shifter"]
    command: Literal["apptainer", "singularity", "srun", "shifter"]
    modules: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+/-]+$")], ...] = ()
    module_use: tuple[Annotated[str, Field(pattern=r"^/[A-Za-z0-9_.+/-]+$")], ...] = ()
    flags: tuple[Flag, ...] = ()
    sbatch: tuple[Flag, ...] = ()
    images: Line = ""
    """Where the site keeps its images."""


class SiteEngine(Sourced):
    """How training engines are had on the site: an image or modules, as its guide or a project there names them."""

    engines: tuple[Id, ...] = Field(min_length=1)
    """Ids of `scalewright.engines`, such as megatron."""
    container: Line = ""
    """Path of an image that every user of the site can read."""
    modules: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+/-]+$")], ...] = ()
    advice: Line = ""
    """What to prepare where the site has neither: a sentence for the user."""

    @model_validator(mode="after")
    def _says_something(self) -> SiteEngine:
        if not (self.container or self.modules or self.advice):
            raise ValueError("an engine of a site needs container, modules or advice")
        return self


class NodeLocal(Sourced):
    """Node-local storage: the first of these variables that is set, else the path."""

    kind: Literal["disk", "memory", "unknown"]
    variables: tuple[VariableName, ...] = ()
    path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./-]*$")]


class Site(Strict):
    """The profile of a cluster: everything that a job script needs to know about it."""

    schema_: str = Field(alias="schema")
    id: Id
    name: Line
    aliases: tuple[str, ...] = ()
    operator: Line = ""
    system: Id | None = None
    """Its system in the catalogue; None: the catalogue has none."""
    clusters: tuple[str, ...] = ()
    """Names of the cluster in Slurm (ClusterName)."""
    verified: Literal["run", "golden", "detected"] = "golden"
    """run: tests run a script of this profile on a real scheduler; golden: tests compare its text with a stored one;
    detected: made from a scheduler's output."""
    vendor: Literal["nvidia", "amd", "unknown"]
    fabric: Family
    gpu: SourcedValue[Line]
    gpus_per_node: SourcedValue[int] | None = None
    cpus_per_gpu: SourcedValue[int] | None = None
    memory_gb_per_gpu: SourcedValue[int] | None = None
    """Host memory to request for each GPU, in Slurm's G."""
    arch: SourcedValue[Literal["x86_64", "aarch64"]] | None = None
    slurm: SourcedValue[Line] | None = None
    internet: SourcedValue[bool] | None = None
    """Whether compute nodes have internet access."""
    login_shell: SourcedValue[bool] | None = None
    max_array_size: SourcedValue[int] | None = None
    warn_gpu_hours: SourcedValue[float] | None = None
    """GPU-hours of a job above which `launch` warns; None: the catalogue's threshold."""
    account: Account
    billing: Billing | None = None
    """None: the profile does not say, and hours of devices are printed."""
    select: Selection
    partitions: tuple[SitePartition, ...] = ()
    qos: tuple[Qos, ...] = ()
    size_bins: tuple[SizeBin, ...] = ()
    forbidden: tuple[Forbidden, ...] = ()
    launcher: Launcher
    layouts: dict[Launcher, JobLayout]
    bindings: tuple[Binding, ...] = ()
    env: tuple[EnvValue, ...] = ()
    interfaces: SourcedValue[tuple[Name, ...]] | None = None
    """Network interfaces that sockets may use."""
    transports: tuple[SiteTransport, ...] = ()
    """The first one is the default."""
    runtimes: tuple[Runtime, ...] = ()
    engines: tuple[SiteEngine, ...] = ()
    """The first that names an engine is used."""
    multi_node_modules: SourcedValue[tuple[Line, ...]] | None = None
    """Modules that a job on several nodes has to load, as the site's guide names them; `module avail` spells them."""
    node_local: NodeLocal
    scratch: SourcedValue[Expandable] | None = None
    rendezvous: Literal["name", "address"] = "name"
    """Whether MASTER_ADDR is the name of the first host or its resolved address."""
    sources: dict[str, SiteSource]
    notes: tuple[Line, ...] = ()
    conflicts: tuple[Line, ...] = ()
    unverified: tuple[Line, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Site:
        if set(self.layouts) != set(LAUNCHERS):
            raise ValueError(f"layouts must hold {' and '.join(LAUNCHERS)}, found {', '.join(self.layouts) or 'none'}")
        names = [p.name for p in self.partitions]
        if len(set(names)) != len(names):
            raise ValueError("two partitions have the same name")
        if names and self.select.partition and self.select.partition not in names:
            raise ValueError(f"select.partition is {self.select.partition!r}, which is not in partitions")
        return self

    @property
    def num_gpus_per_node(self) -> int:
        """GPUs of a node; 0: the profile does not say."""
        return 0 if self.gpus_per_node is None else self.gpus_per_node.value

    def engine(self, name: str) -> SiteEngine | None:
        return next((one for one in self.engines if name in one.engines), None)

    def partition(self, name: str) -> SitePartition | None:
        return next((p for p in self.partitions if p.name == name), None)

    def each_partition(self, names: str) -> list[SitePartition]:
        """The partitions of a list such as `a100,h100`, as Slurm takes it: a job starts in any one of them, so that it
        has to keep the rules of each. Those that the profile does not know are left out."""
        return [rules for name in names.split(",") if (rules := self.partition(name)) is not None]

    def find_qos(self, name: str) -> Qos | None:
        return next((q for q in self.qos if q.name == name), None)

    def low_confidence(self) -> list[tuple[str, SiteSource]]:
        """Keys and sources of values with low confidence."""
        return [(key, source) for key, source in sourced_keys(self) if source.confidence == "low"]


def sourced_keys(site: Site) -> list[tuple[str, SiteSource]]:
    """The source of each value of a profile, with a key such as `partitions.small-g`."""
    sources: list[tuple[str, SiteSource]] = []

    def visit(key: str, node: Any) -> None:
        if isinstance(node, Sourced):
            sources.append((key, node.source))
        elif isinstance(node, tuple):
            for index, item in enumerate(node):
                label = next((str(getattr(item, f)) for f in ("name", "id", "flag", "kind") if hasattr(item, f)), index)
                visit(f"{key}.{label}", item)
        elif isinstance(node, dict):
            for name, item in node.items():
                visit(f"{key}.{name}", item)

    for name in type(site).model_fields:
        if name != "sources":
            visit(name, getattr(site, name))
    return sources
