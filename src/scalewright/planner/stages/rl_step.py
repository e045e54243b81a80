"""Predict one step of reinforcement learning: rollout, reward, scoring, update, weight sync, and what hides what."""

from __future__ import annotations

from dataclasses import replace

from scalewright.costs import generation, room, stage
from scalewright.costs.breakdown import Breakdown, seconds_term
from scalewright.costs.footprint import device_bytes, needed_bytes, reserved_bytes, step_memory
from scalewright.costs.setting import Setting
from scalewright.costs.step import StepCost
from scalewright.planner.answer import Answer, answer
from scalewright.planner.context import context_notes, longest_context
from scalewright.planner.energy_use import Footprint, footprint
from scalewright.planner.figures import RlFigures, RlPart
from scalewright.planner.generation import Generation
from scalewright.planner.question import Question
from scalewright.planner.stages.generation_batch import hardware_flop, load_of, wider_words
from scalewright.planner.stages.rl_budget import BudgetFigures, budget_figures
from scalewright.planner.stages.rl_memory import (
    held_memory,
    is_released,
    moved_bytes,
    packed_memory_setting,
    packings_with_room,
    rl_host_memory,
    update_memory,
    with_released,
)
from scalewright.planner.stages.rl_times import MeanUpdate, mean_update, sync_s, training_parts
from scalewright.records.types import WARNING
from scalewright.workload.rl import RlStep
from scalewright.workload.training import TEXT


def predict_rl(question: Question, rl: RlStep) -> Answer:
    """One GRPO step, trainer and generator in turns on the same devices or side by side on devices of their own."""
    predicted = _predict(question, rl)
    longest = longest_context(rl)
    # The rollout's question has the length of its answers in place of the length that the model was trained with.
    of_rollout = context_notes(question.spec.with_seq(rl.prompt_len + rl.response_len), longest)
    warnings = [text for text in predicted.warnings if text not in of_rollout]
    predicted = replace(predicted, warnings=(*warnings, *context_notes(question.spec, longest)))
    if not rl.token_budget:
        return predicted
    waits = replace(rl, token_budget=0)
    all_done = _predict(replace(question, stage=waits, facility=None), waits)
    figures = replace(predicted.rl, step_gain=predicted.rate_per_s / all_done.rate_per_s)
    assert figures.budget is not None
    bias = figures.budget.bias_words
    return replace(predicted, figures=figures, warnings=(*predicted.warnings, *([f"{WARNING}{bias}"] if bias else ())))


def _predict(question: Question, rl: RlStep) -> Answer:
    question = replace(question, spec=question.spec.with_seq(rl.longest_sequence))
    setting = replace(question.setting, feed=TEXT)  # samples are generated, not read
    machine, (rl, pack_tokens) = question.machine, _fastest_packing(question, rl, setting)
    released = is_released(setting, rl)
    trained = step_memory(packed_memory_setting(setting, rl, pack_tokens))
    held = held_memory(setting, trained, reference=rl.has_reference)
    if rl.is_split or released:
        held = with_released(held)
    rollout = answer(question.rollout(taken_bytes=float(held.total)))
    scored = mean_update(setting, rl, pack_tokens=pack_tokens)
    update = scored.cost(question.spec)
    num_updates = rl.num_sequences // int(question.layout.gbs)
    written, budget = _rollout_time(question, rl, rollout)
    parts = _parts(question, rl, scored, rollout, update, written=written, budget=budget, released=released)
    time = Breakdown(name="rl_step", unit="s", parts=tuple(part.visible for part in parts))
    memory_update = update_memory(setting, trained, reference=rl.has_reference and not released)
    memory_rollout = replace(rollout.memory, name="rollout", parts=(*rollout.memory.parts, held))
    host = rl_host_memory(setting, trained, rl, released=released)
    fits_host = machine.host_memory_bytes is None or float(host.total) <= machine.host_memory_bytes
    updating_bytes = float(needed_bytes(setting, memory_update))
    unseen = stage.unseen_rl(machine=machine, precision=question.recipe.name, has_budget=rl.token_budget > 0)
    num_tokens = _num_tokens(rl, budget)
    bound_s = _bound_s(rl, rollout, update, num_updates, budget)
    return Answer(
        question=question,
        time=time,
        memory=memory_update,
        reserved_bytes=max(rollout.reserved_bytes + float(held.total), float(reserved_bytes(setting, memory_update))),
        device_bytes=max(float(memory_rollout.total), float(device_bytes(setting, memory_update))),
        needed_bytes=max(float(memory_rollout.total), updating_bytes),
        host_memory=host,
        interval_s=stage.rl_interval_s(
            time_s=float(time.total),
            machine=machine,
            num_unseen=len(unseen),
            is_asynchronous=rl.staleness_frac > 0.0,
            least_s=bound_s,
        ),
        bound_s=bound_s,
        fits=rollout.fits and bool(room.holds(machine, updating_bytes)) and fits_host,
        fits_host=fits_host,
        num_units=num_tokens,
        footprint=_footprint(question, rollout, update, time, num_tokens=num_tokens, budget=budget),
        warnings=tuple(_warnings(question, rollout, unseen, fits_host=fits_host)),
        figures=RlFigures(
            rollout=rollout,
            update=update,
            num_updates=num_updates,
            memory_rollout=memory_rollout,
            memory_update=memory_update,
            parts=parts,
            budget=budget,
        ),
    )


def _fastest_packing(question: Question, rl: RlStep, setting: Setting) -> tuple[RlStep, float]:
    """The step with the filling of micro-batches that trains fastest, so that more room is never slower.

    Padded ones are faster where packing leaves a pipeline too few micro-batches.
    """
    packings = packings_with_room(setting, rl)

    def training_s(packing: tuple[RlStep, float]) -> float:
        own, tokens = packing
        scored = mean_update(setting, own, pack_tokens=tokens)
        num_updates = own.num_sequences // int(setting.layout.gbs)
        parts = training_parts(scored, own, scored.cost(question.spec), num_updates=num_updates)
        return sum(float(part.total) for part in parts)

    return packings[0] if len(packings) == 1 else min(packings, key=training_s)


def _num_tokens(rl: RlStep, budget: BudgetFigures | None) -> int:
    """Prompts and answers that a step trains on."""
    if budget is None:
        return rl.num_sequences * (rl.prompt_len + rl.response_len)
    return round(budget.simulated.num_answers * rl.prompt_len + budget.simulated.num_trained)


def _parts(
    question: Question, rl: RlStep, scored: MeanUpdate, rollout: Answer, update: StepCost, *, written: Breakdown,
    budget: BudgetFigures | None, released: bool,
) -> tuple[RlPart, ...]:  # fmt: skip
    """Every part of the step with what of it is hidden, in the order in which they run."""
    machine = question.machine
    reward = seconds_term("reward", rl.reward_s, "", stated_s=rl.reward_s)
    training = training_parts(scored, rl, update, num_updates=rl.num_sequences // int(question.layout.gbs))
    if budget is not None:
        training = tuple(generation.scaled(term, budget.trained_frac) for term in training)
    formula = f"stage.{SYNC_FORMULAS[rl.sync]}"
    sync = seconds_term("weight_sync", sync_s(question, rl, rollout), formula, sync=rl.sync)
    generating_s = float(written.total) + rl.reward_s
    waited_s = generating_s
    if rl.is_split:
        is_ahead = rl.lag > 0 or rl.staleness_frac > 0.0
        beside_s = sum(float(term.total) for term in training) + (float(sync.total) if is_ahead else 0.0)
        waited_s = stage.waited_rollout_s(
            rollout_s=generating_s, training_s=beside_s, num_chunks=rl.num_chunks, is_ahead=is_ahead
        )
    hidden_frac = 1.0 - waited_s / generating_s
    moved_s = stage.state_move_s(state_bytes=moved_bytes(update.memory), machine=machine) if released else 0.0
    controller = seconds_term("controller", machine.constants.rl_controller_time.value, "stage.framework_step_s")
    return (
        RlPart(whole=written, hidden_frac=hidden_frac, behind="training"),
        RlPart(whole=reward, hidden_frac=hidden_frac, behind="training"),
        *(RlPart(whole=term) for term in training),
        RlPart(whole=seconds_term("state_move", moved_s, "stage.state_move_s")),
        RlPart(whole=sync),
        RlPart(whole=controller),
    )


SYNC_FORMULAS = {
    "gather_broadcast": "gather_broadcast_time_s",
    "peer_to_peer": "peer_to_peer_time_s",
    "file": "file_time_s",
}


def _rollout_time(question: Question, rl: RlStep, rollout: Answer) -> tuple[Breakdown, BudgetFigures | None]:
    """The rollout of one batch in the steady state of its lag, or of one iteration under a token budget."""
    figures = rollout.generation
    each_s = stage.framework_step_s(num_gpus=rl.rollout_tp * rl.rollout_pp, machine=question.machine)
    framework = seconds_term(
        "framework", figures.num_steps * each_s, "stage.framework_step_s", num_steps=figures.num_steps
    )
    time = replace(rollout.time, name="rollout", parts=(*rollout.time.parts, framework))
    if rl.token_budget:
        budget = budget_figures(rl, rollout, all_done=time, step_s=each_s)
        return budget.time, budget
    ratio = 1.0
    if rl.staleness_frac > 0.0:
        generated = rollout.question.stage
        assert isinstance(generated, Generation)
        load, _ = load_of(rollout.question, generated, figures.serving)
        ratio = stage.stale_rollout_frac(figures.serving, load, staleness_frac=rl.staleness_frac)
    elif rl.lag > 1:
        together = answer(question.rollout(num_batches=rl.lag))
        ratio = min(together.time_s / rl.lag / rollout.time_s, 1.0)
    return generation.scaled(time, ratio), None


def _bound_s(
    rl: RlStep, rollout: Answer, update: StepCost, num_updates: int, budget: BudgetFigures | None
) -> float:  # fmt: skip
    """What no step can beat: rollout and updates in turns; the updates alone where both run side by side."""
    updating_s = float(update.bound_s) * num_updates * (1.0 if budget is None else budget.trained_frac)
    if rl.is_split:
        return updating_s
    if budget is None:
        return rollout.bound_s + updating_s
    return updating_s + generation.least_time_s(
        serving=rollout.generation.serving, num_active_params=rollout.question.spec.num_active_params,
        num_tokens=budget.simulated.num_decoded, num_steps=budget.simulated.plan.num_all_steps,
        num_copies=int(rollout.question.layout.dp),
    )  # fmt: skip


def _footprint(
    question: Question, rollout: Answer, update: StepCost, time: Breakdown, *, num_tokens: int,
    budget: BudgetFigures | None,
) -> Footprint | None:  # fmt: skip
    """Energy, money and carbon of a step; per token of prompts and answers."""
    if question.facility is None:
        return None
    generated, rl = rollout.question.stage, question.stage
    assert isinstance(generated, Generation)
    assert isinstance(rl, RlStep)
    num_updates = rl.num_sequences // int(question.layout.gbs) * (1.0 if budget is None else budget.trained_frac)
    decoded_frac = 1.0 if budget is None else budget.decoded_frac
    total = float(time.total)
    scored_flop = 2.0 * 2.0 * question.spec.num_active_params * num_tokens  # by the old weights and the reference
    flop = (
        hardware_flop(rollout.question, generated) * decoded_frac
        + scored_flop
        + float(update.hardware_flop) * num_updates
    )
    return footprint(
        machine=question.machine, recipe=question.recipe, facility=question.facility, time_s=total,
        num_gpus=question.num_gpus, num_tokens=num_tokens, hardware_flop=flop,
        memory_frac=min(rollout.generation.memory_frac * rollout.time_s / total, 1.0),
    )  # fmt: skip


def _warnings(question: Question, rollout: Answer, unseen: list[str], *, fits_host: bool) -> list[str]:
    mode, machine = question.mode, question.machine
    of_rollout = wider_words(rollout.generation.serving)  # the step's interval is its own
    warnings = [f"mode {mode}: {mode.title}", *(w for w in rollout.warnings if w not in of_rollout)]
    if mode.is_offload and machine.host_memory_bytes_per_s is None:
        warnings.append(f"{machine.name}: memory rate of the hosts unknown, the optimizer there is not timed")
    if not fits_host:
        warnings.append("a node's host memory is too small for what is moved off its devices")
    warnings += [f"{reason}: the interval is wider" for reason in unseen]
    return list(dict.fromkeys([*warnings, *(question.facility.notes if question.facility else ())]))
