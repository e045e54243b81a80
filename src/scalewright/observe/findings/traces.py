"""What only a trace shows: overlap, launches, the optimizer, copies. Also the term that a prediction missed most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median

from scalewright.observe.breakdown.across_ranks import across_ranks, best_times, waits_s
from scalewright.observe.breakdown.terms import axis_sizes, communication_term, term_table
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import RankTime, Spot
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent, seconds
from scalewright.records.types import Severity

HIDEABLE = ("data_parallel", "gradient_exchange", "other_communication")
"""Exchanges that do not depend on the layer that runs beside them; those of tensor parallelism do."""
HIDEABLE_NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "collective")
"""Messages and all-to-alls carry activations, which the next layer needs."""
EXPOSED_FRAC = 0.10
"""Share of a step in exchanges that could be hidden, from which hiding them is worth the work."""
HIDDEN_FRAC = 0.5
"""Of an exchange that overlaps well more than half is hidden: the backward pass is long enough for it."""
LATE_FRAC = 0.10
"""Share of a step that ranks wait for the last one: less is the spread that ranks of a healthy job have."""
SAME_FRAC = 0.7
"""A late rank is the last in most steps; noise changes its place."""
PART_WORDS = {
    "compute_s": "computes", "data_s": "waits for data", "idle_s": "runs nothing", "memory_copy_s": "copies",
    "checkpoint_s": "saves", "validation_s": "validates",
}  # fmt: skip
LAUNCH_FRAC = 0.15
"""Share of a step that a device waits for launches. Gaps between kernels of a large model stay below a tenth."""
SHORT_KERNEL_S = 2e-5
"""A launch takes the host 5 to 10 microseconds with its operator: kernels must be longer to keep a device busy."""
OPTIMIZER_FRAC = 0.15
OPTIMIZER_WARNING_FRAC = 0.30
"""One pass over the state is a few percent of a step of many tokens; a third is offloaded, unfused or a tiny batch."""
COPY_FRAC = 0.05
COPY_WARNING_FRAC = 0.10
MISS_FRAC = 0.15
"""Of the step: predictions of a term that are off by less are as good as the model claims to be."""


def device_times(evidence: Evidence) -> list[RankTime]:
    """Traces of devices only: the operators of a host show no launches and no overlap of streams."""
    return [time for time in best_times(evidence.rank_times) if time.is_traced and time.on_device]


def _share(times: Sequence[RankTime], seconds_of: Iterable[float]) -> float:
    return sum(seconds_of) / sum(time.step_s for time in times)


def _worst(times: Sequence[RankTime], values: Sequence[float]) -> tuple[Spot, ...]:
    """The files of the rank with most of it, and of the first rank."""
    place = max(range(len(times)), key=lambda i: values[i] / times[i].step_s)
    spots = {times[place].spot.file: times[place].spot, times[0].spot.file: times[0].spot}
    return tuple(spots.values())


@finding_rule(
    id="poor-overlap",
    severity="warning",
    role="slowed",
    title="Gradients or weights are exchanged while nothing computes",
    why="The exchange of data parallelism can run beside the backward pass (gradients) and beside the layer before "
    "(gathered weights). Where it runs alone, every device waits for it.",
    advice="Let the exchange overlap: in DDP several buckets (bucket_cap_mb) and no static barrier before the "
    "optimizer; in FSDP backward_prefetch, forward_prefetch and a limit on gathers that is not 1; in Megatron-LM "
    "--overlap-grad-reduce and --overlap-param-gather; CUDA_DEVICE_MAX_CONNECTIONS=1 only where tensor parallelism "
    "needs it. Accumulate gradients without exchanging them (no_sync).",
    source="Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 3.2; Zhao et al. 2023, PyTorch FSDP "
    "(arXiv:2304.11277), section 3.3",
    because_of=("straggler-rank", "critical-rank"),
)
def poor_overlap(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    times = device_times(evidence)
    if not times:
        return
    sizes, waits = axis_sizes(evidence), waits_s(times)
    exposed = [_of_terms(time, time.exposed_by_collective_s, sizes) for time in times]
    whole = [_of_terms(time, time.by_collective_s, sizes) for time in times]
    moved = [max(one - waits.get(time.rank, 0.0), 0.0) for one, time in zip(exposed, times, strict=True)]
    share = _share(times, moved)
    hidden_frac = 1.0 - sum(exposed) / sum(whole) if sum(whole) > 0.0 else 1.0
    if share < EXPOSED_FRAC or hidden_frac >= HIDDEN_FRAC:
        return
    room = [max(time.compute_s - time.overlapped_communication_s, 0.0) for time in times]
    gain = _share(times, (min(one, free) for one, free in zip(moved, room, strict=True)))
    key = _largest(times, sizes)
    yield Seen(
        message=f"{key} runs alone for {percent(share)} of a step; {percent(hidden_frac)} of this exchange is hidden "
        f"behind computing",
        spots=_worst(times, exposed), next_step="turn on the overlap of gradients and weights with computing",
        certainty="certain" if len(times) > 1 else "likely", score=share,
        numbers={"exposed_frac": share, "hidden_frac": hidden_frac, "collective": key},
        gain=Gain(step_time_frac=gain, how="at most: the exchange hidden behind the computing that has none beside it"),
    )  # fmt: skip


def _of_terms(time: RankTime, by_collective_s: Mapping[str, float], sizes: Mapping[str, int | None]) -> float:
    return sum(seconds for key, seconds in by_collective_s.items() if _is_hideable(key, time, sizes))


def _is_hideable(key: str, time: RankTime, sizes: Mapping[str, int | None]) -> bool:
    name = key.partition("/")[0]
    return name in HIDEABLE_NAMES and communication_term(key, time.group_ranks, sizes) in HIDEABLE


def _largest(times: Sequence[RankTime], sizes: Mapping[str, int | None]) -> str:
    """The exchange that is exposed longest, in words."""
    sums: dict[str, float] = {}
    for time in times:
        for key, value in time.exposed_by_collective_s.items():
            if _is_hideable(key, time, sizes):
                sums[key] = sums.get(key, 0.0) + value
    return collective_words(max(sums, key=lambda key: sums[key])) if sums else "the exchange"


def collective_words(key: str) -> str:
    """`all_reduce of mesh_dp`."""
    name, _, group = key.partition("/")
    return f"{name} of {group}" if group else name


@finding_rule(
    id="critical-rank",
    severity="warning",
    role="slowed",
    title="Ranks wait in collectives for one that is late",
    why="All ranks leave a collective together, but each enters when it is ready. What the others spend more than "
    "the last one is waiting for it: the step has the pace of that rank. It looks like slow communication and is not.",
    advice="Look at what the late rank does longer: computing (clocks, temperature, more work than the others: uneven "
    "pipeline or experts), launching (its host is busy or badly bound), data (its loader or its disk), checkpoints. "
    "Leave its node out to check.",
    source="Lin et al. 2025, Understanding Stragglers in Large Model Training (arXiv:2505.05713)",
    because_of=("straggler-rank", "throttled-clocks", "wrong-numa-node", "data-loader-bound", "busy-machine"),
)
def critical_rank(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    times = device_times(evidence) or [time for time in evidence.rank_times if time.is_traced]
    across = across_ranks(times)
    if across is None or across.critical is None:
        return
    late = across.critical
    share = late.waited_s / across.step_s
    if share < LATE_FRAC or late.excess_s < LATE_FRAC / 2 * across.step_s or _last_frac(times, late.rank) < SAME_FRAC:
        return
    part = PART_WORDS[late.excess_part]
    spots = tuple({time.spot.file: time.spot for time in times if time.rank == late.rank}.values())[:2]
    host = next((f" on {mean.host}" for mean in across.ranks if mean.rank == late.rank and mean.host), "")
    yield Seen(
        message=f"the others wait {seconds(late.waited_s)} of a step in collectives ({percent(share)}) for rank "
        f"{late.rank}{host}, which {part} {seconds(late.excess_s)} longer than they do "
        f"({seconds(late.typical_s + late.excess_s)} against {seconds(late.typical_s)})",
        spots=spots, next_step=f"look why rank {late.rank}{host} {part} longer; leave its node out to check",
        certainty="certain" if len(across.ranks) > 2 else "likely", score=share,
        severity=None if times[0].on_device else "info", ranks=(late.rank,),
        numbers={"waited_frac": share, "part": late.excess_part.removesuffix("_s"), "excess_s": late.excess_s},
        gain=Gain(step_time_frac=share, how="measured: no rank waits for the last one"),
    )  # fmt: skip


def _last_frac(times: Sequence[RankTime], rank: int) -> float:
    """Share of the steps in which this rank came last."""
    steps = {time.step for time in times}
    by_step = [waits_s([time for time in times if time.step == step]) for step in steps]
    compared = [waits for waits in by_step if len(waits) > 1 and rank in waits]
    return sum(waits[rank] <= min(waits.values()) for waits in compared) / len(compared) if compared else 0.0


@finding_rule(
    id="launch-bound",
    severity="warning",
    role="slowed",
    title="The device waits for its host to launch kernels",
    why="A kernel starts after its launch. Where kernels are shorter than the launch of the next one, or the host "
    "stops between launches (a synchronization, logging, garbage collection, Python), the device runs dry.",
    advice="More work for each kernel: a larger micro-batch, torch.compile, fused optimizers and norms. Fewer "
    "launches: CUDA graphs (mode=reduce-overhead). Fewer stops: no .item(), print or .cpu() in the loop, pinned memory "
    "with non_blocking copies, garbage collection at fixed steps.",
    source="PyTorch Performance Tuning Guide, sections on CUDA graphs and on avoiding synchronizations; HTA (Meta), "
    "idle time breakdown: host wait",
    because_of=("data-loader-bound", "cpu-quota"),
)
def launch_bound(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    times = [time for time in device_times(evidence) if time.launch_idle_s is not None]
    if not times:
        return
    waits = [max((time.launch_idle_s or 0.0) - time.host_optimizer_s, 0.0) for time in times]
    share = _share(times, waits)
    if share < LAUNCH_FRAC:
        return
    lengths = [time.mean_kernel_s for time in times if time.mean_kernel_s is not None]
    mean_s, num = (median(lengths) if lengths else 0.0), round(fmean(time.num_kernels for time in times))
    is_short = 0.0 < mean_s < SHORT_KERNEL_S
    why = f"{num:,} kernels a step of {seconds(mean_s)} in the mean" if mean_s else "no kernel between"
    yield Seen(
        message=f"the device waits {percent(share)} of a step for the host to launch its next kernel ({why})",
        spots=_worst(times, waits),
        next_step="compile the model or capture CUDA graphs, or raise the micro-batch" if is_short else
        "look for what stops the host: .item(), prints, synchronous copies, garbage collection",
        certainty="certain" if is_short else "likely", score=share,
        numbers={"launch_idle_frac": share, "num_kernels": num, "mean_kernel_s": mean_s},
        gain=Gain(step_time_frac=share, how="at most: the device never waits for a launch"),
    )  # fmt: skip


@finding_rule(
    id="optimizer-share",
    severity="warning",
    role="slowed",
    title="The optimizer takes a large part of the step",
    why="An update reads and writes every parameter and its state once. It does not grow with the batch, so its share "
    "is large for few tokens a step, for optimizers of many small kernels, and for those on the host.",
    advice="Use a fused optimizer (fused=True), share the state over data-parallel ranks (ZeRO 1), accumulate more "
    "tokens a step, and keep the state on the device: offloading moves gradients and weights each step.",
    source="Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054); Ren et al. 2021, ZeRO-Offload (arXiv:2101.06840)",
)
def optimizer_share(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    times = device_times(evidence)
    if not times:
        return
    values = [time.optimizer_s + time.host_optimizer_s for time in times]
    share, host_share = _share(times, values), _share(times, (time.host_optimizer_s for time in times))
    if share < OPTIMIZER_FRAC:
        return
    on_host = host_share > share / 2
    place = "on the host, while the device waits" if on_host else "on the device"
    yield Seen(
        message=f"the optimizer takes {percent(share)} of a step ({seconds(fmean(values))}), most of it {place}",
        spots=_worst(times, values),
        next_step="keep the optimizer's state on the device, or share it over more ranks" if on_host else
        "use a fused optimizer and ZeRO 1, or accumulate more tokens a step",
        certainty="certain", score=share, severity=_loud(share, OPTIMIZER_WARNING_FRAC),
        numbers={"optimizer_frac": share, "host_optimizer_frac": host_share},
        gain=Gain(step_time_frac=share / 2.0, how="by arithmetic, per token: twice the tokens for each update"),
    )  # fmt: skip


def _loud(share: float, least: float) -> Severity:
    return "warning" if share >= least else "info"


@finding_rule(
    id="memory-copies",
    severity="warning",
    role="slowed",
    title="The device waits for memory copies",
    why="A copy between host and device uses a link that is 20 to 100 times slower than device memory. From pageable "
    "memory it also stops the host. Copies that run alone are lost time.",
    advice="Pin host memory (pin_memory=True) and copy with non_blocking=True on another stream, one batch ahead. Keep "
    "logging of values on the device for some steps. Prefer recomputation or sharding to offloading.",
    source="PyTorch documentation, A guide on good usage of non_blocking and pin_memory()",
)
def memory_copies(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    times = device_times(evidence)
    if not times:
        return
    values = [time.memory_copy_s for time in times]
    share = _share(times, values)
    if share < COPY_FRAC:
        return
    sums_s: dict[str, float] = {}
    for time in times:
        for way, value in time.by_copy_s.items():
            sums_s[way] = sums_s.get(way, 0.0) + value
    largest = max(sums_s, key=lambda way: sums_s[way]) if sums_s else "copies"
    yield Seen(
        message=f"memory copies run alone for {percent(share)} of a step, most of them "
        f"{COPY_WORDS.get(largest, largest)}",
        spots=_worst(times, values), next_step="copy one batch ahead, from pinned memory, on another stream",
        certainty="certain", score=share, severity=_loud(share, COPY_WARNING_FRAC),
        numbers={"copy_frac": share, "largest": largest},
        gain=Gain(step_time_frac=share, how="at most: all copies beside computing"),
    )  # fmt: skip


COPY_WORDS = {
    "HtoD": "from the host to the device", "DtoH": "from the device to the host", "DtoD": "inside of the device",
    "PtoP": "between devices", "memset": "filling memory", "other": "of unknown direction",
}  # fmt: skip


@finding_rule(
    id="prediction-differs",
    severity="info",
    role="suspect",
    title="The measured step differs from the predicted one",
    why="Each term of the predicted time has its formula. The term that differs most says where the run, the machine "
    "or the model of it is not as assumed.",
    advice="Look at that term's finding if there is one. If the run is fine, calibrate: `scalewright calibrate` "
    "replaces the catalogue's rates by those of this machine.",
    source="`scalewright predict --explain`: the equation, source and assumptions of every term",
)
def prediction_differs(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    table = term_table(evidence)
    row = None if table is None else table.largest
    if table is None or row is None or not table.predicted_s:
        return
    base_s = max(table.predicted_s, table.measured_s)
    if abs(row.difference_s) < MISS_FRAC * base_s:
        return
    more = "more" if row.difference_s > 0 else "less"
    of = f" ({', '.join(name.replace('_', ' ') for name in row.leaves)})" if len(row.leaves) > 1 else ""
    yield Seen(
        message=f"{row.name.replace('_', ' ')}{of} takes {seconds(row.measured_s or 0.0)} of a step, "
        f"{seconds(abs(row.difference_s))} {more} than predicted ({seconds(row.predicted_s or 0.0)}); the whole step "
        f"takes {seconds(table.measured_s)}, predicted {seconds(table.predicted_s)}",
        spots=(best_times(evidence.rank_times)[0].spot,),
        next_step="see the finding of this part, or calibrate this machine: scalewright calibrate",
        certainty="certain", score=abs(row.difference_s) / base_s,
        numbers={"term": row.name, "predicted_s": row.predicted_s or 0.0, "measured_s": row.measured_s or 0.0},
    )  # fmt: skip
