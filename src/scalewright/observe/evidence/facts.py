"""The facts that readers find: where each stands, steps, things that happened, samples of devices, jobs, collectives.

All values are SI. None means that nothing said it: a reader never guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MOST_EXCERPT = 300
"""Characters of a line that a spot keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """The place that a fact was read from."""

    file: str
    line: int = 0
    """From 1; 0: the file as a whole, or not made of lines."""
    text: str = ""
    """The line as it stands there, at most `MOST_EXCERPT` characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFact:
    """One training step as somebody reported it."""

    step: int
    spot: Spot
    dialect: str
    """Which program wrote it: megatron, torchtitan, ..., scalewright."""
    rank: int | None = None
    host: str = ""
    at_s: float | None = None
    """When it was written, seconds since 1970; local clocks without a zone are read as UTC."""
    time_s: float | None = None
    """Of this step, or the mean of the `num_steps` steps that end with it. An average over the run is not one."""
    num_steps: int = 1
    """Steps that this report stands for: `time_s` and rates are their mean."""
    last_step: int | None = None
    """The step that the run is to end with, where the line says it."""
    attempt: int = 0
    """Which start within its source: steps that begin again (a restart, another run) have the next number."""
    num_tokens: float | None = None
    """Of the whole job in this step."""
    num_samples: float | None = None
    tokens_per_s: float | None = None
    """Of the whole job, or of one device if `is_per_device`."""
    is_per_device: bool = False
    flop_per_s: float | None = None
    """Of one device, as reported: to be checked, never believed."""
    mfu_frac: float | None = None
    """As reported."""
    loss: float | None = None
    """NaN and infinity are kept."""
    grad_norm: float | None = None
    learning_rate: float | None = None
    memory_bytes: float | None = None
    """Peak of a device."""
    memory_reserved_bytes: float | None = None
    """Peak that the allocator took from the device; `memory_bytes` is what tensors used of it, where both are known."""
    memory_free_bytes: float | None = None
    reward: float | None = None
    response_len: float | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """Time by part: PARTS, and a dialect's own names beside them."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Everything else that the line has as a number, by the line's own name."""


PARTS = (
    "compute", "communication", "data", "idle", "checkpoint", "validation", "optimizer", "forward", "backward",
    "generation", "reward", "log_probs", "training", "weight_sync", "release", "restore",
)  # fmt: skip
"""Names that readers translate to. `communication` is exposed: nothing else ran."""

HappeningKind = Literal[
    "started", "configured", "step", "checkpoint_saved", "checkpoint_loaded", "validation",
    "traceback", "device_out_of_memory", "host_out_of_memory", "cgroup_kill", "killed", "signal", "exited",
    "collective_timeout", "collective_abort", "connection_lost", "network_error", "transport",
    "network_fallback", "device_error", "throttled", "nan", "time_limit", "preempted", "node_failed",
    "cancelled", "requeued", "missing_file", "access_denied",
    "bad_configuration", "disk_full", "stalled", "warning", "finished",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that happened once, with what is known of it."""

    kind: HappeningKind
    spot: Spot
    message: str
    """In the words of the program that said it, without prefixes."""
    at_s: float | None = None
    rank: int | None = None
    host: str = ""
    step: int | None = None
    values: Mapping[str, float | str] = field(default_factory=dict)
    is_benign: bool = False
    """Looks alarming and is not: some warnings of NCCL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """A device at one moment."""

    device: str
    """Number or name on its host."""
    spot: Spot
    host: str = ""
    at_s: float | None = None
    use_frac: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    clock_hz: float | None = None
    clock_high_hz: float | None = None
    """The highest it can have."""
    slowed_by: tuple[str, ...] = ()
    """Active reasons for a lower clock: sw_thermal, hw_thermal, power_brake, power_cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFact:
    """A job as its scheduler accounts for it."""

    job_id: str
    spot: Spot
    name: str = ""
    state: str = ""
    """As Slurm names it, without `by UID` and without a `+`."""
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    num_nodes: int | None = None
    num_tasks: int | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    submitted_at_s: float | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None
    limit_s: float | None = None
    elapsed_s: float | None = None
    requested_memory_bytes: float | None = None
    """Of the whole job."""
    peak_memory_bytes: float | None = None
    """Of its largest task."""
    cpu_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective, or many equal ones, on one rank."""

    name: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv, barrier, ..."""
    spot: Spot
    rank: int | None = None
    group: str = ""
    """Name of its process group, such as `dp` or what the log calls it."""
    sequence: int | None = None
    num_bytes: float | None = None
    state: Literal["scheduled", "started", "completed"] | None = None
    time_s: float | None = None
    count: int = 1
    bytes_per_s: float | None = None
    """Bus bandwidth, where measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportFact:
    """How ranks of a communicator reach each other, from a debug log."""

    between: Literal["nodes", "node"]
    way: str
    """NET/IB, NET/Socket, NET/OFI, P2P, SHM, ..."""
    spot: Spot
    num_channels: int = 1
    is_direct: bool | None = None
    """GPU memory reached by the network card itself (GDRDMA)."""
    interfaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """The time of one rank in one step, by a sweep over a trace or by our own measurement; parts add up."""

    rank: int
    spot: Spot
    step: int | None = None
    step_s: float = 0.0
    compute_s: float = 0.0
    exposed_communication_s: float = 0.0
    overlapped_communication_s: float = 0.0
    """Beside computing: no part of the sum."""
    data_s: float = 0.0
    idle_s: float = 0.0
    memory_copy_s: float = 0.0
    optimizer_s: float = 0.0
    """Inside of compute: no part of the sum."""
    checkpoint_s: float = 0.0
    validation_s: float = 0.0
    by_collective_s: Mapping[str, float] = field(default_factory=dict)
    """Communication by `name/group`, exposed or not."""
    exposed_by_collective_s: Mapping[str, float] = field(default_factory=dict)
    num_kernels: int = 0
    mean_kernel_s: float | None = None
    top_kernels_s: Mapping[str, float] = field(default_factory=dict)
    host: str = ""
    is_traced: bool = False
    """By a sweep over a trace; else our own measurement of the step."""
    on_device: bool = True
    """False: a trace of the host only, whose operators compute."""
    by_kind_s: Mapping[str, float] = field(default_factory=dict)
    """Compute by the planner's terms: matmul, attention, convolution, elementwise, optimizer."""
    launch_idle_s: float | None = None
    """Inside of idle: the device had nothing to do because its host launched too late."""
    copied_s: float = 0.0
    """Memory copies, also beside computing: no part of the sum."""
    by_copy_s: Mapping[str, float] = field(default_factory=dict)
    """Sum of the copies by direction (HtoD, DtoH, DtoD, PtoP, memset, other)."""
    host_optimizer_s: float = 0.0
    """Inside of idle: the device had nothing to do while the host ran the optimizer."""
    calls_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """How long each call of `name/group` took, in order; none where there were very many."""
    exposed_calls_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """What of each call ran while nothing computed."""
    group_ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of the groups that the trace lists."""
