"""The fewest devices of the stages, for each partition and mode, and what host memory has to do with them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import cast

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.observations import Observation, ObservationSet
from scalewright.costs.machine import Machine
from scalewright.errors import ConfigError
from scalewright.here.place import place_of
from scalewright.planner.question import resolve_recipe
from scalewright.planner.stages.minimum_gpus import MinimumGpus, StageName, minimum_gpus
from scalewright.records.observations import MinimumRow, ObservedEvidence
from scalewright.records.study_report import Number
from scalewright.study.observations.evidence import SAYS_NOTHING, evidence, together, verdict_if
from scalewright.workload.named import resolve_model
from scalewright.workload.training import ModeName

STAGES: dict[str, StageName] = {"sft": "sft", "rl": "rl", "generation": "generate", "distillation": "sft"}
SERVE = "serve"
"""Mode of a model that is not trained."""
MODE_TITLES = {
    "full": "full (Adam)",
    "lora": "LoRA",
    "offload": "offload (state on hosts)",
    SERVE: "served, 16 bit",
}


def fewest(
    catalog: Catalog, machine: Machine, *, model: str, stage: StageName, mode: str, seq: int
) -> MinimumGpus | None:
    """The fewest devices in a mode; None: it fits nowhere."""
    try:
        return minimum_gpus(
            spec=resolve_model(catalog, model), machine=machine, stack=catalog.stack("eager"),
            recipe=resolve_recipe("bf16", machine), stage_name="generate" if mode == SERVE else stage, seq=seq,
            mode="full" if mode == SERVE else cast("ModeName", mode),
        )  # fmt: skip
    except ConfigError:
        return None


def minimum_rows(catalog: Catalog, observations: ObservationSet) -> list[MinimumRow]:
    """One row for each stage, model and mode that the observations name a minimum of."""
    rows = []
    for observed in observations.observations:
        setting, figure = observed.setting, observed.figure
        if figure is None or figure.unit != "GPUs":
            continue
        for model in _models(observed):
            for mode in setting.modes:
                has_figure = mode == setting.published_mode
                rows.append(
                    MinimumRow(
                        stage=observed.stage, model=model, mode=MODE_TITLES[mode],
                        num_gpus=_by_partition(catalog, observations.system, observed, model=model, mode=mode),
                        published=round(figure.value) if has_figure else None,
                        published_partition=setting.published_partition if has_figure else "",
                    )
                )  # fmt: skip
    return rows


def _models(observed: Observation) -> tuple[str, ...]:
    """Of distillation's first observation the teacher alone."""
    return observed.setting.models[:1] if observed.check == "teacher_share" else observed.setting.models


def _by_partition(
    catalog: Catalog, system: str, observed: Observation, *, model: str, mode: str
) -> dict[str, int | None]:
    setting, counts = observed.setting, {}
    for partition in setting.partitions:
        machine = place_of(catalog, system, partition=partition).machine
        least = fewest(catalog, machine, model=model, stage=STAGES[observed.stage], mode=mode, seq=setting.seqs[0])
        counts[partition] = None if least is None else least.num_gpus
    return counts


def least_gpus(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """The fewest devices for each partition beside the published number, in the mode that is named.

    The verdict is that of the partition that the publication names. Where it names none, all partitions must agree.
    """
    setting, figure = observed.setting, observed.figure
    assert figure is not None
    published = round(figure.value)
    counts = {
        model: _by_partition(catalog, system, observed, model=model, mode=setting.published_mode)
        for model in _models(observed)
    }
    words = "; ".join(
        f"{_named(model, counts)}{', '.join(_count(catalog, system, part, num) for part, num in by_part.items())}"
        for model, by_part in counts.items()
    )
    named = setting.published_partition
    held = [num for by_part in counts.values() for part, num in by_part.items() if not named or part == named]
    mode = MODE_TITLES[setting.published_mode]
    verdict = together([verdict_if(num == published) for num in held])
    why = _why_fewer(catalog, system, observed, published) if verdict == "does not hold" and named else ""
    return evidence(f"{words}; mode {mode}", verdict, _single(counts, named), why=why)


def _why_fewer(catalog: Catalog, system: str, observed: Observation, published: int) -> str:
    """What fills a device on our fewest, and what half of them lack."""
    setting = observed.setting
    machine = place_of(catalog, system, partition=setting.published_partition).machine
    least = fewest(
        catalog, machine, model=setting.models[0], stage=STAGES[observed.stage], mode=setting.published_mode,
        seq=setting.seqs[0],
    )  # fmt: skip
    if least is None:
        return f"no number of devices of {machine.name} holds it"
    parts = sorted(least.memory.parts, key=lambda part: -float(part.total))[:3]
    terms = ", ".join(f"{part.name.replace('_', ' ')} {units.format(float(part.total), units.BYTES)}" for part in parts)
    room = units.format(machine.memory_bytes, units.BYTES)
    return (
        f"{least.num_gpus} devices hold {terms} of their {room} each, and half as many do not "
        f"({least.limit}); the document prints {published} without batch, length of sequences or the "
        "memory that the generator takes beside the trainer"
    )


def _single(counts: dict[str, dict[str, int | None]], partition: str) -> Number | None:
    """The number that is compared, where there is one."""
    numbers = {by_part.get(partition) for by_part in counts.values()}
    value = numbers.pop() if len(numbers) == 1 else None
    return None if value is None else Number(value=float(value))


def _named(model: str, counts: dict[str, dict[str, int | None]]) -> str:
    return f"{model} " if len(counts) > 1 else ""


def _count(catalog: Catalog, system: str, partition: str, num: int | None) -> str:
    memory = partition_words(catalog, system, partition)
    return f"none of {memory}" if num is None else f"{num} of {memory}"


def partition_words(catalog: Catalog, system: str, partition: str) -> str:
    """A partition by the memory of its devices, which is what it differs in."""
    memory = place_of(catalog, system, partition=partition).machine.accelerator.memory
    return f"{memory.value / units.parse('1 GB', units.BYTES):.0f} GB"


def host_memory(catalog: Catalog, system: str, observed: Observation) -> ObservedEvidence:
    """Whether host memory is nearly full on the fewest devices, or sets their number."""
    setting, texts, verdicts, largest = observed.setting, [], [], 0.0
    for partition in setting.partitions:
        machine = place_of(catalog, system, partition=partition).machine
        if machine.host_memory_bytes is None:
            return evidence(f"the host memory of {machine.name} is not known", SAYS_NOTHING)
        for model, mode in product(setting.models, setting.modes):
            bounded, free = (
                fewest(catalog, each, model=model, stage="rl", mode=mode, seq=setting.seqs[0])
                for each in (machine, replace(machine, host_memory_bytes=None))
            )
            if bounded is None or bounded.host_memory is None or free is None:
                continue
            used_frac = float(bounded.host_memory.total) / machine.host_memory_bytes
            is_bottleneck = free.num_gpus < bounded.num_gpus or used_frac > setting.limit_frac
            verdicts.append(verdict_if(is_bottleneck))
            if is_bottleneck:
                memory = partition_words(catalog, system, partition)
                texts.append(
                    f"{model} {mode}, {memory}: {100 * used_frac:.0f} % on {bounded.num_gpus}, enough for "
                    f"{free.num_gpus} if it were unlimited"
                )
            else:
                largest = max(largest, used_frac)
    others = f"{len(verdicts) - len(texts)} other settings use at most {100 * largest:.0f} %"
    return evidence("; ".join([*texts, others]), together(verdicts))
