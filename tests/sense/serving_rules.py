"""Rules of generation and of reinforcement learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scalewright.planner.answer import Answer, answer
from scalewright.planner.generation import Generation
from scalewright.workload.rl import RlStep
from sense.questions import Asked
from sense.rules import equal, first_of, never_above, rule

JUMP = 2e-3
"""What a rule leaves to the steps of an integration over lengths."""


def request_with(asked: Asked, **parts: Any) -> Answer:
    """The answer to the request with some parts otherwise; None leaves a part out."""
    name = "rl" if asked.kind == "rl" else "generate"
    words = {**asked.words[name], **parts}
    return asked.with_words(**{name: {k: v for k, v in words.items() if v is not None}})


def batch_of(asked: Asked, num: int) -> Answer:
    return asked.with_layout(gbs=num)


def generation_of(asked: Asked) -> Generation:
    stage = asked.question.stage
    assert isinstance(stage, Generation)
    return stage


def rl_of(asked: Asked) -> RlStep:
    stage = asked.question.stage
    assert isinstance(stage, RlStep)
    return stage


# Generation.


@rule("generation")
def more_requests_never_take_less_time(asked: Asked) -> str | None:
    """Twice the requests never take less time, and never more than twice the time."""
    if generation_of(asked).requests_per_s is not None:
        return None
    other = batch_of(asked, 2 * asked.question.layout.gbs)
    return first_of(
        never_above(asked.answer.time_s, other.time_s, "time, and of twice the requests", slack=JUMP),
        never_above(
            other.time_s, 2 * asked.answer.time_s, "time of twice the requests, and twice the time", slack=0.01
        ),
    )


@rule("generation")
def one_request_more_takes_at_most_its_own_time(asked: Asked) -> str | None:
    """One more group of answers takes no less time than before, and no more than the time of that group alone."""
    stage, layout = generation_of(asked), asked.question.layout
    if stage.requests_per_s is not None:
        return None
    each = stage.num_per_prompt
    more, alone = batch_of(asked, layout.gbs + each), batch_of(asked, each)
    return first_of(
        never_above(asked.answer.time_s, more.time_s, "time, and with one group more", slack=JUMP),
        never_above(
            more.time_s, asked.answer.time_s + alone.time_s, "time with one group more, and both times", slack=0.01
        ),
    )


@rule("generation")
def the_batch_grows_without_jumps(asked: Asked) -> str | None:
    """Over batches that grow by an eighth, no step of the time is more than twice what its neighbours explain."""
    stage, layout = generation_of(asked), asked.question.layout
    if stage.requests_per_s is not None or stage.answers is None:
        return None
    each = stage.num_per_prompt * layout.dp
    first = max(layout.gbs // each, 8)
    sizes = [each * round(first * 1.125**n) for n in range(6)]
    times = [batch_of(asked, size).time_s for size in sizes]
    rates = [(b - a) / (m - n) for a, b, n, m in zip(times, times[1:], sizes, sizes[1:], strict=False)]
    for place, rate in enumerate(rates):
        usual = max(rates[max(place - 1, 0) : place] + rates[place + 1 : place + 2])
        if rate < -JUMP * times[0] or (rate - usual) * (sizes[place + 1] - sizes[place]) > 0.05 * times[place]:
            return f"from {sizes[place]} to {sizes[place + 1]} answers: {times[place]:.5g} to {times[place + 1]:.5g} s of {', '.join(f'{t:.5g}' for t in times)}"
    return ""


@rule("generation", "rl")
def longer_prompts_never_take_less_time(asked: Asked) -> str | None:
    """Longer prompts never take less time."""
    prompt = asked.words["rl" if asked.kind == "rl" else "generate"]["prompt"]
    other = request_with(asked, prompt=prompt + asked.chance.choice((1, 16, prompt)))
    if _is_bounded_by_tokens(asked):
        return None
    return never_above(asked.answer.time_s, other.time_s, "time, and with longer prompts", slack=JUMP)


def _is_bounded_by_tokens(asked: Asked) -> bool:
    """A step under a token budget trains as many answers as it finishes."""
    return asked.kind == "rl" and rl_of(asked).token_budget > 0


@rule("generation", "rl")
def longer_answers_never_take_less_time(asked: Asked) -> str | None:
    """Longer answers never take less time."""
    words = asked.words["rl" if asked.kind == "rl" else "generate"]
    response = words["response"]
    if isinstance(response, str) or _is_bounded_by_tokens(asked):
        return None
    more = asked.chance.choice((1, 16, response // 2))
    longest = words.get("longest")
    other = request_with(asked, response=response + more, longest=None if longest is None else longest + more)
    return never_above(asked.answer.time_s, other.time_s, f"time, and with {more} tokens more", slack=JUMP)


@rule("generation")
def lengths_that_spread_are_never_faster(asked: Asked) -> str | None:
    """Answers whose lengths spread are never done sooner than as many of the same mean length."""
    stage = generation_of(asked)
    if stage.answers is None or stage.requests_per_s is not None:
        return None
    even = request_with(asked, response=max(int(stage.answers.mean), 1))
    return never_above(even.time_s, asked.answer.time_s, "time of equal answers, and of spread ones", slack=0.01)


@rule("generation")
def a_longer_tail_is_never_faster_in_generation(asked: Asked) -> str | None:
    """Answers of the same mean with a longer tail are never done sooner."""
    words = asked.words["generate"]
    if isinstance(words["response"], str):
        parts = dict(part.split("=") for part in words["response"].partition(":")[2].split(","))
        mean = generation_of(asked).answer_lengths(asked.machine.constants).mean
        parts["cv"] = str(float(parts["cv"]) * 1.3)
        longer = request_with(asked, response="lognormal:" + ",".join(f"{k}={v}" for k, v in parts.items()))
        if longer.question.stage.answers is None or longer.question.stage.answers.mean < mean * (1 - 1e-6):  # type: ignore[union-attr]
            return None  # the limit cuts more of a wider spread, so its mean is shorter
    elif "longest" in words:
        longer = request_with(asked, longest=2 * words["longest"])
    else:
        longer = request_with(asked, longest=2 * words["response"])
    return never_above(asked.answer.time_s, longer.time_s, "time, and with a longer tail", slack=JUMP)


@rule("generation", "rl")
def more_room_is_never_slower(asked: Asked) -> str | None:
    """Devices with more room for sequences never generate more slowly, nor train a step of RL that fits."""
    if asked.kind == "rl" and not asked.answer.fits:
        return None
    times = asked.chance.choice((1.05, 1.2, 1.5, 2.0, 3.0))
    other = asked.with_machine(memory_bytes=asked.machine.memory_bytes * times)
    return never_above(other.time_s, asked.answer.time_s, f"time with {times} x the memory, and before", slack=JUMP)


@rule("generation")
def a_lower_limit_is_never_faster(asked: Asked) -> str | None:
    """Fewer sequences at once are never done sooner, and no copy runs more than the limit, the room or the batch."""
    one = asked.answer.generation
    most = max(one.num_alive // 2, 1)
    stage = generation_of(asked)
    if stage.requests_per_s is not None:
        return None
    lower = asked.with_stage(max_running=most)
    return first_of(
        never_above(asked.answer.time_s, lower.time_s, f"time, and with at most {most} at once", slack=JUMP),
        never_above(lower.generation.num_alive, most, "sequences at once, and the limit"),
        never_above(one.num_alive, max(one.num_fit, 1), "sequences at once, and those that fit"),
        never_above(one.num_running, one.num_alive, "sequences in an iteration, and at once", slack=1e-3),
    )


@rule("generation")
def more_copies_are_never_slower(asked: Asked) -> str | None:
    """Twice the copies never take longer for the same requests, and are never more than twice as fast."""
    layout, stage = asked.question.layout, generation_of(asked)
    if stage.requests_per_s is not None or layout.ep > 1 or layout.gbs % (2 * layout.dp * stage.num_per_prompt):
        return None
    other = asked.with_layout(dp=2 * layout.dp)
    return first_of(
        never_above(other.time_s, asked.answer.time_s, "time of twice the copies, and before", slack=JUMP),
        never_above(asked.answer.time_s, 2 * other.time_s, "time, and twice that of twice the copies", slack=0.01),
    )


@rule("generation")
def k_devices_generate_at_most_k_times_as_fast(asked: Asked) -> str | None:
    """Where memory holds all requests at once, a copy on twice the devices is never more than twice as fast."""
    layout, stage = asked.question.layout, generation_of(asked)
    if stage.requests_per_s is not None or layout.ep > 1 or asked.question.spec.transformer.heads % (2 * layout.tp):
        return None
    other = asked.with_layout(tp=2 * layout.tp)
    if asked.answer.generation.num_alive < layout.gbs / layout.dp or not asked.answer.fits:
        return None
    return never_above(asked.answer.time_s, 2 * other.time_s, "time, and twice that of twice the devices", slack=0.01)


@rule("generation")
def the_first_token_comes_before_the_last(asked: Asked) -> str | None:
    """The first token comes before the last, and a request among others waits no less than one alone."""
    one, (low, high) = asked.answer.generation, asked.answer.generation.ttft_interval_s
    loaded = one.loaded_ttft_s
    return first_of(
        never_above(one.ttft_s, asked.answer.time_s, "first token, and last"),
        never_above(one.itl_s, asked.answer.time_s, "time between tokens, and all"),
        "" if low <= one.ttft_s <= high else f"first token {one.ttft_s:.4g} s outside {low:.4g} to {high:.4g} s",
        "" if loaded is None else never_above(one.ttft_s, loaded, "first token alone, and among others"),
    )


@rule("generation")
def a_batch_takes_at_least_its_longest_answer(asked: Asked) -> str | None:
    """A batch takes at least as long as one of its answers that is written alone."""
    stage, layout = generation_of(asked), asked.question.layout
    if stage.num_per_prompt == layout.gbs:
        return None
    alone = answer(
        replace(
            asked.question, layout=replace(layout, gbs=stage.num_per_prompt), stage=replace(stage, requests_per_s=None)
        )
    )
    return never_above(alone.time_s, asked.answer.time_s, "one group alone, and all", slack=0.01)


@rule("generation")
def more_arrivals_never_wait_less(asked: Asked) -> str | None:
    """More requests per second never wait less, and load the copies in proportion."""
    rate = generation_of(asked).requests_per_s
    if rate is None:
        return None
    other = asked.with_stage(requests_per_s=1.2 * rate).generation
    one = asked.answer.generation
    assert one.load_frac is not None
    assert other.load_frac is not None
    assert one.loaded_ttft_s is not None
    assert other.loaded_ttft_s is not None
    return first_of(
        never_above(one.loaded_ttft_s, other.loaded_ttft_s, "wait, and of more arrivals", slack=JUMP),
        equal(1.2 * one.load_frac, other.load_frac, "1.2 x load, and load of 1.2 x the arrivals", slack=1e-6),
        never_above(one.itl_s, other.itl_s, "time between tokens, and of more arrivals", slack=JUMP),
    )


@rule("generation")
def arrivals_take_at_least_their_time(asked: Asked) -> str | None:
    """Requests that arrive one after the other are not done before the last has arrived."""
    stage, layout = generation_of(asked), asked.question.layout
    if stage.requests_per_s is None:
        return None
    last_s = (layout.gbs / stage.num_per_prompt - 1) / stage.requests_per_s
    waiting = asked.with_stage(requests_per_s=None)
    return first_of(
        never_above(last_s, asked.answer.time_s, "arrival of the last, and its end", slack=0.05),
        never_above(waiting.time_s, asked.answer.time_s, "time of a batch, and of as many arrivals", slack=0.05),
    )


@rule("generation")
def a_narrower_cache_never_has_less_room(asked: Asked) -> str | None:
    """Narrower keys and values, or narrower weights, never leave room for fewer sequences."""
    wide = request_with(asked, cache=None, weights=None)
    part = asked.chance.choice(({"cache": "fp8"}, {"weights": "int8"}, {"weights": "int4"}))
    narrow = request_with(asked, **{"cache": None, "weights": None, **part})
    if asked.question.recipe.weight_bytes < 2 or asked.question.recipe.is_narrow:
        return None
    return never_above(wide.generation.num_fit, narrow.generation.num_fit, f"sequences that fit, and with {part}")


@rule("generation")
def a_narrower_cache_is_never_slower(asked: Asked) -> str | None:
    """Keys and values of 8 bit never make generation slower."""
    wide, narrow = (request_with(asked, cache=cache) for cache in (None, "fp8"))
    return never_above(narrow.time_s, wide.time_s, "time with an 8-bit cache, and a wide one", slack=JUMP)


@rule("generation")
def answers_share_their_prompt(asked: Asked) -> str | None:
    """Several answers to each prompt are never slower than as many prompts with one answer each."""
    stage = generation_of(asked)
    if stage.requests_per_s is not None or stage.num_per_prompt == 1:
        return None
    alone = asked.with_stage(num_per_prompt=1)
    return never_above(asked.answer.time_s, alone.time_s, "time of shared prompts, and of single ones", slack=JUMP)


@rule("generation")
def decoding_reads_the_weights_every_step(asked: Asked) -> str | None:
    """No batch is done before its longest answer has read the weights it needs once for each token."""
    question, stage = asked.question, generation_of(asked)
    if stage.requests_per_s is not None or question.spec.transformer.moe is not None or stage.weights:
        return None
    layout, parts = question.layout, question.spec.params_by_part()
    read = sum(size for name, size in parts.items() if name not in ("embedding", "positions", "mtp"))
    least = read * question.recipe.product_bytes / layout.tp / layout.pp * stage.response_len
    return never_above(
        least / question.machine.accelerator.memory_bandwidth.value, asked.answer.time_s, "weights read, and time"
    )


# Reinforcement learning.


@rule("rl")
def what_is_hidden_is_part_of_the_whole(asked: Asked) -> str | None:
    """The parts of an RL step that are not hidden sum to the step, and no part hides more than itself."""
    parts = asked.answer.rl.parts
    for part in parts:
        if not 0.0 <= part.hidden_s <= part.whole_s * (1 + 1e-9):
            return f"{part.name}: {part.hidden_s:.4g} s of {part.whole_s:.4g} s are hidden"
    visible = sum(part.whole_s - part.hidden_s for part in parts)
    longest = max(part.whole_s for part in parts if part.name not in ("rollout", "reward"))
    return first_of(
        equal(visible, asked.answer.time_s, "visible parts, and the step", slack=1e-6),
        never_above(longest, asked.answer.time_s, "the longest part of training, and the step"),
    )


@rule("rl")
def a_longer_tail_is_never_faster_in_rl(asked: Asked) -> str | None:
    """A step whose longest answer may be longer at the same mean is never faster."""
    rl = asked.words["rl"]
    if _is_bounded_by_tokens(asked):
        return None
    longest = rl.get("longest", rl["response"])
    other = request_with(asked, longest=int(longest * asked.chance.choice((1.1, 1.5, 2.0))))
    return never_above(asked.answer.time_s, other.time_s, "time, and with a longer tail", slack=JUMP)


@rule("rl")
def lengths_that_spread_more_are_never_faster_in_rl(asked: Asked) -> str | None:
    """A step whose answers spread more at the same mean and longest is never faster."""
    rl = asked.words["rl"]
    if _is_bounded_by_tokens(asked) or rl.get("longest", 0) <= rl["response"]:
        return None
    cv = asked.chance.choice((0.2, 0.4, 0.6))
    less, more = (request_with(asked, cv=value) for value in (cv, cv * 1.25))
    if abs(_mean(less) - _mean(more)) > 1e-3 * _mean(less):
        return None
    return never_above(less.time_s, more.time_s, f"time with cv={cv}, and {1.25 * cv:g}", slack=2e-3)


def _mean(prediction: Answer) -> float:
    stage = prediction.rl.rollout.question.stage
    assert isinstance(stage, Generation)
    return stage.answer_lengths(prediction.question.machine.constants).mean


@rule("rl")
def more_generators_are_never_slower(asked: Asked) -> str | None:
    """Twice the devices for generation, beside the same trainer, never make the rollout slower."""
    rl = asked.words["rl"]
    if "gpus" not in rl or _is_bounded_by_tokens(asked):
        return None
    other = request_with(asked, gpus=2 * rl["gpus"])
    parts = [one.rl.part("rollout").whole_s for one in (other, asked.answer)]
    return never_above(*parts, "rollout on twice the devices, and before", slack=JUMP)


@rule("rl")
def being_ahead_is_never_slower(asked: Asked) -> str | None:
    """On the same devices, generating ahead of the trainer is never slower than taking turns."""
    if "gpus" not in asked.words["rl"] or _is_bounded_by_tokens(asked):
        return None
    free = {"lag": None, "stale": None, "chunks": None, "staleness": None}
    turns, one, two, mixed = (
        request_with(asked, **{**free, **more}).time_s for more in ({}, {"lag": 1}, {"lag": 2}, {"stale": 0.5})
    )
    return first_of(
        never_above(one, turns, "one step ahead, and in turns", slack=JUMP),
        never_above(two, one, "two steps ahead, and one", slack=JUMP),
        never_above(mixed, one, "with mixed weights, and one step ahead", slack=JUMP),
    )


@rule("rl")
def more_samples_never_take_less_time(asked: Asked) -> str | None:
    """Twice the prompts never take less time, and never more than two steps."""
    rl = asked.words["rl"]
    if _is_bounded_by_tokens(asked):
        return None
    other = request_with(asked, prompts=2 * rl["prompts"])
    return first_of(
        never_above(asked.answer.time_s, other.time_s, "time, and of twice the prompts", slack=JUMP),
        never_above(other.time_s, 2 * asked.answer.time_s, "time of twice the prompts, and twice the time", slack=0.02),
    )


@rule("rl")
def less_work_never_takes_longer(asked: Asked) -> str | None:
    """A step that fits never takes longer without reference model, without old scores, or with packed sequences."""
    if not asked.answer.fits:
        return None
    part, plain = asked.chance.choice((({"ref": 0}, {"ref": 1}), ({"old": 0}, {"old": 1}), ({"pack": 1}, {"pack": 0})))
    if _is_bounded_by_tokens(asked):
        return None
    less, more = (request_with(asked, **one).rl for one in (part, plain))
    names = ("update", "old_log_probs", "reference_log_probs")
    times = [sum(p.whole_s for p in one.parts if p.name in names) for one in (less, more)]
    return never_above(*times, f"training with {part}, and with {plain}", slack=0.02 if "pack" in part else JUMP)


@rule("rl")
def a_reward_adds_at_most_its_time(asked: Asked) -> str | None:
    """A reward that takes longer makes the step longer by at most that time, and never shorter."""
    if _is_bounded_by_tokens(asked):
        return None
    none, long = (request_with(asked, reward=seconds) for seconds in (0, 7.5))
    return first_of(
        never_above(none.time_s, long.time_s, "step without, and with a reward", slack=JUMP),
        never_above(long.time_s, none.time_s + 7.5, "step with a reward, and without plus its time"),
    )


@rule("rl")
def weights_sent_by_peers_are_never_slower(asked: Asked) -> str | None:
    """With as many trainers as generators, sending weights between peers is never slower than by broadcast."""
    if asked.question.layout.num_gpus < rl_of(asked).rollout_gpus:
        return None
    peers, all_at_once = (
        request_with(asked, sync=name).rl.part("weight_sync").whole_s for name in ("peers", "broadcast")
    )
    return never_above(peers, all_at_once, "sync by peers, and by broadcast")


@rule("rl")
def state_that_stays_takes_memory(asked: Asked) -> str | None:
    """State that stays on the devices leaves no more memory for generation, and saves moving it."""
    stays, moves = (request_with(asked, keep=keep) for keep in (1, 0))
    return first_of(
        never_above(
            stays.rl.rollout.generation.num_fit, moves.rl.rollout.generation.num_fit, "room beside state, and without"
        ),
        never_above(
            stays.rl.part("state_move").whole_s,
            moves.rl.part("state_move").whole_s,
            "moves with state kept, and without",
        ),
    )


@rule("rl")
def a_smaller_share_of_memory_is_never_faster(asked: Asked) -> str | None:
    """A generator that fills less of its devices is never faster."""
    small, large = (request_with(asked, memory=share).rl.part("rollout").whole_s for share in (0.5, 0.8))
    if _is_bounded_by_tokens(asked):
        return None
    return never_above(large, small, "rollout in 80 % of memory, and in 50 %", slack=JUMP)


@rule("rl")
def the_rollout_is_the_generation_that_it_names(asked: Asked) -> str | None:
    """The rollout of a step takes the time of the same generation asked alone, and the engine's work around it."""
    step, rl = asked.answer.rl, rl_of(asked)
    if rl.token_budget or rl.lag > 1 or rl.staleness_frac or rl.is_split:
        return None
    rollout = step.part("rollout").whole
    framework = float(rollout.part("framework").total)
    alone = answer(step.rollout.question)
    return equal(
        alone.time_s + framework, float(rollout.total), "generation with its framework, and rollout", slack=1e-6
    )


@rule("rl")
def tokens_of_a_budget_add_up(asked: Asked) -> str | None:
    """Under a token budget, what is decoded is trained, wasted or carried on, and none exceeds what is decoded."""
    budget, rl = asked.answer.rl.budget, rl_of(asked)
    if budget is None:
        return None
    one = budget.simulated
    return first_of(
        never_above(
            one.num_trained + one.num_wasted, one.num_decoded, "trained and wasted tokens, and decoded ones", slack=0.05
        ),
        never_above(rl.token_budget, one.num_decoded, "budget, and decoded tokens", slack=0.01)
        if one.num_wasted
        else "",
        equal(sum(one.tokens_by_age.values()), one.num_trained, "tokens by age, and trained ones", slack=1e-3),
    )


@rule("rl")
def a_gain_is_measured_per_trained_token(asked: Asked) -> str | None:
    """The gain of a budget is trained tokens per second over those of the same step without it."""
    gain = asked.answer.rl.step_gain
    if gain is None:
        return None
    plain = request_with(asked, budget=None, retention=None)
    return equal(gain, asked.answer.rate_per_s / plain.rate_per_s, "gain, and the ratio of rates", slack=1e-6)


@rule("rl")
def a_step_scales_out_no_better_than_even(asked: Asked) -> str | None:
    """Twice the devices with twice the prompts never make a step faster."""
    layout, rl = asked.question.layout, asked.words["rl"]
    if _is_bounded_by_tokens(asked):
        return None
    knobs = {**asked.words["layout"], "dp": 2 * layout.dp, "gbs": 2 * layout.gbs}
    more = {**rl, "prompts": 2 * rl["prompts"], **({"gpus": 2 * rl["gpus"]} if "gpus" in rl else {})}
    other = asked.with_words(layout=knobs, rl=more)
    parts = [
        sum(p.whole_s for p in one.rl.parts if p.name != "state_move") - _optimizer(one)
        for one in (asked.answer, other)
    ]
    return never_above(*parts, "parts of a step, and on twice the devices with twice the prompts", slack=0.01)


def _optimizer(prediction: Answer) -> float:
    update = prediction.rl.part("update").whole
    return float(update.part("optimizer").total) + float(update.part("offload_transfer").total)


@rule("rl")
def fewer_chances_waste_more(asked: Asked) -> str | None:
    """An answer that may be cut more often before it is given up never wastes more tokens."""
    if not _is_bounded_by_tokens(asked):
        return None
    stage = rl_of(asked)
    few, many = (asked.with_stage(retention=n).rl.budget for n in (stage.retention, 4 * stage.retention))
    assert few is not None
    assert many is not None
    shares = [one.simulated.num_wasted / one.simulated.num_decoded for one in (many, few)]
    return never_above(shares[0], shares[1] + 0.01, "waste of more chances, and of fewer")


@rule("rl")
def narrower_generators_never_have_less_room(asked: Asked) -> str | None:
    """Generators whose weights are 8 bit wide never hold fewer sequences."""
    if "fp8" not in asked.machine.accelerator.peak or asked.question.recipe.is_narrow:
        return None
    narrow = request_with(asked, precision="fp8")
    return never_above(
        asked.answer.rl.rollout.generation.num_fit, narrow.rl.rollout.generation.num_fit, "room, and with 8 bit"
    )
