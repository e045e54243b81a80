"""Predict one step of reinforcement learning: rollout, reward, scoring, update, weight sync."""

from __future__ import annotations

from dataclasses import replace

from scalewright.costs import compute, generation, hostmem, room, stage
from scalewright.costs.breakdown import Breakdown, seconds_term
from scalewright.costs.footprint import device_bytes, needed_bytes, reserved_bytes
from scalewright.costs.layer import layer_times
from scalewright.costs.setting import Setting
from scalewright.costs.stage import Sync
from scalewright.costs.step import StepCost, step_cost
from scalewright.planner.answer import Answer, answer
from scalewright.planner.energy_use import Footprint, footprint
from scalewright.planner.figures import RlFigures
from scalewright.planner.question import Generation, Question, RlStep
from scalewright.planner.stages.generation_batch import hardware_flop
from scalewright.planner.stages.rl_memory import held_memory, update_memory
from scalewright.workload.training import TEXT


def predict_rl(question: Question, rl: RlStep) -> Answer:
    """One on-policy GRPO step: trainer and generator take turns on the same devices."""
    question = replace(question, spec=question.spec.with_seq(rl.prompt_len + rl.response_len))
    machine, setting = question.machine, replace(question.setting, feed=TEXT)  # samples are generated, not read
    update = step_cost(spec=question.spec, setting=setting)
    held = held_memory(setting, update.memory, reference=rl.has_reference)
    rollout = answer(question.rollout(taken_bytes=float(held.total)))
    num_updates = rl.num_sequences // int(question.layout.gbs)
    time = _step_time(question, rl, setting, rollout, generation.scaled(update.time, num_updates))
    memory_update = update_memory(setting, update.memory, reference=rl.has_reference)
    memory_rollout = replace(rollout.memory, name="rollout", parts=(*rollout.memory.parts, held))
    host = hostmem.training_host_memory(setting, num_weight_copies=2 if rl.has_reference else 1)
    fits_host = machine.host_memory_bytes is None or float(host.total) <= machine.host_memory_bytes
    updating_bytes = float(needed_bytes(setting, memory_update))
    unseen = stage.unseen_rl(machine=machine, precision=question.recipe.name)
    num_tokens = rl.num_sequences * (rl.prompt_len + rl.response_len)
    return Answer(
        question=question,
        time=time,
        memory=memory_update,
        reserved_bytes=max(rollout.reserved_bytes + float(held.total), float(reserved_bytes(setting, memory_update))),
        device_bytes=max(float(memory_rollout.total), float(device_bytes(setting, memory_update))),
        needed_bytes=max(float(memory_rollout.total), updating_bytes),
        host_memory=host,
        interval_s=stage.rl_interval_s(time_s=float(time.total), machine=machine, num_unseen=len(unseen)),
        bound_s=rollout.bound_s + float(update.bound_s) * num_updates,
        fits=rollout.fits and bool(room.holds(machine, updating_bytes)) and fits_host,
        fits_host=fits_host,
        num_units=num_tokens,
        footprint=_footprint(question, rollout, update, time, num_tokens=num_tokens, num_updates=num_updates),
        warnings=tuple(_warnings(question, rollout, unseen, fits_host=fits_host)),
        figures=RlFigures(
            rollout=rollout,
            update=update,
            num_updates=num_updates,
            memory_rollout=memory_rollout,
            memory_update=memory_update,
        ),
    )


def _step_time(question: Question, rl: RlStep, setting: Setting, rollout: Answer, updates: Breakdown) -> Breakdown:
    scored_layout = replace(setting.layout, gbs=rl.num_sequences, recompute="none")
    scoring_s = _scoring_s(replace(setting, layout=scored_layout))
    parts = (
        replace(rollout.time, name="rollout"),
        seconds_term("reward", rl.reward_s, "", stated_s=rl.reward_s),
        seconds_term("old_log_probs", scoring_s, "stage.scoring_time_s"),
        seconds_term("reference_log_probs", scoring_s if rl.has_reference else 0.0, "stage.scoring_time_s"),
        replace(updates, name="update"),
        seconds_term("weight_sync", _sync_s(question, rollout, rl.sync), f"stage.{rl.sync}_time_s", sync=rl.sync),
    )
    return Breakdown(name="rl_step", unit="s", parts=parts)


def _scoring_s(setting: Setting) -> float:
    layer, layout = layer_times(setting), setting.layout
    return stage.scoring_time_s(
        layer_forward_s=float(layer.passes.forward_s),
        head_forward_s=float(compute.head_times(setting).forward_s),
        num_layers=float(setting.num_layers),
        num_micro_batches=float(setting.num_micro_batches),
        pp=int(layout.pp),
    )


def _sync_s(question: Question, rollout: Answer, sync: Sync) -> float:
    serving, num_gpus = rollout.generation.serving, question.num_gpus
    weights, tensors = question.spec.num_params * serving.weight_bytes, stage.num_synced_tensors(serving.shape)
    if sync == "peer_to_peer":
        return stage.peer_to_peer_time_s(
            weights_bytes=weights, num_tensors=tensors, num_trainers=num_gpus, num_generators=num_gpus,
            tp=serving.tp, machine=serving.machine,
        )  # fmt: skip
    return stage.gather_broadcast_time_s(
        weights_bytes=weights, num_tensors=tensors, num_devices=num_gpus, machine=serving.machine
    )


def _footprint(
    question: Question, rollout: Answer, update: StepCost, time: Breakdown, *, num_tokens: int, num_updates: int
) -> Footprint | None:
    """Energy, money and carbon of a step; per token of prompts and answers."""
    if question.facility is None:
        return None
    generated = rollout.question.stage
    assert isinstance(generated, Generation)
    total = float(time.total)
    scored_flop = 2.0 * 2.0 * question.spec.num_active_params * num_tokens  # by the old weights and the reference
    flop = hardware_flop(rollout.question, generated) + scored_flop + float(update.hardware_flop) * num_updates
    return footprint(
        machine=question.machine, recipe=question.recipe, facility=question.facility, time_s=total,
        num_gpus=question.num_gpus, num_tokens=num_tokens, hardware_flop=flop,
        memory_frac=rollout.generation.memory_frac * rollout.time_s / total,
    )  # fmt: skip


def _warnings(question: Question, rollout: Answer, unseen: list[str], *, fits_host: bool) -> list[str]:
    mode, machine = question.mode, question.machine
    warnings = [f"mode {mode}: {mode.title}", *rollout.warnings]
    if mode.is_offload:
        warnings.append("moving the trainer's weights to the host for the rollout takes time that is not counted")
        if machine.host_memory_bytes_per_s is None:
            warnings.append(f"{machine.name}: memory rate of the hosts unknown, the optimizer there is not timed")
    if not fits_host:
        warnings.append("a node's host memory is too small for what is moved off its devices")
    warnings += [f"{reason}: the interval is wider" for reason in unseen]
    return list(dict.fromkeys([*warnings, *(question.facility.notes if question.facility else ())]))
