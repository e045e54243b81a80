"""What runs of the stages say of the observations: from the records that each stage leaves in its run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalewright import units
from scalewright.catalog.observations import Observation
from scalewright.records.observations import ObservedEvidence
from scalewright.records.reasoning import CurvePoint, StageName, StageRecord, read_curve, read_stage
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Number
from scalewright.study.observations.evidence import SAYS_NOTHING, evidence, verdict_if, verdict_of

FULL_CACHE_FRAC = 0.95
"""Share of the cache's pages from which on it is full: an engine keeps some pages back."""
DIVERGED = 1.5
"""A loss that ends at so many times its lowest value has diverged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStage:
    """A stage that ended, with its curve and what is known of its device."""

    record: StageRecord
    curve: tuple[CurvePoint, ...] = ()
    ridge_flop_per_byte: float | None = None
    """Peak rate of arithmetic over that of memory; None: not known."""

    @property
    def is_on_cpu(self) -> bool:
        return self.record.device_bytes is None


Stages = dict[StageName, MeasuredStage]
"""The last run of each stage."""


def measured_stages(runs: Sequence[RunDirectory]) -> Stages:
    """The stages that ended, of run directories in the order of a pipeline; of one stage the last run counts."""
    stages: Stages = {}
    for run in runs:
        if run.stage.exists():
            record = read_stage(run)
            machine = run.read_machine()
            peak, memory = machine.get("peak_flop_per_s"), machine.get("memory_bytes_per_s")
            stages[record.stage] = MeasuredStage(
                record=record, curve=tuple(read_curve(run)),
                ridge_flop_per_byte=None if not peak or not memory else float(peak) / float(memory),
            )  # fmt: skip
    return stages


def communication_share(stages: Stages, observed: Observation) -> ObservedEvidence | str:
    return _exchange(stages, observed, "sft")


def generation_exchange(stages: Stages, observed: Observation) -> ObservedEvidence | str:
    return _exchange(stages, observed, "generate")


def _exchange(stages: Stages, observed: Observation, name: StageName) -> ObservedEvidence | str:
    if name not in stages:
        return _not_run(name)
    record = stages[name].record
    if record.num_ranks == 1:
        return "one rank has nothing to exchange"
    if record.split is None:
        return "no step was profiled"
    share = record.split.communication_frac
    text = f"communication takes {100 * share:.0f} % of the profiled steps on {record.num_ranks} ranks"
    return evidence(text, verdict_if(share >= observed.setting.limit_frac))


def not_compute(stages: Stages, observed: Observation) -> ObservedEvidence | str:
    if "grpo" not in stages:
        return _not_run("grpo")
    record, figure = stages["grpo"].record, observed.figure
    assert figure is not None
    used = record.split.compute_frac if record.split is not None else record.utilisation_frac
    if used is None:
        return "the use of the device was not measured"
    number = Number(value=1.0 - used)
    return evidence(f"{100 * number.value:.0f} % of the time without compute", verdict_of(number, figure), number)


def all_reduce_share(stages: Stages, observed: Observation) -> ObservedEvidence | str:
    """AllReduce's part of the exposed communication, by its share of the time in collectives."""
    if "grpo" not in stages:
        return _not_run("grpo")
    record, figure = stages["grpo"].record, observed.figure
    assert figure is not None
    if record.num_ranks == 1:
        return "one rank has nothing to sum"
    total_s = sum(use.seconds for use in record.collectives.values())
    if record.split is None or total_s <= 0.0:
        return "no collective was profiled"
    sums_s = sum(use.seconds for name, use in record.collectives.items() if "reduce" in name and "all" in name)
    number = Number(value=record.split.communication_frac * sums_s / total_s)
    text = f"AllReduce takes {100 * number.value:.0f} % of the profiled steps on {record.num_ranks} ranks"
    return evidence(text, verdict_of(number, figure), number)


def host_memory(stages: Stages, _: Observation) -> ObservedEvidence | str:
    if "grpo" not in stages:
        return _not_run("grpo")
    stage = stages["grpo"]
    size = _bytes(stage.record.host_bytes)
    if stage.is_on_cpu or stage.record.device_bytes is None:
        return evidence(f"{size} a rank, which on CPUs is the device's memory too", SAYS_NOTHING)
    return evidence(f"{size} of host memory a rank, {_bytes(stage.record.device_bytes)} on its GPU", SAYS_NOTHING)


def utilisation(stages: Stages, observed: Observation) -> ObservedEvidence | str:
    """GPUs are underused where they compute less than the limit; a CPU's use is another thing."""
    if "generate" not in stages:
        return _not_run("generate")
    stage, limit = stages["generate"], observed.setting.limit_frac
    used = stage.record.utilisation_frac
    if used is None:
        return "the use of the device was not measured"
    text = f"{100 * used:.0f} % of the time in use"
    if stage.is_on_cpu:
        return evidence(f"{text}, on CPUs", SAYS_NOTHING, Number(value=used))
    return evidence(text, verdict_if(used < limit), Number(value=used))


def decode_intensity(stages: Stages, _: Observation) -> ObservedEvidence | str:
    for name in ("generate", "grpo", "evaluate"):
        stage = stages.get(name)
        points = [] if stage is None else [work for work in stage.record.roofline if work.name == "decode"]
        if stage is None or not points:
            continue
        intensity = points[0].flop_per_byte
        if stage.ridge_flop_per_byte is None:
            return evidence(f"{intensity:.1f} FLOP per byte; the device's peak rates are not known", SAYS_NOTHING)
        ridge = stage.ridge_flop_per_byte
        is_below = intensity < ridge
        text = f"{intensity:.1f} FLOP per byte, {'below' if is_below else 'above'} the {ridge:.0f} of the device"
        return evidence(text, verdict_if(is_below), Number(value=intensity))
    return "no stage decoded"


def rank_gap(stages: Stages, observed: Observation) -> ObservedEvidence | str:
    if "generate" not in stages:
        return _not_run("generate")
    record, figure = stages["generate"].record, observed.figure
    assert figure is not None
    if record.num_ranks == 1:
        return "one rank has no other to differ from"
    gap = record.rank_gap_frac
    text = f"{100 * gap:.0f} % between {record.num_ranks} ranks that each hold the model"
    return evidence(text, verdict_if(gap >= figure.value), Number(value=gap))


def cache_room(stages: Stages, _: Observation) -> ObservedEvidence | str:
    if "generate" not in stages:
        return _not_run("generate")
    record = stages["generate"].record
    if record.kv_peak_frac is None or record.kv_occupancy_frac is None:
        return "the cache was not measured"
    mean, most = (f"{100 * share:.0f} %" for share in (record.kv_occupancy_frac, record.kv_peak_frac))
    text = f"{mean} of the pages in use on average, {most} at most"
    return evidence(text, verdict_if(record.kv_peak_frac >= FULL_CACHE_FRAC), Number(value=record.kv_peak_frac))


def teacher_share(stages: Stages, observed: Observation) -> ObservedEvidence | str:
    if "generate" not in stages:
        return _not_run("generate")
    if "distill" not in stages:
        return _not_run("distill")
    written, trained = stages["generate"].record, stages["distill"].record
    written_s, trained_s = (record.wall_s * record.num_ranks for record in (written, trained))
    share = written_s / (written_s + trained_s)
    text = f"generation takes {100 * share:.0f} % of the time of both stages"
    return evidence(text, verdict_if(share > observed.setting.limit_frac), Number(value=share))


def student_loss(stages: Stages, _: Observation) -> ObservedEvidence | str:
    if "distill" not in stages:
        return _not_run("distill")
    stage = stages["distill"]
    losses = [point.loss for point in stage.curve if point.loss is not None]
    if not losses:
        return "the student's loss was not written"
    lost = len(stage.curve) - len(losses)
    diverged = lost > 0 or losses[-1] > DIVERGED * min(losses)
    ranks = "one rank" if stage.record.num_ranks == 1 else f"{stage.record.num_ranks} ranks"
    text = (
        f"{units.format(stage.record.num_params, units.COUNT)} parameters on {ranks}; the loss went from "
        f"{losses[0]:.2f} to {losses[-1]:.2f} and {'diverged' if diverged else 'did not diverge'}"
    )
    return evidence(text, verdict_if(stage.record.num_ranks == 1))


def _not_run(name: StageName) -> str:
    return f"no {name} stage was run"


def _bytes(size_bytes: float) -> str:
    return units.format(size_bytes, units.BYTES)


MEASURES: dict[str, Callable[[Stages, Observation], ObservedEvidence | str]] = {
    "communication_share": communication_share,
    "not_compute": not_compute,
    "all_reduce_share": all_reduce_share,
    "host_memory": host_memory,
    "utilisation": utilisation,
    "decode_intensity": decode_intensity,
    "generation_exchange": generation_exchange,
    "rank_gap": rank_gap,
    "cache_room": cache_room,
    "teacher_share": teacher_share,
    "student_loss": student_loss,
}
"""By the name in the catalogue: what was measured, or why it was not."""
