"""Predictions behind the observations on generation, and on the teacher of a distillation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.library import Catalog
from scalewright.catalog.observations import Observation, ObservedSetting
from scalewright.costs.generation import STORED_BYTES, decode_operations
from scalewright.costs.machine import Machine
from scalewright.costs.setting import Setting
from scalewright.costs.shards import shards_on
from scalewright.here.place import Place, place_of
from scalewright.planner.answer import Answer, answer
from scalewright.planner.generation import USUAL_ENGINE, GenerateRequest
from scalewright.planner.limits import EXCHANGE_TERMS, IDLE_TERMS, terms_s
from scalewright.planner.question import ask, resolve_recipe
from scalewright.records.observations import ObservedEvidence
from scalewright.records.study_report import Number
from scalewright.study.observations.evidence import (
    evidence,
    interval_words,
    share_interval,
    together,
    verdict_if,
    verdict_of,
)
from scalewright.study.observations.minimum import SERVE, fewest, least_gpus, partition_words
from scalewright.workload.layout import Layout
from scalewright.workload.lengths import fixed
from scalewright.workload.named import resolve_model


def generation_utilisation(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """The share of the time in which devices read or compute."""
    figure = observed.figure
    assert figure is not None
    texts, numbers = [], []
    for place, batch in _batches(catalog, system, observed.setting):
        idle = _term_share(batch, IDLE_TERMS)
        assert idle.low is not None
        assert idle.high is not None
        number = Number(value=1.0 - idle.value, low=1.0 - idle.high, high=1.0 - idle.low)
        numbers.append(number)
        texts.append(f"{interval_words(number, 'share')} with {_memory(catalog, place)}")
    return evidence("; ".join(texts), together([verdict_of(number, figure) for number in numbers]), numbers[0])


def generation_exchange(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """The share of the time in which devices exchange data."""
    texts, shares = [], []
    for place, batch in _batches(catalog, system, observed.setting):
        share = _term_share(batch, EXCHANGE_TERMS)
        shares.append(share.value)
        texts.append(f"{interval_words(share, 'share')} of the time with {_memory(catalog, place)}")
    verdict = together([verdict_if(share >= observed.setting.limit_frac) for share in shares])
    return evidence("; ".join(texts), verdict)


def decode_intensity(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """FLOP for each byte of the decode steps against the ratio of the device's peak rates."""
    texts, verdicts = [], []
    for place, batch in _batches(catalog, system, observed.setting):
        figures = batch.generation
        operations = decode_operations(
            figures.serving, num_sequences=figures.num_running, num_context=figures.mean_context, num_steps=1.0
        )
        work = sum(operation.flop * operation.num_per_step for operation in operations)
        moved = sum(operation.traffic_bytes * operation.num_per_step for operation in operations)
        machine = place.machine
        ridge = machine.peak_flop_per_s(figures.serving.products) / machine.accelerator.memory_bandwidth.value
        is_below = work / moved < ridge
        verdicts.append(verdict_if(is_below))
        texts.append(
            f"{work / moved:.0f} FLOP per byte with {figures.num_running:.0f} sequences, "
            f"{'below' if is_below else 'above'} the {ridge:.0f} of {_memory(catalog, place)}"
        )
    return evidence("; ".join(texts), together(verdicts))


def pipeline_gap(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """How much less the pipeline rank with the least work has to do than the one with the most.

    Equation  1 - min_r w_r / max_r w_r,  w_r the weights of pipeline rank r without the input embedding
    Source    the definition; layers are split as evenly as can be, as vLLM does
    Assumes   decoding reads every weight of a rank once a step: enough sequences to touch all experts
    Checked   tests/study/test_observations.py: the gap of a model whose layers divide is that of its head
    """
    setting, figure = observed.setting, observed.figure
    assert figure is not None
    machines = [place_of(catalog, system, partition=partition).machine for partition in setting.partitions]
    machine = max(machines, key=lambda each: each.memory_bytes)
    gaps = []
    for model, pp in product(setting.models, setting.pipelines):
        weights = pipeline_weights(catalog, machine, model, tp=setting.tp, pp=pp)
        if weights.max() * STORED_BYTES["bf16"] < machine.memory_bytes:
            gaps.append((float(1.0 - weights.min() / weights.max()), model, pp))
    most = max(gaps)[0]
    texts = [
        f"{model} {', '.join(f'{100 * gap:.0f} % on {pp}' for gap, name, pp in gaps if name == model)} pipeline ranks"
        for model in setting.models
    ]
    return evidence("; ".join(texts), verdict_if(most >= figure.value), Number(value=most))


def pipeline_weights(catalog: Catalog, machine: Machine, model: str, *, tp: int, pp: int) -> NDArray[np.float64]:
    """Parameters that a device of each pipeline rank reads in a decode step."""
    shape = resolve_model(catalog, model).transformer
    setting = Setting(
        shape=shape, machine=machine, layout=Layout(tp=tp, pp=pp, gbs=1), recipe=resolve_recipe("bf16", machine),
        stack=catalog.stack("eager"),
    )  # fmt: skip
    weights = np.array([float(shards_on(setting, rank).num_params) for rank in range(pp)])
    weights[0] -= shape.vocab * shape.hidden / tp  # one row of the embedding is read for each sequence, not all
    return weights


def cache_room(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """Sequences that the fewest devices have room for, against what the engine runs at once."""
    setting, texts, verdicts = observed.setting, [], []
    at_once = catalog.engine(USUAL_ENGINE).max_sequences.value
    for partition in setting.partitions:
        place = place_of(catalog, system, partition=partition)
        least = fewest(
            catalog,
            place.machine,
            model=setting.models[0],
            stage="generate",
            mode=SERVE,
            seq=setting.prompt + setting.response,
        )
        if least is None:
            continue
        batch = _generated(catalog, place, setting, model=setting.models[0], tp=least.tp)
        num_fit = batch.generation.num_fit
        verdicts.append(verdict_if(num_fit < at_once))
        texts.append(f"{num_fit} sequences on {least.num_gpus} of {_memory(catalog, place)}")
    return evidence(f"room for {', '.join(texts)}; vLLM runs {at_once:.0f} at once", together(verdicts))


def teacher_share(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """GPU time of the teacher's answers against that of training a student on them, and the teacher's minimum."""
    setting = observed.setting
    least = least_gpus(catalog, system, observed)
    teacher, *students = setting.models
    shares, texts = [], []
    for partition in setting.partitions:
        place = place_of(catalog, system, partition=partition)
        served = fewest(catalog, place.machine, model=teacher, stage="generate", mode=SERVE, seq=setting.seqs[0])
        if served is None:
            continue
        written = _generated(catalog, place, setting, model=teacher, tp=served.tp)
        written_s = written.time_s * served.num_gpus
        trained = [_trained_s(catalog, place, setting, student) for student in students]
        share = min(written_s / (written_s + each) for each in trained)
        shares.append(share)
        texts.append(f"{100 * share:.0f} % with {_memory(catalog, place)}")
    is_most = together([verdict_if(share > setting.limit_frac) for share in shares])
    text = f"the teacher takes at least {', '.join(texts)} of the GPU time; {least.text}"
    verdict = together([is_most, least.verdict])
    return evidence(text, verdict)


def _trained_s(catalog: Catalog, place: Place, setting: ObservedSetting, student: str) -> float:
    """GPU seconds of one pass of full training over a batch of answers."""
    least = fewest(catalog, place.machine, model=student, stage="sft", mode="full", seq=setting.seqs[0])
    devices = 1 if least is None else least.num_gpus
    layout = Layout(dp=devices, mbs=1, gbs=setting.batch, zero=3 if devices > 1 else 0, recompute="full")
    step = answer(
        ask(catalog, model=student, system=place, layout=layout, precision="bf16", stack="eager", seq=setting.seqs[0])
    )
    return step.time_s * devices


def _batches(catalog: Catalog, system: str, setting: ObservedSetting) -> Iterator[tuple[Place, Answer]]:
    for partition in setting.partitions:
        place = place_of(catalog, system, partition=partition)
        yield place, _generated(catalog, place, setting, model=setting.model, tp=setting.tp)


def _generated(catalog: Catalog, place: Place, setting: ObservedSetting, *, model: str, tp: int) -> Answer:
    request = GenerateRequest(prompt=fixed(setting.prompt), response=fixed(setting.response))
    return answer(
        ask(
            catalog, model=model, system=place, layout=Layout(tp=tp, gbs=setting.batch), precision="bf16",
            stack="eager", generate=request,
        )
    )  # fmt: skip


def _term_share(batch: Answer, names: tuple[str, ...]) -> Number:
    terms = terms_s(batch.time)
    return share_interval(sum(terms.get(name, 0.0) for name in names), batch.time_s, batch.interval_s)


def _memory(catalog: Catalog, place: Place) -> str:
    return partition_words(catalog, place.system, place.machine.name.partition("/")[2])
