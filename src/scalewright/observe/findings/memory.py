"""Device and host memory: growing, fragmented, unused; recomputation and offload that are not needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact
from scalewright.observe.evidence.series import setting, setting_number, setting_spots, step_series
from scalewright.observe.findings.planned import planned_gain
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule
from scalewright.observe.findings.words import percent, ranks_named, size

GROWTH_FRAC = 0.2
"""Growth over the steady steps, over where they began. Allocators settle within a few per cent."""
LEAST_GROWTH_BYTES = 64.0 * units.MIB
EACH_THIRD_FRAC = 0.12
"""Share of the growth that each third of the run must have: what grows and then stays is an allocator."""
LEAST_GROWING_STEPS = 15
UNUSED_FRAC = 0.5
"""Memory in use, over what the device has, below which there is room for a larger micro-batch."""
FRAGMENTED_FRAC = 0.25
"""Reserved beyond allocated, over the device: PyTorch's allocator usually keeps below 10 %."""
RECOMPUTE_FRAC = 0.75
"""Below this use, a run that recomputes may try without."""


@finding_rule(
    id="memory-growing",
    severity="warning",
    role="suspect",
    title="Memory grows from step to step",
    why="Training uses the same memory in every step. Growth is a leak: tensors kept with their graph (a loss that is "
    "added up without .item()), growing lists, a loader that keeps samples. The run ends when memory is full.",
    advice="Look for what is kept: torch.cuda.memory._record_memory_history, tracemalloc for the host. Add .item() or "
    ".detach() to values that are kept. Give the loader fewer Python objects, arrays instead.",
    source="PyTorch FAQ, 'My model reports cuda runtime error(2): out of memory'; PyTorch issue 13246",
)
def memory_growing(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    series = step_series(evidence)
    growing: dict[int, tuple[float, Sequence[StepFact]]] = {}
    for rank, steps in series.steady.items():
        known = [one for one in steps if one.memory_bytes is not None]
        grown_bytes = _steady_growth_bytes(known)
        if grown_bytes:
            growing[rank] = (grown_bytes, known)
    if not growing:
        return
    rank = max(growing, key=lambda one: growing[one][0])
    grown_bytes, leaking = growing[rank]
    first, last = leaking[0], leaking[-1]
    first_bytes, last_bytes = first.memory_bytes or 0.0, last.memory_bytes or 0.0
    each = grown_bytes / (last.step - first.step)
    limit = setting_number(evidence, "device_memory_bytes")
    left = (
        ""
        if not limit or limit <= last_bytes
        else f"; {size(limit)} are full after {(limit - last_bytes) / each:,.0f} more steps"
    )
    yield Seen(
        message=f"memory of {ranks_named(sorted(growing))} grows by {size(each)} a step, from {size(first_bytes)} to "
        f"{size(last_bytes)}{left}",
        spots=(first.spot, last.spot), certainty="certain", score=min(grown_bytes / first_bytes, 1.0),
        next_step="record what is allocated and never freed: torch.cuda.memory._record_memory_history, or tracemalloc",
        numbers={"bytes_per_step": each}, ranks=tuple(sorted(growing)),
    )  # fmt: skip


def _steady_growth_bytes(steps: Sequence[StepFact]) -> float:
    """Growth from the first to the last step, if every third of the steps has its part of it; else 0."""
    values = [one.memory_bytes or 0.0 for one in steps]
    if len(values) < LEAST_GROWING_STEPS or values[0] <= 0:
        return 0.0
    grown = values[-1] - values[0]
    if grown < max(GROWTH_FRAC * values[0], LEAST_GROWTH_BYTES):
        return 0.0
    third = len(values) // 3
    marks = (values[0], values[third], values[2 * third], values[-1])
    pieces = [after - before for before, after in pairwise(marks)]
    return grown if all(piece >= EACH_THIRD_FRAC * grown for piece in pieces) else 0.0


def use_frac(evidence: Evidence) -> tuple[float, StepFact | None, float] | None:
    """Peak memory of the devices over what one has, where both are known and the device is a GPU."""
    if setting(evidence, "device") == "cpu":
        return None
    limit = setting_number(evidence, "device_memory_bytes")
    steps = [one for one in evidence.steps if one.memory_bytes]
    if not steps:
        return None
    worst = max(steps, key=lambda one: one.memory_bytes or 0.0)
    if limit is None and worst.memory_free_bytes is not None:
        limit = (worst.memory_bytes or 0.0) + worst.memory_free_bytes
    if not limit:
        samples = [one.memory_total_bytes for one in evidence.device_samples if one.memory_total_bytes]
        limit = samples[0] if samples else None
    return None if not limit else ((worst.memory_bytes or 0.0) / limit, worst, limit)


@finding_rule(
    id="memory-headroom",
    severity="info",
    role="wasted",
    title="Much of the device memory is unused",
    why="A larger micro-batch makes products larger and communication rarer, as long as it fits.",
    advice="Raise the micro-batch and lower the accumulation, or use fewer devices for the same model.",
    source="Narayanan et al. 2021 (arXiv:2104.04473), section 3.3 on the micro-batch size",
)
def memory_headroom(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    used = use_frac(evidence)
    if used is None or used[0] >= UNUSED_FRAC or used[1] is None:
        return
    micro = setting_number(evidence, "mbs")
    gain = None if micro is None else planned_gain(evidence, f"mbs={2 * int(micro)}")
    yield Seen(
        message=f"the peak is {size(used[1].memory_bytes or 0.0)} of {size(used[2])} ({percent(used[0])})",
        spots=(used[1].spot, *setting_spots(evidence, "mbs")), certainty="certain",
        next_step="try a micro-batch twice as large" if micro is None else f"try mbs={2 * int(micro)}",
        score=0.0 if gain is None else gain.step_time_frac, numbers={"used_frac": used[0]}, gain=gain,
    )  # fmt: skip


@finding_rule(
    id="recompute-not-needed",
    severity="warning",
    role="slowed",
    title="Activations are recomputed although they would fit",
    why="Full recomputation runs the forward pass twice: about a third more compute. It is worth that only where the "
    "activations do not fit.",
    advice="Recompute attention only (selective), or nothing, and check the peak memory.",
    source="Korthikanti et al. 2022 (arXiv:2205.05198), section 5 and table 5",
)
def recompute_not_needed(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    level, used = setting(evidence, "recompute"), use_frac(evidence)
    if level in (None, "none", "off", "0", "") or used is None or used[0] >= RECOMPUTE_FRAC or used[1] is None:
        return
    gain = planned_gain(evidence, "recompute=none") or planned_gain(evidence, "recompute=selective")
    if gain is not None and gain.step_time_frac <= 0.02:
        return
    yield Seen(
        message=f"recompute={level} although the peak is {size(used[1].memory_bytes or 0.0)} of {size(used[2])}",
        spots=(*setting_spots(evidence, "recompute"), used[1].spot), next_step="try recompute=selective, then none",
        certainty="likely" if gain is not None else "possible", score=0.05 if gain is None else gain.step_time_frac,
        severity=None if gain is not None else "info", numbers={"used_frac": used[0]}, gain=gain,
    )  # fmt: skip


@finding_rule(
    id="offload-not-needed",
    severity="warning",
    role="slowed",
    title="State is offloaded to the host although it would fit",
    why="Offloaded state crosses PCIe in every step, and Adam on the CPU is slow: in one report 9.6 s of an 18 s step.",
    advice="Keep the optimizer state on the devices, sharded over data-parallel ranks (ZeRO 1).",
    source="slime issue 1139; Rajbhandari et al. 2020 (arXiv:1910.02054)",
)
def offload_not_needed(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    kind, used = setting(evidence, "offload"), use_frac(evidence)
    if kind in (None, "none", "off", "false", "False", "0", "") or used is None or used[1] is None:
        return
    if used[0] >= UNUSED_FRAC:
        return
    yield Seen(
        message=f"offload={kind} although the peak is {size(used[1].memory_bytes or 0.0)} of {size(used[2])}",
        spots=(*setting_spots(evidence, "offload"), used[1].spot), next_step="switch offloading off and look at the "
        "peak",
        certainty="possible", score=0.1, numbers={"used_frac": used[0]},
    )  # fmt: skip


@finding_rule(
    id="memory-fragmented",
    severity="warning",
    role="wasted",
    title="The allocator holds memory that it cannot use",
    why="Blocks of many sizes leave gaps. The allocator reserves more than is allocated, and an allocation may fail "
    "with gigabytes reserved.",
    advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and pad sequences to few lengths.",
    source="PyTorch documentation, CUDA memory management",
)
def memory_fragmented(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    used = use_frac(evidence)
    for one in evidence.steps:
        pair = _reserved(one)
        if pair is None:
            continue
        allocated, reserved = pair
        total = used[2] if used is not None else reserved
        if (reserved - allocated) / total >= FRAGMENTED_FRAC:
            yield Seen(
                message=f"{size(reserved)} are reserved and {size(allocated)} allocated: "
                f"{percent((reserved - allocated) / total)} of the memory are gaps",
                spots=(one.spot,), next_step="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", certainty="likely",
                score=(reserved - allocated) / total,
                numbers={"allocated_bytes": allocated, "reserved_bytes": reserved},
            )  # fmt: skip
            return


def _reserved(one: StepFact) -> tuple[float, float] | None:
    names = (("max_memory_allocated", "max_memory_reserved"), ("max allocated", "max reserved"),
             ("max_memory_allocated_bytes", "max_memory_reserved_bytes"))  # fmt: skip
    for allocated, reserved in names:
        if allocated in one.values and reserved in one.values and one.values[reserved] > 0:
            return one.values[allocated], one.values[reserved]
    return None
