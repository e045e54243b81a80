"""Pipeline parallelism: the bubble, and micro-batches that do not fill the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.series import setting_number, setting_spots
from scalewright.observe.findings.planned import planned_gain
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent

LARGE_BUBBLE_FRAC = 0.2
"""Of the step. Published large runs keep it below 15 %."""
NOTED_BUBBLE_FRAC = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    pp: int
    vpp: int
    num_micro: int
    mbs: int

    @property
    def bubble_frac(self) -> float:
        """Share of a step in which a pipeline rank waits.

        Equation  (p - 1) / v / (m + (p - 1) / v)
        Source    narayanan2021 (arXiv:2104.04473), section 2.2
        Assumes   1F1B, equal pipeline ranks
        """
        filling = (self.pp - 1) / self.vpp
        return filling / (self.num_micro + filling)


def pipeline_shape(evidence: Evidence) -> PipelineShape | None:
    """None without a pipeline, or where the batch is not known."""
    pp, gbs, mbs, dp = (setting_number(evidence, name) for name in ("pp", "gbs", "mbs", "dp"))
    if dp is None:
        dp = _replicas(evidence)
    if not pp or pp < 2 or not gbs or not mbs or not dp:
        return None
    num_micro = int(gbs // (mbs * dp))
    vpp = int(setting_number(evidence, "vpp") or 1)
    return PipelineShape(pp=int(pp), vpp=max(vpp, 1), num_micro=num_micro, mbs=int(mbs)) if num_micro >= 1 else None


def _replicas(evidence: Evidence) -> float | None:
    ranks = setting_number(evidence, "num_ranks")
    if not ranks:
        return None
    for name in ("tp", "pp", "cp"):
        ranks /= setting_number(evidence, name) or 1.0
    return ranks


@finding_rule(
    id="pipeline-bubble",
    severity="warning",
    role="slowed",
    title="The pipeline bubble is large",
    why="A pipeline fills and drains in every step. With few micro-batches, that is a large part of the step.",
    advice="More micro-batches (a larger global batch or a smaller micro-batch), interleaved pipeline chunks (vpp), "
    "or a shorter pipeline.",
    source="Narayanan et al. 2021 (arXiv:2104.04473), section 2.2",
    because_of=("too-few-micro-batches",),
)
def pipeline_bubble(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    shape = pipeline_shape(evidence)
    if shape is None or shape.bubble_frac < NOTED_BUBBLE_FRAC:
        return
    gain = planned_gain(evidence, f"vpp={2 * shape.vpp}")
    how = "the formula: twice as many pipeline chunks halve the bubble"
    filling = (shape.pp - 1) / shape.vpp
    halved = 1.0 - (shape.num_micro + filling / 2) / (shape.num_micro + filling)
    yield Seen(
        message=f"the bubble takes {percent(shape.bubble_frac)} of a step: pp={shape.pp}, vpp={shape.vpp}, "
        f"{shape.num_micro} micro-batches",
        spots=setting_spots(evidence, "pp", "gbs", "mbs", "vpp"),
        next_step=f"interleave with vpp={2 * shape.vpp}, or accumulate more micro-batches", certainty="certain",
        score=shape.bubble_frac, severity=None if shape.bubble_frac >= LARGE_BUBBLE_FRAC else "info",
        numbers={"bubble_frac": shape.bubble_frac},
        gain=gain if gain is not None and gain.step_time_frac > 0 else Gain(step_time_frac=halved, how=how),
    )  # fmt: skip


@finding_rule(
    id="too-few-micro-batches",
    severity="warning",
    role="slowed",
    title="Fewer micro-batches than pipeline ranks",
    why="A pipeline rank without a micro-batch waits. With fewer micro-batches than ranks, no moment has all of them "
    "busy.",
    advice="Lower the micro-batch size, raise the global batch, or use a shorter pipeline: at least four "
    "micro-batches for each pipeline rank.",
    source="Huang et al. 2019, GPipe (arXiv:1811.06965), section 2.3: the bubble is negligible from 4 times on",
)
def too_few_micro_batches(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    shape = pipeline_shape(evidence)
    if shape is None or shape.num_micro >= shape.pp:
        return
    gain = planned_gain(evidence, f"mbs={shape.mbs // 2}") if shape.mbs > 1 and shape.mbs % 2 == 0 else None
    yield Seen(
        message=f"{shape.num_micro} micro-batches for a pipeline of {shape.pp} ranks: {percent(shape.bubble_frac)} "
        f"of a step "
        "is waiting",
        spots=setting_spots(evidence, "pp", "gbs", "mbs"), certainty="certain", score=shape.bubble_frac,
        next_step="lower the micro-batch or raise the global batch, so that there are 4 or more for each pipeline rank",
        numbers={"num_micro": shape.num_micro, "bubble_frac": shape.bubble_frac}, gain=gain,
    )  # fmt: skip
