"""What a site profile holds: frozen and strict. Every value that could be wrong says where it comes from."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field, model_validator

from scalewright.catalog.facts import Id, Strict
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
    odd = [name for name in _PLACEHOLDER.findall(text) if name not in PLACEHOLDERS]
    if odd:
        raise ValueError(f"{text!r} has the placeholder {odd[0]!r}: known are {', '.join(PLACEHOLDERS)}")
    return text


def _expandable(text: str) -> str:
    odd = [name for name in _VARIABLE.findall(text) if name not in KNOWN_VARIABLES]
    if odd:
        raise ValueError(f"{text!r} uses the variable {odd[0]}: known are {', '.join(KNOWN_VARIABLES)}")
    return _one_line(text)


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} must be one line of printable text")
    return text


Seconds = Annotated[Walltime, Field(gt=0)]
Flag = Annotated[str, AfterValidator(_flag)]
Line = Annotated[str, AfterValidator(_one_line)]
Expandable = Annotated[str, AfterValidator(_expandable)]
"""Text in which ${USER}, ${SLURM_JOB_ID} and a few more are filled in on the cluster; all else is literal."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9_]*$")]
"""Scripts use lower-case names themselves."""


class SiteSource(Strict):
    """Where values come from; given once per file under `[sources.KEY]`."""

    kind: Literal["official-doc", "project-config", "user-notes", "live", "assumed"]
    """official-doc: the operator's; project-config: what another project submits with; live: asked of the scheduler."""
    text: str = Field(min_length=8)
    url: str = ""
    dated: date | None = None
    """Date of the version that was read, where it has one."""
    checked: date
    """The day the value was last held against the source."""
    confidence: Confidence = "high"


class Sourced(Strict):
    source: SiteSource
    note: Line = ""


class SourcedValue(Sourced, Generic[T]):
    """One value and where it comes from."""

    value: T


class Account(Sourced):
    required: bool = True
    pattern: str = ""
    """Regular expression; an account that does not match is only warned of, because projects are named anew."""
    form: Line = ""
    """The pattern in words."""

    @model_validator(mode="after")
    def _compiles(self) -> Account:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error
        return self


class Selection(Sourced):
    """How nodes are chosen when the user says nothing. `{account}` in qos stands for the account."""

    partition: str = ""
    qos: str = ""
    constraint: str = ""
    mandatory: tuple[Literal["account", "partition", "qos", "constraint", "time", "nodes"], ...] = ()


class SitePartition(Sourced):
    name: Name
    max_time: Seconds | None = None
    default_time: Seconds | None = None
    max_nodes: int | None = Field(default=None, gt=0)
    min_nodes: int = Field(default=1, gt=0)
    max_jobs: int | None = Field(default=None, gt=0)
    """Jobs of one user that it accepts, running and waiting."""
    max_running: int | None = Field(default=None, gt=0)
    whole_node: bool = True
    """False: allotted by resource, so that other jobs may share the node."""
    has_gpus: bool = True
    preempts: bool = False
    """Jobs here are ended for others and queued again."""


class Qos(Sourced):
    name: Name
    max_time: Seconds | None = None
    max_nodes: int | None = Field(default=None, gt=0)
    min_nodes: int = Field(default=1, gt=0)
    max_cpus: int | None = Field(default=None, gt=0)
    max_jobs: int | None = Field(default=None, gt=0)


class SizeBin(Sourced):
    """Longest job by its number of nodes."""

    min_nodes: int = Field(gt=0)
    max_nodes: int = Field(gt=0)
    max_time: Seconds
    partition: str = ""
    """Only in this partition; empty: in all."""


class Forbidden(Sourced):
    flag: Annotated[str, Field(pattern=r"^--[a-z][a-z-]*$")]
    why: Line


class JobLayout(Sourced):
    """How ranks are started: flags for the header and for srun, with {gpus}, {cpus}, {node_cpus} and the like."""

    sbatch: tuple[Flag, ...]
    srun: tuple[Flag, ...] = ()
    torchrun: tuple[Flag, ...] = ()
    devices: Literal["all", "one"] = "all"
    """What a rank sees of its node's devices."""


class Binding(Sourced):
    """CPU binding for a layout; the first that fits is used."""

    launcher: Launcher
    cpu_bind: Annotated[str, Field(pattern=r"^[a-z_]+(:[0-9A-Fa-fx,]+)?$")]
    partitions: tuple[str, ...] = ()
    """Empty: all."""
    gpus: int | None = Field(default=None, gt=0)
    """Only with so many GPUs of a node; masks name cores of a whole node."""


class EnvValue(Sourced):
    name: VariableName
    value: Expandable
    where: Literal["job", "rank"] = "job"
    """rank: set in each rank, after Slurm has set its own."""
    launchers: tuple[Launcher, ...] = LAUNCHERS
    transports: tuple[Id, ...] = ()
    """Only with these; empty: with all."""
    full_node: bool = False
    """Only where all GPUs of a node are asked for."""


class SiteTransport(Sourced):
    """A transport that the fabric offers, by its catalogue id, and what it needs here."""

    id: Id
    modules: tuple[Name | Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+/-]+$")], ...] = ()
    sbatch: tuple[Flag, ...] = ()


class Runtime(Sourced):
    """A way to run containers."""

    kind: Literal["apptainer", "pyxis", "shifter"]
    command: Literal["apptainer", "singularity", "srun", "shifter"]
    modules: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+/-]+$")], ...] = ()
    module_use: tuple[Annotated[str, Field(pattern=r"^/[A-Za-z0-9_.+/-]+$")], ...] = ()
    flags: tuple[Flag, ...] = ()
    sbatch: tuple[Flag, ...] = ()
    images: Line = ""
    """Where the site keeps its own."""


class NodeLocal(Sourced):
    """Storage on the node itself: the first of these variables that is set, else the path."""

    kind: Literal["disk", "memory", "unknown"]
    variables: tuple[VariableName, ...] = ()
    path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./-]*$")]


class Site(Strict):
    """A cluster as a job script must treat it."""

    schema_: str = Field(alias="schema")
    id: Id
    name: Line
    aliases: tuple[str, ...] = ()
    operator: Line = ""
    system: Id | None = None
    """Its entry in the catalogue; absent: none describes it."""
    clusters: tuple[str, ...] = ()
    """Names that the scheduler gives itself (ClusterName)."""
    verified: Literal["run", "golden", "detected"] = "golden"
    """run: tests had a real scheduler run a script of this profile; golden: its text is compared with a stored one;
    detected: made from a scheduler's answers."""
    vendor: Literal["nvidia", "amd", "unknown"]
    fabric: Family
    gpu: SourcedValue[Line]
    gpus_per_node: SourcedValue[int] | None = None
    cpus_per_gpu: SourcedValue[int] | None = None
    memory_gb_per_gpu: SourcedValue[int] | None = None
    """Host memory to ask for with each GPU, in Slurm's G."""
    arch: SourcedValue[Literal["x86_64", "aarch64"]] | None = None
    slurm: SourcedValue[Line] | None = None
    internet: SourcedValue[bool] | None = None
    """Whether compute nodes reach the internet."""
    login_shell: SourcedValue[bool] | None = None
    max_array_size: SourcedValue[int] | None = None
    account: Account
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
    """The first is what the site uses when nothing is chosen."""
    runtimes: tuple[Runtime, ...] = ()
    node_local: NodeLocal
    scratch: SourcedValue[Expandable] | None = None
    rendezvous: Literal["name", "address"] = "name"
    """Whether ranks meet at the first host's name or at its resolved address."""
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
            raise ValueError("two partitions have one name")
        if names and self.select.partition and self.select.partition not in names:
            raise ValueError(f"select.partition is {self.select.partition!r}, which is not in partitions")
        return self

    @property
    def num_gpus_per_node(self) -> int:
        """GPUs of a node; 0: the profile does not say."""
        return 0 if self.gpus_per_node is None else self.gpus_per_node.value

    def partition(self, name: str) -> SitePartition | None:
        return next((p for p in self.partitions if p.name == name), None)

    def find_qos(self, name: str) -> Qos | None:
        return next((q for q in self.qos if q.name == name), None)

    def low_confidence(self) -> list[tuple[str, SiteSource]]:
        """Keys whose source is of low confidence."""
        return [(key, source) for key, source in sourced_keys(self) if source.confidence == "low"]


def sourced_keys(site: Site) -> list[tuple[str, SiteSource]]:
    """Each sourced value of a profile by its key, such as `partitions.small-g`."""
    found: list[tuple[str, SiteSource]] = []

    def visit(key: str, node: Any) -> None:
        if isinstance(node, Sourced):
            found.append((key, node.source))
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
    return found
