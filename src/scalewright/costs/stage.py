"""What an RL step has beside generation and training: scoring passes, moved state, weight sync, and what hides what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.catalog.types import TransformerShape
from scalewright.costs.generation import Load, Serving, load_time, num_least_iterations, timed
from scalewright.costs.machine import Machine
from scalewright.workload.model import num_moe_layers


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


def state_move_s(*, state_bytes: float, machine: Machine) -> float:
    """The trainer's state of one device to its host before a rollout, and back after it.

    Equation  t = 2 S / (f B),  B the link's rate, f the share of it that frameworks reach
    Source    sheng2024 (HybridFlow, arXiv:2409.19256), section 5; NVIDIA-NeMo/RL nemo_rl/algorithms/grpo.py,
              offload_before_refit and prepare_for_training
    Assumes   every device has a link of its own; pageable host memory; nothing is computed meanwhile; no time where the
              link is not known
    Checked   tests/costs/test_stage.py: twice the state over the rate
    """
    if machine.host_link_bytes_per_s is None:
        return 0.0
    return 2.0 * state_bytes / (machine.constants.rl_move_share.value * machine.host_link_bytes_per_s)


def framework_step_s(*, num_gpus: int, machine: Machine) -> float:
    """What an iteration of the generator takes more inside an RL framework than in serving alone.

    Equation  t = e, and h more where the devices of one copy belong to several hosts
    Source    published steps (benchmarks/fit_rl.py)
    Assumes   log-probabilities of sampled tokens, an event loop in Python; between hosts a remote call an iteration
    Checked   tests/golden/test_rl_table.py: published steps, each model left out
    """
    c = machine.constants
    apart = num_gpus > machine.gpus_per_host
    return c.rl_engine_step_time.value + (c.rl_hosts_step_time.value if apart else 0.0)


def expert_loop_s(
    *, num_experts: float, num_layers: float, num_micro_batches: float, num_passes: float, pp: int, machine: Machine
) -> float:  # fmt: skip
    """A rank's experts run one by one, which leaves the device waiting between them.

    Equation  t = x E_r l (m + p - 1) k,  E_r experts of a rank, k forward passes; a backward pass counts two
    Source    Megatron-Core without moe_grouped_gemm, as in the recipes of NVIDIA-NeMo/RL up to v0.6.0
    Assumes   the same time for every expert and model; nothing hidden
    Checked   tests/golden/test_rl_table.py: published steps, each model left out
    """
    slots = num_micro_batches + pp - 1.0
    return machine.constants.rl_expert_time.value * num_experts * num_layers * slots * num_passes


def waited_rollout_s(*, rollout_s: float, training_s: float, num_chunks: int, is_ahead: bool) -> float:
    """What of a rollout on devices of its own a step waits for.

    Equation  ahead: max(g - t, 0);  else max(g - (1 - 1/c) t, g / c),  c chunks of the batch trained as they are ready
    Source    noukhovitch2024 (arXiv:2410.18252), section 3: generation and training side by side, one step apart;
              verl docs/advance/fully_async.md: batches handed over in parts
    Assumes   a steady state; the slower of the two sets the pace; a generator that is ahead goes on while new weights
              arrive, so that t holds their sync
    Checked   tests/costs/test_stage.py: nothing where training is longer; all of it in one chunk without a lag
    """
    if is_ahead:
        return max(rollout_s - training_s, 0.0)
    return max(rollout_s - (1.0 - 1.0 / num_chunks) * training_s, rollout_s / num_chunks)


def stale_rollout_frac(serving: Serving, load: Load, *, staleness_frac: float) -> float:
    """Time of a rollout whose longest answers go on into the next step, over one that waits for them.

    Equation  t(N_s) / t(N),  N_s = max(q / ((1 + s) E[min(L, q)] / L), B/c, 1) L within N iterations, q the quantile
              1 / (1 + s) of the answers
    Source    fu2025 (AReaL, arXiv:2505.24298), section 4: interruptible rollouts under a bound of staleness
    Assumes   a step writes as many tokens as its answers have, at the rate of the first n of (1 + s) n answers that
              begin together, within the room
    Checked   tests/costs/test_stage.py: 1 without staleness, falls with it; golden: verl's staleness ablation
    """
    answers, whole, all_done = load.answers, *load_time(serving, load)
    if staleness_frac <= 0.0 or answers.is_fixed:
        return 1.0
    enough = answers.quantile(1.0 / (1.0 + staleness_frac))
    written = float(answers.tokens_up_to(np.array([1.0 / (1.0 + staleness_frac)]))[0])
    written += enough * staleness_frac / (1.0 + staleness_frac)  # of those that are longer
    steps = answers.mean * enough / ((1.0 + staleness_frac) * written)
    steps = min(max(steps, num_least_iterations(load)), all_done.num_all_steps)
    early = replace(
        all_done, num_steps=np.array([steps]), num_running=all_done.num_running * all_done.num_steps / steps
    )
    return float(timed(serving, load, early).total) / float(whole.total)


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

    Equation  t = S / B + n (a0 + x),  x a tensor's handling: name, shape and shards
    Source    sheng2024 (HybridFlow, arXiv:2409.19256), section 5.3; thakur2005, long broadcasts run at wire speed
    Assumes   one device's share of the network, or the scale-up link inside one node; tensors are gathered while others
              are sent
    Checked   tests/costs/test_stage.py: ASystem's 30 s at 100B and about a minute at 1T, within a factor of four;
              verl's 0.12 s for 7B from 4 to 4 ranks
    """
    sent_s = broadcast_time_s(weights_bytes=weights_bytes, wire_bytes_per_s=_wire_bytes_per_s(machine, num_devices))
    c = machine.constants
    return sent_s + num_tensors * (c.collective_offset.value + c.rl_tensor_time.value)


def broadcast_time_s(*, weights_bytes: float, wire_bytes_per_s: float) -> float:
    """The bytes of a broadcast through a chain that passes on what it has while the rest arrives.

    Equation  t = S / B
    Source    thakur2005, long broadcasts run at wire speed
    Assumes   pieces are small against S, so that the length of the chain plays no part
    Checked   tests/run/weight_sync/test_ways.py; benchmarks/weight_sync.py: measured between shaped namespaces
    """
    return weights_bytes / wire_bytes_per_s


def peer_to_peer_time_s(
    *, weights_bytes: float, num_tensors: int, num_trainers: int, num_generators: int, num_devices: int, tp: int,
    machine: Machine,
) -> float:  # fmt: skip
    """Weight sync by direct writes: each trainer sends its part to every copy of the generator.

    Equation  t = max(S / t, S r / n) / B + (tensors / t) a0,  r = generators / t copies, n trainers
    Source    ASystem's AState, in the Ring-1T report: peer-to-peer weight exchange
    Assumes   all NICs at work at once, no conversion on the way: a bound from below; trainer and generator may share
              the devices
    Checked   tests/costs/test_stage.py: below ASystem's 4 s at 100B and 6 s at 1T by up to a factor of ten
    """
    pulled_s = shard_pull_time_s(
        weights_bytes=weights_bytes, num_trainers=num_trainers, num_generators=num_generators, tp=tp,
        wire_bytes_per_s=_wire_bytes_per_s(machine, num_devices),
    )  # fmt: skip
    return pulled_s + num_tensors / tp * machine.constants.collective_offset.value


def shard_pull_time_s(
    *, weights_bytes: float, num_trainers: int, num_generators: int, tp: int, wire_bytes_per_s: float
) -> float:
    """The bytes of a sync in which every rank of the generator pulls its own part from all trainers.

    Equation  t = max(S / t, S r / n) / B,  r = generators / t copies, n trainers
    Source    ASystem's AState, in the Ring-1T report: peer-to-peer weight exchange
    Assumes   a link B for every rank; the trainers send equal shares; nothing is held twice by a copy
    Checked   tests/run/weight_sync/test_ways.py; benchmarks/weight_sync.py: measured between shaped namespaces
    """
    received, sent = weights_bytes / tp, weights_bytes * num_generators / tp / num_trainers
    return max(received, sent) / wire_bytes_per_s


def file_time_s(
    *, weights_bytes: float, num_copies: float, write_bytes_per_s: float, read_bytes_per_s: float
) -> float:  # fmt: skip
    """Weight sync through a file system: the trainer writes a checkpoint, every copy of the generator reads it.

    Equation  t = S / W + r S / R,  r copies
    Source    OpenRLHF issue 647 and slime's update from disk: weights by way of a checkpoint folder
    Assumes   the job's rates of its storage; nothing is read before all is written
    Checked   tests/costs/test_stage.py: linear in copies
    """
    return weights_bytes / write_bytes_per_s + num_copies * weights_bytes / read_bytes_per_s


def _wire_bytes_per_s(machine: Machine, num_devices: int) -> float:
    """One device's share of the network, or its scale-up link inside one node."""
    if num_devices > machine.gpus_per_node and machine.network_bytes_per_s_per_gpu is not None:
        return min(machine.scale_up_bytes_per_s, machine.network_bytes_per_s_per_gpu)
    return machine.scale_up_bytes_per_s


def rl_interval_s(
    *, time_s: float, machine: Machine, num_unseen: int, is_asynchronous: bool = False, least_s: float = 0.0
) -> tuple[float, float]:
    """The 90 % interval of a predicted RL step.

    Equation  [q05, q95] x t, each quantile to the power a (1 + u/2) for u things that no published step shares, a = 1
              but for asynchronous steps; never below the bound `least_s`
    Source    published steps, each model predicted with constants that the others give (benchmarks/fit_rl.py)
    Assumes   another model differs as these do from each other: quantiles are widened until each model's steps are
              inside those of the others
    Checked   tests/golden/test_rl_table.py: coverage of each model by the others' quantiles
    """
    c = machine.constants
    power = 1.0 + c.unseen_widening.value * num_unseen
    if is_asynchronous:
        power = power * c.rl_asynchronous_power.value
    low_s, high_s = (time_s * end.value**power for end in (c.rl_interval_low, c.rl_interval_high))
    return min(max(low_s, least_s), time_s), high_s


def unseen_rl(*, machine: Machine, precision: str, has_budget: bool = False) -> list[str]:
    """What about a request lies outside the published RL steps."""
    c, accelerator = machine.constants, machine.accelerator.id
    reasons = [] if accelerator in c.rl_seen_accelerators else [f"no published RL step used {accelerator}"]
    if precision not in c.rl_seen_precisions:
        reasons.append(f"no published RL step is in {precision}")
    return [*reasons, "no published RL step has a token budget"] if has_budget else reasons
