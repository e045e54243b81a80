"""Cores of a host: ranks that share them, threads beyond them, other work on them, and the wrong NUMA node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening, Spot
from scalewright.observe.evidence.series import setting_number, setting_spots, step_series
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent, ranks_named
from scalewright.records.node_devices import parse_cpu_list
from scalewright.records.unit_keys import whole_interval

BUSY_FRAC = 0.25
"""Share of the cores that other work may use before it slows a run that uses them all."""
MOST_BUSY_FRAC = 1.2
"""More than all cores is a clock that is wrong."""
WAIT_FRAC = 0.15
"""Share of a step in which a thread is ready and has no core: less is the kernel's own work."""
MEASURED = "measured: the steps without the time in which ranks were ready and had no core"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBinding:
    """Cores and threads of one rank, as it recorded them last."""

    rank: int
    host: str
    threads: int
    cpus: frozenset[int]
    cores: int
    numa: tuple[str, ...]
    device_numa: str
    spot: Spot


def bindings(evidence: Evidence) -> dict[str, list[RankBinding]]:
    """By host. A rank that was bound anew counts as it was last."""
    latest: dict[int, RankBinding] = {}
    for one in evidence.happenings:
        if one.values.get("event") == "binding" and one.rank is not None:
            parsed = _binding(one)
            if parsed is not None:
                latest[one.rank] = parsed
    hosts: dict[str, list[RankBinding]] = {}
    for rank in sorted(latest):
        hosts.setdefault(latest[rank].host, []).append(latest[rank])
    return hosts


def _binding(one: Happening) -> RankBinding | None:
    values = one.values
    try:
        return RankBinding(
            rank=one.rank or 0, host=one.host, threads=int(values["threads"]),
            cpus=frozenset(parse_cpu_list(str(values["cpus"]))), cores=int(values["cores"]),
            numa=tuple(filter(None, str(values.get("numa", "")).split(","))),
            device_numa=str(values.get("device_numa", "")), spot=one.spot,
        )  # fmt: skip
    except (KeyError, ValueError):
        return None


def core_wait_frac(evidence: Evidence) -> float | None:
    """Share of the steps in which the rank that waits longest was ready and had no core."""
    series = step_series(evidence)
    waits = series.part_of_slowest_s("core_wait")
    pairs = [(waits[one.step], one.time_s) for one in series.job_steps if one.step in waits and one.time_s]
    if not pairs or not series.is_enough:
        return None
    return min(sum(wait for wait, _ in pairs) / sum(time_s for _, time_s in pairs), 1.0)


def least_core_wait_frac(evidence: Evidence) -> float | None:
    """The same of the rank that waits least. Other work on a host makes every rank wait; one rank alone is slowed."""
    series = step_series(evidence)
    shares = []
    for steps in series.steady.values():
        pairs = [(one.parts_s["core_wait"], one.time_s) for one in steps if "core_wait" in one.parts_s and one.time_s]
        if pairs:
            shares.append(sum(wait for wait, _ in pairs) / sum(time_s for _, time_s in pairs))
    return min(*shares, 1.0) if shares and series.is_enough else None


def _saved(wait: float | None, *, num_ranks: int, num_cores: int) -> Gain | None:
    """What free cores would save. Ranks beyond the cores of a host wait for each other in any case."""
    if wait is None:
        return None
    unavoidable = max(0.0, 1.0 - num_cores / num_ranks)
    return Gain(step_time_frac=max(0.0, 1.0 - (1.0 - wait) / (1.0 - unavoidable)), how=MEASURED)


def _without_threads(evidence: Evidence, *, num_ranks: int, num_cores: int) -> Gain | None:
    """Threads wait for each other beyond their wait for cores: a prediction for this machine sees that."""
    measured = _saved(core_wait_frac(evidence), num_ranks=num_ranks, num_cores=num_cores)
    series, prediction = step_series(evidence), evidence.prediction or {}
    interval = whole_interval(prediction.get("step_time_interval_s"))
    if prediction.get("confidence") != "calibrated" or interval is None or not series.times_s:
        return measured
    saved = 1.0 - interval[1] / (sum(series.times_s) / len(series.times_s))
    if measured is not None and measured.step_time_frac >= saved:
        return measured
    how = "measured against predicted: the slow end of the predicted interval, which has a thread for each core"
    return Gain(step_time_frac=max(saved, 0.0), how=how)


@finding_rule(
    id="wrong-binding",
    severity="warning",
    role="slowed",
    title="Ranks share cores while others are free",
    why="Ranks that are bound to the same cores compute in turns. It happens where a launcher binds every rank to the "
    "first cores of a node, or where two programs bind at once.",
    advice="Let one program bind: `srun --cpu-bind=cores` with `--cpus-per-task`, or the launcher of the framework, "
    "not both. `scalewright preflight` checks it before step 1.",
    source="Slurm documentation, CPU management guide; the guide on HPC for AI, section on binding",
)
def wrong_binding(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    for host, ranks in bindings(evidence).items():
        used: set[int] = set().union(*(one.cpus for one in ranks))
        cores = max(one.cores for one in ranks)
        if len(ranks) < 2 or not used or len(used) >= min(len(ranks), cores):
            continue
        gain = _saved(core_wait_frac(evidence), num_ranks=len(ranks), num_cores=cores)
        share = 1.0 - len(used) / min(len(ranks), cores) if gain is None else gain.step_time_frac
        yield Seen(
            message=f"{len(ranks)} ranks on {host or 'a host'} are bound to {len(used)} of {cores} cores "
            f"({', '.join(map(str, sorted(used)[:8]))}) and take turns",
            spots=tuple(one.spot for one in ranks[:3]),
            next_step="start with srun --cpu-bind=cores --cpus-per-task=N, and remove taskset or numactl from the "
            "script",
            certainty="certain", score=share + 0.01, numbers={"num_ranks": len(ranks), "num_cpus": len(used)},
            gain=gain,
            ranks=tuple(one.rank for one in ranks),
        )  # fmt: skip


@finding_rule(
    id="oversubscribed-threads",
    severity="warning",
    role="slowed",
    title="Ranks start more threads than there are cores",
    why="Every rank starts a thread for each core it sees, unless OMP_NUM_THREADS says otherwise. Threads of several "
    "ranks then take turns, and each waits at the end of every parallel loop for the slowest.",
    advice="Set OMP_NUM_THREADS to the cores of a node divided by its ranks (SLURM_CPUS_PER_TASK), and count the "
    "workers of the data loader.",
    source="PyTorch documentation, CPU threading; OpenMP specification, OMP_NUM_THREADS",
)
def oversubscribed_threads(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    for host, ranks in bindings(evidence).items():
        used: set[int] = set().union(*(one.cpus for one in ranks))
        threads = sum(one.threads for one in ranks)
        most = max(one.threads for one in ranks)
        if not used or most < 2 or threads <= len(used):
            continue
        gain = _without_threads(evidence, num_ranks=len(ranks), num_cores=len(used))
        share = 0.0 if gain is None else gain.step_time_frac
        yield Seen(
            message=f"{len(ranks)} rank{'' if len(ranks) == 1 else 's'} on {host or 'a host'} start {threads} "
            f"threads on "
            f"{len(used)} cores ({most} each)",
            spots=tuple(one.spot for one in ranks[:3]),
            next_step=f"set OMP_NUM_THREADS={max(len(used) // len(ranks), 1)}",
            certainty="certain", score=max(share, 0.1) + 0.005, numbers={"threads": threads, "cores": len(used)},
            gain=gain,
            severity=None if threads >= 1.5 * len(used) else "info", ranks=tuple(one.rank for one in ranks),
        )  # fmt: skip


@finding_rule(
    id="wrong-numa-node",
    severity="warning",
    role="slowed",
    title="A rank's cores are far from its GPU",
    why="Copies between host and GPU then cross the link between the sockets, and so do the packets of its network "
    "card.",
    advice="Bind each rank to the NUMA node of its GPU: `srun --gpu-bind=closest --cpu-bind=map_ldom:...`, or "
    "`--gpus-per-task` with `--cpus-per-task`. `nvidia-smi topo -m` shows which cores are near.",
    source="NVIDIA documentation, nvidia-smi topo; the guide on HPC for AI, section on NUMA locality",
)
def wrong_numa_node(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    far = [
        one for ranks in bindings(evidence).values() for one in ranks
        if one.device_numa and one.numa and one.device_numa not in one.numa
    ]  # fmt: skip
    if far:
        first = far[0]
        yield Seen(
            message=f"{ranks_named([one.rank for one in far])}: the GPU is on NUMA node {first.device_numa}, the "
            f"cores are "
            f"on {', '.join(first.numa)}",
            spots=tuple(one.spot for one in far[:3]), next_step="bind ranks with srun --gpu-bind=closest", score=0.05,
            certainty="certain", ranks=tuple(one.rank for one in far),
        )  # fmt: skip


@finding_rule(
    id="busy-machine",
    severity="warning",
    role="slowed",
    title="Other work uses the same cores",
    why="Processes of others take turns with the ranks, and one late rank makes all others wait. Times that were "
    "measured meanwhile say little about the run itself.",
    advice="Ask for whole nodes (`--exclusive`), or find the other processes with `top` and `squeue -w NODE`.",
    source="Slurm documentation, sbatch --exclusive; Petrini et al. 2003, The Case of the Missing Supercomputer "
    "Performance (SC 2003)",
    because_of=("wrong-binding", "oversubscribed-threads"),
)
def busy_machine(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    others, cores = setting_number(evidence, "others_cores"), setting_number(evidence, "num_cores")
    wait = least_core_wait_frac(evidence)
    if others is None or not cores or not BUSY_FRAC * cores <= others <= MOST_BUSY_FRAC * cores or not evidence.steps:
        return
    hosts = bindings(evidence)
    num_ranks = max((len(ranks) for ranks in hosts.values()), default=1)
    gain = _saved(wait, num_ranks=num_ranks, num_cores=int(cores))
    share = wait if wait is not None else others / (others + cores)
    matters = wait is not None and wait >= WAIT_FRAC
    words = "" if wait is None else f"; ranks were ready and had no core for {percent(wait)} of the time"
    yield Seen(
        message=f"other processes used {others:.1f} of {cores:.0f} cores during the run{words}",
        spots=setting_spots(evidence, "others_cores", "num_cores"),
        next_step="measure again on a quiet machine, or ask for whole nodes with --exclusive",
        certainty="certain" if wait is not None else "likely", score=share if gain is None else gain.step_time_frac,
        severity=None if matters else "info", numbers={"others_cores": others, "core_wait_frac": share}, gain=gain,
    )  # fmt: skip
