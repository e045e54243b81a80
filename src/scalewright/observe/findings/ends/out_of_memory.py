"""Ends by memory: of the device, of the host, or by the limit of the job's cgroup. Each needs another change."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.findings.ends.ending import Ending, ending_by, number, quoted, seen_end
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule

GUIDE = "Infrastructure Foundations for Scalable LLM Training, section 2.4.6: tell host and device memory apart at once"


def _size(value: float | None) -> str:
    return "" if value is None else units.format(value, units.BYTES)


@finding_rule(
    id="device-out-of-memory",
    severity="error",
    role="ended",
    title="A device had no memory left",
    why="The model's state, activations and buffers did not fit in the memory of the GPU. All other ranks then lose "
    "the one that failed, and report lost connections or timeouts.",
    advice="Use a smaller micro-batch, recompute activations, shard the optimizer state (ZeRO, FSDP), or split the "
    "model over more GPUs. If much memory is reserved but not allocated, it is fragmented: set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    source=GUIDE,
)
def device_out_of_memory(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "device-out-of-memory"):
        first = ending.first
        asked_bytes = number(first, "requested_bytes", "tried_bytes", "allocation_bytes")
        free_bytes, total_bytes = number(first, "free_bytes"), number(first, "total_bytes", "capacity_bytes")
        detail = f": it needed {_size(asked_bytes)} more" if asked_bytes is not None else ""
        detail += f", {_size(free_bytes)} were free" if detail and free_bytes is not None else ""
        detail += f" of {_size(total_bytes)}" if detail and total_bytes is not None else ""
        is_start = not evidence.steps
        yield seen_end(
            ending,
            f"{ending.who} ran out of device memory{' before the first step' if is_start else ending.when}{detail}.",
            _device_advice(ending),
            numbers={
                name: value
                for name, value in (
                    ("requested_bytes", asked_bytes), ("free_bytes", free_bytes), ("total_bytes", total_bytes),
                )
                if value is not None
            },
        )  # fmt: skip


def _device_advice(ending: Ending) -> str:
    first, settings = ending.first, ending.evidence.settings
    unused_bytes, asked_bytes = (
        number(first, "reserved_unallocated_bytes", "unallocated_bytes"),
        number(first, "requested_bytes", "tried_bytes"),
    )  # fmt: skip
    if unused_bytes is not None and asked_bytes is not None and unused_bytes > asked_bytes:
        return (
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: more was reserved and unused "
            f"({_size(unused_bytes)}) than was missing"
        )
    batch = settings["mbs"][0] if "mbs" in settings else ""
    if batch.isdigit() and int(batch) > 1:
        return (
            f"halve the micro-batch (it is {batch}), or recompute activations; `scalewright predict` gives the memory "
            "of a layout before it runs"
        )
    return (
        "recompute activations, shard more (ZeRO, FSDP), or use more tensor or pipeline ranks; `scalewright plan` "
        "lists layouts that fit"
    )


@finding_rule(
    id="host-out-of-memory",
    severity="error",
    role="ended",
    title="The host had no memory left",
    why="The kernel or the allocator of the host ran out. Loader workers, pinned buffers, offloaded state and "
    "checkpoints gathered on one rank use host memory. The GPU's memory does not matter here.",
    advice="Request more memory (--mem), use fewer loader workers or a smaller prefetch, save sharded checkpoints, and "
    "give containers more shared memory (/dev/shm) if the message names it.",
    source=GUIDE,
)
def host_out_of_memory(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "host-out-of-memory"):
        is_shared = "shared memory" in ending.first.message.lower() or "/dev/shm" in ending.first.message
        advice = (
            "enlarge /dev/shm (docker --shm-size, or --ipc=host), or set num_workers=0"
            if is_shared
            else "request more host memory (--mem or --mem-per-cpu), or use fewer loader workers; check `ulimit -v`"
        )
        yield seen_end(
            ending, f"{ending.who} ran out of host memory{ending.when}: {quoted(ending.first)}", advice,
        )  # fmt: skip


@finding_rule(
    id="cgroup-memory-kill",
    severity="error",
    role="ended",
    title="The job's memory limit ended a process",
    why="Slurm puts a job in a cgroup with the memory it requested. A process above it is killed without a word in its "
    "own log: state OUT_OF_MEMORY, exit code 0:125, `oom_kill` in the step's log. The node itself may have had room.",
    advice="Raise --mem above the peak that sacct shows (MaxRSS is sampled, so the true peak is higher), or use less: "
    "fewer loader workers, smaller prefetch, sharded checkpoints.",
    source="Slurm, cgroup.conf(5): ConstrainRAMSpace; " + GUIDE,
)
def cgroup_memory_kill(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "cgroup-memory-kill"):
        jobs = evidence.jobs
        limit_bytes = number(ending.first, "limit_bytes") or max(
            (job.requested_memory_bytes for job in jobs if job.requested_memory_bytes), default=None
        )
        peak_bytes = max((job.peak_memory_bytes for job in jobs if job.peak_memory_bytes), default=None)
        words = f" of {_size(limit_bytes)}" if limit_bytes else ""
        words += f" (largest sampled process: {_size(peak_bytes)})" if peak_bytes else ""
        target = f"--mem={_whole_gib(max(limit_bytes, peak_bytes or 0.0) * 1.5)}G" if limit_bytes else "a larger --mem"
        yield seen_end(
            ending,
            f"The kernel killed {ending.who.lower()} because the job reached its memory limit{words}{ending.when}.",
            f"request {target}, or use fewer loader workers",
            numbers={"limit_bytes": limit_bytes} if limit_bytes else {},
        )


def _whole_gib(size_bytes: float) -> int:
    return max(int(-(-size_bytes // units.GIB)), 1)
