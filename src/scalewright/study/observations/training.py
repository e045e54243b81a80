"""Predictions behind the observations on training: SFT and the steps of reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.observations import Observation, ObservedSetting
from scalewright.costs.breakdown import Breakdown
from scalewright.here.place import place_of
from scalewright.planner.answer import Answer, answer
from scalewright.planner.limits import EXCHANGE_TERMS, terms_s
from scalewright.planner.question import ask
from scalewright.records.observations import ObservedEvidence
from scalewright.records.study_report import Number
from scalewright.study.observations.evidence import (
    evidence,
    figure_words,
    interval_words,
    ratio_interval,
    share_interval,
    terms_words,
    together,
    verdict_if,
    verdict_of,
)
from scalewright.workload.layout import Layout
from scalewright.workload.rl import RlStep

COMPUTING = (
    "matmul", "attention", "recompute", "head_and_loss", "elementwise", "old_log_probs", "reference_log_probs",
    "prompt_weights", "prompt_experts", "prompt_attention", "prompt_activations", "prompt_head",
)  # fmt: skip
"""Terms of an RL step in which a device computes: updates, scoring, prompts."""
EXCHANGING = (
    *EXCHANGE_TERMS, "data_parallel", "context_parallel", "expert_parallel", "pipeline_transfer", "weight_sync"
)  # fmt: skip
"""Terms in which devices exchange data."""


def transport_speedup(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """Throughput over the fast transport relative to the slow one, the largest over all settings.

    On a quiet network: what other jobs take, they take from both.
    """
    figure = observed.figure
    assert figure is not None
    ratios = []
    for fast, slow in _both_transports(catalog, system, observed.setting):
        ratio = ratio_interval(slow.time_s, slow.interval_s, fast.time_s, fast.interval_s)
        layout, seq = fast.question.layout, fast.question.spec.transformer.seq
        where = f"{fast.question.num_gpus} GPUs, micro-batch {layout.mbs}, {seq} tokens"
        ratios.append((ratio.value, ratio, where))
    least, (_, most, where) = min(ratios)[0], max(ratios, key=lambda item: item[0])
    text = f"{least:.2f} to {interval_words(most, 'times')}, the most with {where}"
    return evidence(text, verdict_of(most, figure), most)


def communication_share(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """The share of a step that waits for exchanges, over the fast and over the slow transport."""
    setting, limit = observed.setting, observed.setting.limit_frac
    shares = [
        (_share(fast, EXCHANGING).value, _share(slow, EXCHANGING).value)
        for fast, slow in _both_transports(catalog, system, setting)
    ]
    decided = [fast < limit < slow for fast, slow in shares]
    fast_span, slow_span = (_span(min(column), max(column)) for column in zip(*shares, strict=True))
    text = (
        f"communication is {fast_span} of the step over {setting.transports[0]}, {slow_span} over "
        f"{setting.transports[1]}; the backend decides in {sum(decided)} of {len(decided)} settings"
    )
    return evidence(text, together([verdict_if(each) for each in decided]))


def _both_transports(catalog: Catalog, system: str, setting: ObservedSetting) -> Iterator[tuple[Answer, Answer]]:
    """A step over the fast and over the slow transport, in every setting."""
    for nodes in setting.nodes:
        for micro in setting.micro_batches:
            for seq in setting.seqs:
                fast, slow = (
                    _sft(catalog, system, setting, nodes=nodes, micro=micro, seq=seq, transport=name)
                    for name in setting.transports
                )
                yield fast, slow


def weak_scaling(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """Work per device and second at each scale, and whether the published rate is among them."""
    setting, figure = observed.setting, observed.figure
    assert figure is not None
    steps, slow_steps = (
        [
            _sft(catalog, system, setting, nodes=n, micro=setting.micro_batches[0], seq=setting.seqs[0], transport=name)
            for n in setting.nodes
        ]
        for name in setting.transports
    )
    rates, slow = (list(map(_rate, each)) for each in (steps, slow_steps))
    least, most = min(rate.value for rate in rates), max(rate.value for rate in rates)
    is_flat = 1.0 - least / most <= setting.limit_frac
    at_level = [verdict_of(rate, figure) for rate in rates]
    verdict = verdict_if(is_flat and at_level.count("holds") == len(rates))
    flat = "flat" if is_flat else "not flat"
    text = (
        f"{flat}: {figure_words(most, 'FLOP/s')} on the fewest nodes, {100 * (1 - least / most):.0f} % less at the "
        f"most; {figure_words(min(rate.value for rate in slow), 'FLOP/s')} over {setting.transports[1]}. The level is "
        f"{most / figure.value:.0f} times the published one"
    )
    return evidence(text, verdict, rates[0], why=_why_so_slow(steps[0], rates[0].value, figure.value))


def _seconds(value: float) -> str:
    return units.format(value, units.SECONDS)


def _why_so_slow(step: Answer, rate: float, published: float) -> str:
    """What a step at the published rate would have to hold beside our terms."""
    terms, published_s = terms_s(step.time), step.time_s * rate / published
    exchange_s = sum(terms.get(name, 0.0) for name in EXCHANGING)
    rest = (published_s - step.time_s) / published_s
    return (
        f"at the published rate this step takes {_seconds(published_s)} instead of {_seconds(step.time_s)}, of which "
        f"{terms_words(terms, COMPUTING)} are arithmetic and {_seconds(exchange_s)} exposed exchange: "
        f"{100 * rest:.0f} % of the published step is in no term of the prediction, so it measured another model, "
        "batch or count of FLOP than the artifact's, or time outside the step"
    )


def not_compute(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """The share of an RL step in which devices do not compute, from the smallest scale to the largest."""
    figure = observed.figure
    assert figure is not None
    steps = list(_rl_steps(catalog, system, observed.setting))
    shares = [_share(step, COMPUTING, is_rest=True) for step in steps]
    text = f"{_scales(steps, shares)}; work is {100 * _arithmetic_frac(steps[0]):.0f} % of the peak on the fewest"
    verdict = together([verdict_of(share, figure) for share in shares])
    return evidence(text, verdict, shares[-1], why=_why_it_computes(steps[-1], figure.value))


def _why_it_computes(step: Answer, published: float) -> str:
    """The terms that compute, and how small they would have to be."""
    terms = terms_s(step.time)
    computing_s = sum(terms.get(name, 0.0) for name in COMPUTING)
    left_s = (step.time_s - computing_s) * (1.0 - published) / published
    others = [name for name in terms if name not in COMPUTING]
    return (
        f"on {step.question.num_gpus} GPUs {terms_words(terms, COMPUTING)} compute for {_seconds(computing_s)} of "
        f"{_seconds(step.time_s)}, and beside {terms_words(terms, others)} over {100 * published:.0f} % leaves them "
        f"{_seconds(left_s)}: shorter answers, smaller micro-batches or a larger scale than the artifact's would do "
        "that, and the document names none of them"
    )


def exchange_share(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """The share of an RL step in which devices exchange data."""
    figure = observed.figure
    assert figure is not None
    steps = list(_rl_steps(catalog, system, observed.setting))
    shares = [_share(step, EXCHANGING) for step in steps]
    terms = terms_s(steps[-1].time)
    largest = max(EXCHANGING, key=lambda name: terms.get(name, 0.0))
    text = f"{_scales(steps, shares)}, most of it {largest.replace('_', ' ')}"
    verdict = together([verdict_of(share, figure) for share in shares])
    return evidence(text, verdict, shares[-1], why=_why_so_little_exchange(steps[-1], figure.value))


def _why_so_little_exchange(step: Answer, published: float) -> str:
    """The exchange that the published share needs, beside the terms that leave it so little."""
    terms = terms_s(step.time)
    exchange_s = sum(terms.get(name, 0.0) for name in EXCHANGING)
    needed_s = published / (1.0 - published) * (step.time_s - exchange_s)
    update_s = _update_exchange_s(_overlapping_nothing(step))
    others = [name for name in terms if name not in EXCHANGING]
    return (
        f"{_seconds(exchange_s)} of exchange ({terms_words(terms, EXCHANGING)}) stand beside "
        f"{terms_words(terms, others)}, so that over {100 * published:.0f} % needs {_seconds(needed_s)}; even if no "
        f"update hid any exchange, data parallel would take {_seconds(update_s)}, and the document counts time in "
        "AllReduce, which in a profile includes waiting for the slowest rank"
    )


def _overlapping_nothing(step: Answer) -> Answer:
    """The same step on a stack that hides no exchange of gradients."""
    question = step.question
    return answer(replace(question, stack=question.stack.model_copy(update={"overlaps_gradients": False})))


def hidden_share(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """How much of the exchange of an update is hidden: against the same update on a stack that overlaps nothing."""
    setting = observed.setting
    hidden, sizes = [], []
    for step in _rl_steps(catalog, system, setting):
        plain_s = _update_exchange_s(_overlapping_nothing(step))
        hidden.append(1.0 - _update_exchange_s(step) / plain_s)
        sizes.append(step.question.num_gpus)
    parts = ", ".join(f"{100 * share:.0f} % on {size}" for share, size in zip(hidden, sizes, strict=True))
    text = f"hidden of the exchange: {parts} GPUs"
    verdict = together([verdict_if(share < setting.limit_frac) for share in hidden])
    return evidence(text, verdict, why=_why_hidden(step, plain_s))


def _why_hidden(step: Answer, plain_s: float) -> str:
    """The compute that the exchange hides behind."""
    terms = terms_s(step.rl.part("update").whole)
    return (
        f"the updates of a step on {step.question.num_gpus} GPUs exchange for {_seconds(plain_s)}, and the stack "
        f"(FSDP, which gathers the next layer while one computes) runs it beside {terms_words(terms, COMPUTING)}, so "
        f"that data parallel adds {_seconds(_update_exchange_s(step))}; the document names neither software nor scale, "
        "and without that prefetch all of the exchange is exposed"
    )


def _sft(
    catalog: Catalog, system: str, setting: ObservedSetting, *, nodes: int, micro: int, seq: int, transport: str
) -> Answer:
    """A step of full training with everything sharded and all activations computed again; no other jobs."""
    place = place_of(catalog, system, partition=setting.partitions[0], transport=transport)
    devices = nodes * place.machine.gpus_per_node
    layout = Layout(dp=devices, mbs=micro, gbs=devices * micro * setting.accumulate, zero=3, recompute="full")
    return answer(
        ask(
            catalog, model=setting.model, system=place, layout=layout, precision="bf16", stack="eager", seq=seq,
            network="quiet",
        )
    )  # fmt: skip


def rl_step_of(setting: ObservedSetting) -> RlStep:
    """The GRPO step of a setting; every answer has the longest length, since the mean is not published."""
    return RlStep(
        num_prompts=setting.prompts, num_responses=setting.answers, prompt_len=setting.prompt,
        response_len=setting.response, rollout_tp=setting.tp, rollout_memory_frac=setting.memory_frac,
    )  # fmt: skip


def rl_prediction(catalog: Catalog, system: str, setting: ObservedSetting, *, nodes: int) -> Answer:
    """A step with the largest micro-batch up to the setting's that fits; with one sequence where none does."""
    place = place_of(catalog, system, partition=setting.partitions[0])
    devices, mini = nodes * place.machine.gpus_per_node, setting.mini_prompts * setting.answers
    each = mini // devices
    sizes = [size for size in range(setting.micro_batches[0], 0, -1) if each % size == 0]
    for micro in sizes:
        layout = Layout(dp=devices, mbs=micro, gbs=mini, zero=3, recompute="full")
        question = ask(
            catalog, model=setting.model, system=place, layout=layout, precision="bf16", stack="eager",
            rl=rl_step_of(setting),
        )  # fmt: skip
        prediction = answer(question)
        if prediction.fits:
            break
    return prediction


def _rl_steps(catalog: Catalog, system: str, setting: ObservedSetting) -> Iterator[Answer]:
    for nodes in setting.nodes:
        yield rl_prediction(catalog, system, setting, nodes=nodes)


def _share(prediction: Answer, names: tuple[str, ...], *, is_rest: bool = False) -> Number:
    terms = terms_s(prediction.time)
    part_s = sum(terms.get(name, 0.0) for name in names)
    if is_rest:
        part_s = prediction.time_s - part_s
    return share_interval(part_s, prediction.time_s, prediction.interval_s)


def _rate(prediction: Answer) -> Number:
    """Work of the model per device and second."""
    work = prediction.transformer.model_flop / prediction.question.num_gpus
    low_s, high_s = prediction.interval_s
    return Number(value=work / prediction.time_s, low=work / high_s, high=work / low_s)


def _arithmetic_frac(step: Answer) -> float:
    """Executed work of the updates over what the devices could do in the whole step."""
    figures, question = step.rl, step.question
    work = float(figures.update.hardware_flop) * figures.num_updates
    peak = question.machine.peak_flop_per_s(question.recipe.matmul) * question.num_gpus
    return work / (peak * step.time_s)


def _update_exchange_s(step: Answer) -> float:
    update: Breakdown = step.rl.part("update").whole
    return float(update.part("data_parallel").total)


def _scales(steps: list[Answer], shares: list[Number]) -> str:
    return ", ".join(
        f"{interval_words(share, 'share')} on {step.question.num_gpus} GPUs"
        for step, share in zip(steps, shares, strict=True)
    )


def _span(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f} %"
