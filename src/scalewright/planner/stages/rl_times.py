"""Times of an RL step beside its rollout: scoring and updates on packed sequences, and the way of new weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scalewright.catalog.types import Constants
from scalewright.costs import compute, generation, stage, storage
from scalewright.costs.breakdown import Breakdown, seconds_term
from scalewright.costs.layer import layer_times
from scalewright.costs.setting import Setting
from scalewright.costs.step import StepCost, step_cost
from scalewright.errors import ConfigError
from scalewright.planner.answer import Answer
from scalewright.planner.question import Question
from scalewright.workload.lengths import LengthDistribution
from scalewright.workload.model import ModelSpec
from scalewright.workload.packing import Packed, packed, padded
from scalewright.workload.rl import RlStep


def answers_of(constants: Constants, rl: RlStep) -> LengthDistribution:
    """How long the answers are, with the usual spread where the step gives none."""
    return rl.answers(least_cv=constants.answer_spread.value, limit_frac=constants.answers_at_limit.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanUpdate:
    """An update of the mean: whole micro-batches of whole sequences around it, and how much each of these weighs.

    Time is linear in the micro-batches, and per token linear in the inverse of their size, so that nothing jumps
    between whole numbers.
    """

    settings: tuple[Setting, ...]
    """One update each, as the training models take it."""
    weights: tuple[float, ...]
    """They sum to 1; one below zero reaches beyond the smallest update."""
    batches: Packed
    num_sequences: float
    """Of one update, over all ranks."""

    @property
    def setting(self) -> Setting:
        return self.settings[0]

    def mean(self, of: Callable[[Setting], float]) -> float:
        return sum(weight * of(one) for one, weight in zip(self.settings, self.weights, strict=True))

    def cost(self, spec: ModelSpec) -> StepCost:
        """Of the update, with attention as far as sequences reach that are longer than the mean."""
        own = spec.with_seq(self.setting.shape.seq)
        costs = [step_cost(spec=own, setting=one) for one in self.settings]
        first, longer = costs[0], self.batches.attended_frac - 1.0
        again = 1.0 if self.setting.layout.recompute == "full" else 0.0
        parts = {"attention_forward": 1.0, "attention_backward": 1.0}

        def joined(terms: Sequence[Breakdown]) -> Breakdown:
            own_s = sum(weight * float(term.total) for term, weight in zip(terms, self.weights, strict=True))
            if not terms[0].parts:
                return replace(terms[0], value=own_s * (1.0 + longer * parts.get(terms[0].name, 0.0)), inputs={})
            return replace(terms[0], parts=tuple(joined(each) for each in zip(*(t.parts for t in terms), strict=True)))

        time = joined([one.time for one in costs])
        repeated_s = again * longer / (1.0 + longer) * float(time.part("attention_forward").total)
        time = with_added(time, "recompute", repeated_s)
        per_sequence = self.num_sequences / float(self.setting.layout.gbs)
        return replace(
            first, time=time, bound_s=float(first.bound_s) * per_sequence,
            model_flop=float(first.model_flop) * per_sequence, hardware_flop=float(first.hardware_flop) * per_sequence,
        )  # fmt: skip


def with_added(term: Breakdown, name: str, more: float) -> Breakdown:
    """The breakdown with one of its leaves longer."""
    if term.name == name and term.value is not None:
        return replace(term, value=float(term.value) + more)
    return replace(term, parts=tuple(with_added(part, name, more) for part in term.parts))


def mean_update(setting: Setting, rl: RlStep, *, pack_tokens: float) -> MeanUpdate:
    """One update as the training models take it: micro-batches as full as the lengths of the answers allow."""
    layout, batches = setting.layout, packed_batches(setting, rl, pack_tokens=pack_tokens)
    multiple, dp = 2 * int(layout.cp), int(layout.dp)
    shape = setting.shape.model_copy(update={"seq": -(-round(batches.seq) // multiple) * multiple})
    settings, weights = [], []
    for together, share in _around_inverse(batches.num_together):
        num = batches.num_sequences / together
        least = max(math.floor(num), 1)
        for count, weight in ((least, least + 1.0 - num), (least + 1, num - least)):
            if share * weight:
                own = replace(layout, mbs=together, gbs=together * dp * count)
                settings.append(replace(setting, shape=shape, layout=own))
                weights.append(share * weight)
    num_sequences = rl.num_sequences / (rl.num_sequences // int(layout.gbs))
    return MeanUpdate(
        settings=tuple(settings), weights=tuple(weights), batches=batches, num_sequences=num_sequences
    )  # fmt: skip


def _around_inverse(number: float) -> tuple[tuple[int, float], ...]:
    """The whole numbers around one, weighing so that the mean of their inverses is its inverse."""
    low = math.floor(number)
    if number == low:
        return ((low, 1.0),)
    share = (1.0 / low - 1.0 / number) / (1.0 / low - 1.0 / (low + 1))
    return (low, 1.0 - share), (low + 1, share)


def packed_batches(setting: Setting, rl: RlStep, *, pack_tokens: float) -> Packed:
    layout = setting.layout
    dp, mbs, num_updates = int(layout.dp), int(layout.mbs), rl.num_sequences // int(layout.gbs)
    if not rl.packs:
        return padded(
            longest_len=rl.longest_sequence, num_sequences=rl.num_sequences, num_updates=num_updates, num_ranks=dp,
            micro_batch=mbs,
        )  # fmt: skip
    return packed(
        answers_of(setting.constants, rl), prompt_len=rl.prompt_len,
        num_sequences=rl.num_sequences, num_updates=num_updates, num_ranks=dp, pack_tokens=pack_tokens,
    )  # fmt: skip


def training_parts(trained: MeanUpdate, rl: RlStep, update: StepCost, *, num_updates: int) -> tuple[Breakdown, ...]:
    """Scoring by the old weights and the reference, and all updates of a step."""
    setting, attended = trained.setting, trained.batches.attended_frac
    factor, num_batches = setting.constants.rl_training_factor.value, trained.batches.num_micro_batches
    scoring = factor * trained.mean(lambda one: scoring_s(one, num_updates=num_updates, attended_frac=attended))
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


def scoring_s(
    setting: Setting, *, num_updates: int, scored_frac: float = 1.0, attended_frac: float = 1.0
) -> float:  # fmt: skip
    """Forward passes over the sequences of so many updates; the head scores the share `scored_frac` of the tokens, and
    attention reaches `attended_frac` of a sequence's length."""
    layer, layout = layer_times(replace(setting, layout=replace(setting.layout, recompute="none"))), setting.layout
    device_s, host = float(layer.passes.forward_s), compute.host_times(setting)
    device_s += (attended_frac - 1.0) * float(layer.attention.forward_s)
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
            num_devices=question.num_gpus, tp=serving.tp, machine=serving.machine,
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
