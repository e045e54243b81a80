"""What an RL step has beside generation and training: scoring passes and weight sync."""

from __future__ import annotations

from typing import Literal

from scalewright.catalog.types import TransformerShape
from scalewright.costs.machine import Machine
from scalewright.workload.model import num_moe_layers

Sync = Literal["gather_broadcast", "peer_to_peer"]


def scoring_time_s(
    *, layer_forward_s: float, head_forward_s: float, num_layers: float, num_micro_batches: float, pp: int
) -> float:
    """A forward pass over all sequences, for the log-probabilities of their tokens.

    Equation  t = (m + p - 1) l t_layer + m t_head,  l layers of a pipeline rank
    Source    shao2024 (DeepSeekMath, arXiv:2402.03300), section 4.1: old policy and reference model score each token
    Assumes   the training engine's layout and kernels; the pipeline fills and drains once; no backward pass
    Checked   tests/costs/test_stage.py: a quarter to two fifths of a training step
    """
    return (num_micro_batches + pp - 1.0) * num_layers * layer_forward_s + num_micro_batches * head_forward_s


def num_synced_tensors(shape: TransformerShape) -> int:
    """Messages that carry a model: each matrix by itself, experts one by one.

    Equation  l (attention 4 + norms 2 + feed-forward 3) + experts 3 l E + tables 2
    Source    the parameter lists of the catalogued models
    Assumes   no fusing into buckets
    Checked   tests/costs/test_stage.py: Llama 3 8B has 291 tensors
    """
    matrices = 3 if shape.gated else 2
    dense = shape.layers * (4 + 2 + matrices) + 3
    return dense if shape.moe is None else dense + num_moe_layers(shape) * shape.moe.num_experts * matrices


def gather_broadcast_time_s(*, weights_bytes: float, num_tensors: int, num_devices: int, machine: Machine) -> float:
    """Weight sync through one rank: gathered tensor by tensor, then sent to everybody.

    Equation  t = 2 S / B + 2 n a0
    Source    sheng2024 (HybridFlow, arXiv:2409.19256), section 5.3; thakur2005, long broadcasts run at wire speed
    Assumes   one device's share of the network, or the scale-up link inside one node; gather and broadcast in turn
    Checked   tests/costs/test_stage.py: ASystem's 30 s at 100B and about a minute at 1T, within a factor of four
    """
    bandwidth = machine.scale_up_bytes_per_s
    if num_devices > machine.gpus_per_node and machine.network_bytes_per_s_per_gpu is not None:
        bandwidth = min(bandwidth, machine.network_bytes_per_s_per_gpu)
    return 2.0 * weights_bytes / bandwidth + 2.0 * num_tensors * machine.constants.collective_offset.value


def peer_to_peer_time_s(
    *, weights_bytes: float, num_tensors: int, num_trainers: int, num_generators: int, tp: int, machine: Machine
) -> float:
    """Weight sync by direct writes: each trainer sends its part to every copy of the generator.

    Equation  t = max(S / t, S r / n) / B + (tensors / t) a0,  r = generators / t copies, n trainers
    Source    ASystem's AState, in the Ring-1T report: peer-to-peer weight exchange
    Assumes   all NICs at work at once, no conversion on the way: a bound from below
    Checked   tests/costs/test_stage.py: below ASystem's 4 s at 100B and 6 s at 1T by up to a factor of ten
    """
    bandwidth = machine.scale_up_bytes_per_s
    if num_trainers + num_generators > machine.gpus_per_node and machine.network_bytes_per_s_per_gpu is not None:
        bandwidth = min(bandwidth, machine.network_bytes_per_s_per_gpu)
    received, sent = weights_bytes / tp, weights_bytes * num_generators / tp / num_trainers
    return max(received, sent) / bandwidth + num_tensors / tp * machine.constants.collective_offset.value


def rl_interval_s(*, time_s: float, machine: Machine, num_unseen: int) -> tuple[float, float]:
    """The 90 % interval of a predicted RL step.

    Equation  [q05, q95] x t, each quantile to the power 1 + u/2 for u things that no published step shares
    Source    published GRPO steps of one project, none of them fitted (benchmarks/stage_residuals.py)
    Assumes   other projects differ as its models do: one project, so the quantiles are widened once more
    Checked   tests/planner/test_stages.py: holds the published steps
    """
    c = machine.constants
    power = 1.0 + c.unseen_widening.value * num_unseen
    return time_s * c.rl_interval_low.value**power, time_s * c.rl_interval_high.value**power


def unseen_rl(*, machine: Machine, precision: str) -> list[str]:
    """What about a request lies outside the published RL steps."""
    c, accelerator = machine.constants, machine.accelerator.id
    reasons = [] if accelerator in c.rl_seen_accelerators else [f"no published RL step used {accelerator}"]
    return reasons if precision in c.rl_seen_precisions else [*reasons, f"no published RL step is in {precision}"]
