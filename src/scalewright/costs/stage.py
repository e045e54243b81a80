"""What an RL step has beside generation and training: scoring passes, weight sync, memory by mode."""

from __future__ import annotations

from typing import Literal

from scalewright.catalog.types import TransformerShape
from scalewright.costs.breakdown import Breakdown, FloatLike
from scalewright.costs.machine import Machine
from scalewright.workload.model import num_moe_layers
from scalewright.workload.precision import Recipe

Mode = Literal["full", "offload", "lora"]
"""How weights are trained: Adam over all on the devices; Adam's state on the hosts; adapters beside frozen weights."""
Sync = Literal["gather_broadcast", "peer_to_peer"]
MODE_TITLES: dict[Mode, str] = {
    "full": "all weights, gradients and Adam's state on the devices",
    "offload": "all weights; Adam's state, and the reference model in RL, on the hosts",
    "lora": "frozen 16-bit weights; adapters with their gradients and Adam's state",
}


def scoring_time_s(
    *, layer_forward_s: float, head_forward_s: float, num_layers: float, num_micro_batches: float, pp: int
) -> float:
    """A forward pass over all sequences, for the log-probabilities of their tokens.

    Equation  t = (m + p - 1) l t_layer + m t_head,  l layers of a stage
    Source    shao2024 (DeepSeekMath, arXiv:2402.03300), section 4.1: old policy and reference model score each token
    Assumes   the training engine's layout and kernels; stages fill and drain once; nothing is kept for a backward pass
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


def num_lora_params(*, shape: TransformerShape, rank: int) -> float:
    """Parameters of low-rank adapters on every dense matrix of a layer.

    Equation  l r (sum of rows and columns of query, key, value, output and feed-forward matrices)
    Source    hu2021 (LoRA, arXiv:2106.09685), section 4.1
    Assumes   experts carry none; latent attention counted as plain heads
    Checked   tests/costs/test_stage.py: Llama 3 8B with rank 16 has 41.9 M
    """
    h, a, k, d = shape.hidden, shape.heads, shape.kv_heads, shape.head_dim
    attention = (h + a * d) + 2 * (h + k * d) + (a * d + h)
    feed_forward = 0 if shape.moe is not None else (3 if shape.gated else 2) * (h + shape.ffn_hidden)
    return float(shape.layers * rank * (attention + feed_forward))


def trained_state(*, num_params: FloatLike, num_adapter_params: FloatLike, recipe: Recipe, mode: Mode) -> Breakdown:
    """Bytes a device keeps for its share of the weights that are trained.

    Equation  full: N (w + g + o); offload: N (w + g); lora: N w + A (w + g + o)
    Source    rajbhandari2020 (arXiv:1910.02054), section 3.1; ren2021 (ZeRO-Offload, arXiv:2101.06840); hu2021
    Assumes   even shards of all of it over the devices
    Checked   tests/costs/test_stage.py: 70e9 parameters x 16 bytes = 1120 GB
    """
    trained = num_adapter_params if mode == "lora" else num_params
    held = 0.0 if mode == "offload" else trained * recipe.optimizer_bytes

    def term(name: str, value: FloatLike) -> Breakdown:
        return Breakdown(name=name, unit="bytes", value=value, formula="stage.trained_state", inputs={"mode": mode})

    adapters = trained * recipe.weight_bytes if mode == "lora" else 0.0
    return Breakdown(
        name="trained_state",
        unit="bytes",
        formula="stage.trained_state",
        parts=(
            term("weights", num_params * recipe.weight_bytes + adapters),
            term("gradients", trained * recipe.gradient_bytes),
            term("optimizer", held),
        ),
    )


def offloaded_bytes(*, num_params: float, recipe: Recipe, mode: Mode, num_weight_copies: int) -> float:
    """Bytes of a device's share that live on its host.

    Equation  N (o + c w) in offload mode, c copies of the weights; else nothing
    Source    ren2021 (ZeRO-Offload, arXiv:2101.06840), section 4.1; sheng2024 (HybridFlow, arXiv:2409.19256)
    Assumes   in RL the trainer's weights wait on the host during rollout, and the reference model always (c = 2)
    Checked   tests/costs/test_stage.py: 70B with Adam on the hosts asks for 847 GB
    """
    if mode != "offload":
        return 0.0
    return num_params * (recipe.optimizer_bytes + num_weight_copies * recipe.weight_bytes)
