"""Times of an RL step beside its rollout: scoring and updates on packed sequences, and the way of new weights."""

from __future__ import annotations

from dataclasses import replace

from scalewright.catalog.types import Constants
from scalewright.costs import compute, generation, stage, storage
from scalewright.costs.breakdown import Breakdown, seconds_term
from scalewright.costs.layer import layer_times
from scalewright.costs.setting import Setting
from scalewright.costs.step import StepCost
from scalewright.errors import ConfigError
from scalewright.planner.answer import Answer
from scalewright.planner.question import Question
from scalewright.workload.lengths import LengthDistribution
from scalewright.workload.packing import Packed, packed, padded
from scalewright.workload.rl import RlStep


def answers_of(constants: Constants, rl: RlStep) -> LengthDistribution:
    """How long the answers are, with the usual spread where the step gives none."""
    return rl.answers(least_cv=constants.answer_spread.value, limit_frac=constants.answers_at_limit.value)


def update_setting(setting: Setting, rl: RlStep) -> Setting:
    """One update as the training models take it: micro-batches as full as the lengths of the answers allow."""
    layout = setting.layout
    batches = packed_batches(setting, rl)
    multiple = 2 * int(layout.cp)
    seq = -(-batches.seq // multiple) * multiple
    together, dp = batches.num_together, int(layout.dp)
    return replace(
        setting,
        shape=setting.shape.model_copy(update={"seq": seq}),
        layout=replace(layout, mbs=together, gbs=together * dp * batches.num_micro_batches),
    )


def packed_batches(setting: Setting, rl: RlStep) -> Packed:
    layout = setting.layout
    dp, mbs, num_updates = int(layout.dp), int(layout.mbs), rl.num_sequences // int(layout.gbs)
    if not rl.packs:
        return padded(
            longest_len=rl.longest_sequence, num_sequences=rl.num_sequences, num_updates=num_updates, num_ranks=dp,
            micro_batch=mbs,
        )  # fmt: skip
    return packed(
        answers_of(setting.constants, rl), prompt_len=rl.prompt_len,
        num_sequences=rl.num_sequences, num_updates=num_updates, num_ranks=dp,
        pack_tokens=rl.pack_tokens or mbs * rl.longest_sequence,
    )  # fmt: skip


def training_parts(setting: Setting, rl: RlStep, update: StepCost, *, num_updates: int) -> tuple[Breakdown, ...]:
    """Scoring by the old weights and the reference, and all updates of a step."""
    factor, num_batches = setting.constants.rl_training_factor.value, float(setting.num_micro_batches)
    scoring = factor * scoring_s(setting, num_updates=num_updates)
    looped, passes = 0.0, 4.0 if setting.layout.recompute == "full" else 3.0
    if rl.loops_experts:
        scoring += _experts_s(setting, num_micro_batches=num_updates * num_batches, num_passes=1.0)
        looped = num_updates * _experts_s(setting, num_micro_batches=num_batches, num_passes=passes)
    updates = generation.scaled(update.time, factor * num_updates)
    if looped > 0.0:
        loop = seconds_term("expert_loop", looped, "stage.expert_loop_s", num_passes=passes)
        updates = replace(updates, parts=(*updates.parts, loop))
    return (
        seconds_term("old_log_probs", scoring if rl.scores_old else 0.0, "stage.scoring_time_s"),
        seconds_term("reference_log_probs", scoring if rl.has_reference else 0.0, "stage.scoring_time_s"),
        replace(updates, name="update"),
    )


def _experts_s(setting: Setting, *, num_micro_batches: float, num_passes: float) -> float:
    moe = setting.shape.moe
    if moe is None:
        return 0.0
    return stage.expert_loop_s(
        num_experts=moe.num_experts / int(setting.layout.ep), num_layers=float(setting.num_layers) * setting.moe_frac,
        num_micro_batches=num_micro_batches, num_passes=num_passes, pp=int(setting.layout.pp), machine=setting.machine,
    )  # fmt: skip


def scoring_s(setting: Setting, *, num_updates: int, scored_frac: float = 1.0) -> float:
    """Forward passes over the sequences of so many updates; the head scores the share `scored_frac` of the tokens."""
    layer, layout = layer_times(replace(setting, layout=replace(setting.layout, recompute="none"))), setting.layout
    device_s, host = float(layer.passes.forward_s), compute.host_times(setting)
    costs = setting.stack_costs
    waited_s = compute.host_wait_s(device_s=device_s, host_s=host.forward_s, blend=costs.host_blend)
    return stage.scoring_time_s(
        layer_forward_s=device_s + float(waited_s),
        head_forward_s=float(compute.head_times(setting).forward_s) * scored_frac,
        num_layers=float(setting.num_layers),
        num_micro_batches=float(setting.num_micro_batches) * num_updates,
        pp=int(layout.pp),
    )


def sync_s(question: Question, rl: RlStep, rollout: Answer) -> float:
    """New weights from the trainer to every copy of the generator."""
    serving, num_trainers = rollout.generation.serving, int(question.layout.num_gpus)
    num_generators = rl.rollout_gpus or num_trainers
    weights, tensors = question.spec.num_params * serving.weight_bytes, stage.num_synced_tensors(serving.shape)
    if rl.sync == "peer_to_peer":
        return stage.peer_to_peer_time_s(
            weights_bytes=weights, num_tensors=tensors, num_trainers=num_trainers, num_generators=num_generators,
            tp=serving.tp, machine=serving.machine,
        )  # fmt: skip
    if rl.sync == "file":
        return _file_s(question, weights, num_copies=num_generators / (rl.rollout_tp * rl.rollout_pp))
    return stage.gather_broadcast_time_s(
        weights_bytes=weights, num_tensors=tensors, num_devices=question.num_gpus, machine=serving.machine
    )


def _file_s(question: Question, weights_bytes: float, *, num_copies: float) -> float:
    entry, nodes = question.feed.storage, float(question.num_nodes)
    if entry is None:
        raise ConfigError("sync=file needs a storage that weights go through: name one with --storage")
    c = question.machine.constants
    rates = [
        float(storage.job_bytes_per_s(storage=entry, direction=way, num_nodes=nodes, constants=c))
        for way in ("write", "read")
    ]
    return stage.file_time_s(
        weights_bytes=weights_bytes, num_copies=num_copies, write_bytes_per_s=rates[0], read_bytes_per_s=rates[1]
    )
