"""The numbers that products run in: 32 bit where 16 would do, and 16 where 32 is faster."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.series import setting, setting_spots
from scalewright.observe.findings.planned import planned_gain
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule, run_option

FULL = ("fp32", "float32", "32", "32-true", "no")
SHORT = ("bf16", "fp16", "bfloat16", "float16", "16-mixed", "bf16-mixed")
LEAST_GAIN_FRAC = 0.1
WITHOUT_PLAN_FRAC = 0.3
"""Weight without a prediction: matrix units are 2 to 16 times as fast in 16 bit."""


@finding_rule(
    id="amp-off",
    severity="warning",
    role="slowed",
    title="Training runs in 32 bit on a device with matrix units",
    why="Matrix units of GPUs multiply 16-bit numbers several times as fast as 32-bit ones, and 16-bit activations "
    "take half the memory and half the bytes on the network.",
    advice="Train in bf16 (torch.autocast, --bf16). Keep the optimizer's state in 32 bit.",
    source="Micikevicius et al. 2018 (arXiv:1710.03740); NVIDIA, Mixed Precision Training guide",
)
def amp_off(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    precision = (setting(evidence, "precision") or "").lower()
    if precision not in FULL or setting(evidence, "device") == "cpu" or _is_cpu(evidence):
        return
    gain = planned_gain(evidence, "precision=bf16")
    if gain is not None and gain.step_time_frac < LEAST_GAIN_FRAC:
        return
    yield Seen(
        message=f"precision is {precision}: matrix units are not used in 16 bit",
        spots=setting_spots(evidence, "precision"), next_step=_train_in(evidence, "bf16"), certainty="certain",
        score=WITHOUT_PLAN_FRAC if gain is None else gain.step_time_frac, gain=gain,
    )  # fmt: skip


@finding_rule(
    id="tf32-off",
    severity="info",
    role="slowed",
    title="32-bit products do not use TF32",
    why="PyTorch computes 32-bit products without tensor cores unless it is allowed to round inputs to TF32.",
    advice="torch.set_float32_matmul_precision('high').",
    source="PyTorch documentation, TensorFloat-32 on Ampere and later devices",
    because_of=("amp-off",),
)
def tf32_off(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    warned = [one for one in evidence.happenings if "float32_matmul_precision" in one.message]
    if warned:
        yield Seen(
            message="PyTorch says that tensor cores for 32-bit products are available and not enabled",
            spots=(warned[0].spot,), next_step="call torch.set_float32_matmul_precision('high')", certainty="certain",
            score=0.1,
        )  # fmt: skip


@finding_rule(
    id="amp-slower",
    severity="warning",
    role="slowed",
    title="16 bit is slower than 32 bit here",
    why="A device without units for 16-bit products converts every number, and loses time by it: most CPUs, and GPUs "
    "before Volta. Small models lose by the conversions too.",
    advice="Train in fp32 on this device, or use a device with matrix units.",
    source="The seed's observation that AMP slowed small models; PyTorch documentation, autocast on CPU",
)
def amp_slower(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    precision = (setting(evidence, "precision") or "").lower()
    if precision not in SHORT:
        return
    gain = planned_gain(evidence, "precision=fp32")
    if gain is None or gain.step_time_frac < LEAST_GAIN_FRAC:
        return
    yield Seen(
        message=f"precision is {precision}, and the planner expects fp32 to be faster on this machine",
        spots=setting_spots(evidence, "precision"), next_step=_train_in(evidence, "fp32"), certainty="likely",
        score=gain.step_time_frac, gain=gain,
    )  # fmt: skip


def _train_in(evidence: Evidence, precision: str) -> str:
    option = run_option(evidence, "--precision", precision)
    return f"train with {option}" if option else f"train in {precision}"


def _is_cpu(evidence: Evidence) -> bool:
    return (setting(evidence, "accelerator") or "").startswith("cpu")
