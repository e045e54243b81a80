"""Micro-batches too small for the device, and sizes of the model that its matrix units do not like."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.series import setting, setting_number, setting_spots
from scalewright.observe.findings.planned import planned, planned_gain
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import counted, percent

LEAST_GAIN_FRAC = 0.1
WARNED_GAIN_FRAC = 0.25
"""A gain from which a small micro-batch is a warning: below it, predictions may be off by as much."""
HEAD_MULTIPLE = 8
WIDTH_MULTIPLE = 64
VOCAB_MULTIPLE = 64
"""Tensor cores work on tiles: 16-bit sizes that are no multiple of 8 need padding, 64 fills a tile (NVIDIA guide)."""


@finding_rule(
    id="small-micro-batch",
    severity="warning",
    role="slowed",
    title="Micro-batches are too small to keep the device busy",
    why="Each micro-batch costs the same number of kernel launches and reads all weights once, however few samples "
    "it has. Many small ones do the same work more slowly than few large ones.",
    advice="Raise the micro-batch size and lower the accumulation by the same factor, as far as memory allows.",
    source="Narayanan et al. 2021 (arXiv:2104.04473), section 3.3; NVIDIA, Matrix Multiplication Background",
)
def small_micro_batch(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    mbs, gbs, dp = (setting_number(evidence, name) for name in ("mbs", "gbs", "dp"))
    if not mbs or not gbs or not dp or gbs < 2 * mbs * dp:
        return
    run = planned(evidence)
    if run is None:
        return
    best: tuple[int, Gain] | None = None
    size, most = 2 * int(mbs), int(gbs // dp)
    while size <= most:
        gain = planned_gain(evidence, f"mbs={size}", run=run) if most % size == 0 else None
        if gain is not None and (best is None or gain.step_time_frac > best[1].step_time_frac):
            best = (size, gain)
        size *= 2
    if best is None or best[1].step_time_frac < LEAST_GAIN_FRAC:
        return
    size, gain = best
    yield Seen(
        message=f"{gbs / (mbs * dp):.0f} micro-batches of {counted(mbs, 'sample')} in every step; mbs={size} "
        f"does the same work in {percent(1.0 - gain.step_time_frac)} of the time",
        spots=setting_spots(evidence, "mbs", "gbs"), next_step=f"set mbs={size}", certainty="likely",
        score=gain.step_time_frac, severity=None if gain.step_time_frac >= WARNED_GAIN_FRAC else "info",
        numbers={"mbs": mbs, "better_mbs": size}, gain=gain,
    )  # fmt: skip


@finding_rule(
    id="misaligned-sizes",
    severity="warning",
    role="slowed",
    title="Sizes of the model do not fill the matrix units",
    why="Matrix units work on tiles. A head, a width or a vocabulary that is no multiple of the tile is padded, or "
    "runs on slower kernels.",
    advice="Pad the vocabulary to a multiple of 64 (times tp), and choose heads so that the head size is a multiple "
    "of 64 or 128. Changing heads changes the model: do it before training.",
    source="NVIDIA, Matrix Multiplication Background User's Guide; Anthony et al. 2024 (arXiv:2401.14489)",
)
def misaligned_sizes(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    if setting(evidence, "device") == "cpu":
        return
    hidden, heads, vocab = (setting_number(evidence, name) for name in ("hidden", "heads", "vocab"))
    tp = setting_number(evidence, "tp") or 1
    head = setting_number(evidence, "head_dim") or (hidden / heads if hidden and heads else None)
    problems = []
    if head and (head % HEAD_MULTIPLE):
        problems.append((f"the head size {head:g} is no multiple of {HEAD_MULTIPLE}", "heads"))
    if hidden and hidden / tp % WIDTH_MULTIPLE:
        problems.append((f"the width {hidden / tp:g} on each rank is no multiple of {WIDTH_MULTIPLE}", "hidden"))
    if vocab and vocab / tp % HEAD_MULTIPLE:
        problems.append((f"the vocabulary {vocab / tp:g} on each rank is no multiple of {VOCAB_MULTIPLE}", "vocab"))
    if problems:
        yield Seen(
            message="; ".join(text for text, _ in problems),
            spots=setting_spots(evidence, *(name for _, name in problems), "hidden"), certainty="likely", score=0.05,
            next_step="pad the vocabulary (Megatron: --make-vocab-size-divisible-by), choose an aligned head size",
        )  # fmt: skip
