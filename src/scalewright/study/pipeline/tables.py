"""The `[pipeline]` table of a study: stages in the order in which they run, what each starts from, and its gate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from scalewright import units
from scalewright.catalog.facts import Documented
from scalewright.errors import ConfigError, nearest
from scalewright.launch.graph.file import Retries
from scalewright.records.reasoning import StageName
from scalewright.sites.walltime import Walltime
from scalewright.study.expressions import Value

ProfileName = Literal["cpu", "gpu", "ranks"]
"""cpu: a few cores of one machine; gpu: one device; ranks: several devices, on one node or on many."""
OptionName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
StageId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
OPTIONS = {"from": "start_from", "data_from": "data_from", "teacher": "teacher"}
"""Option of the kind for each key of a stage that names another stage. A folder elsewhere is given as the option."""
TRAINS = ("sft", "grpo", "distill")
"""Stages that write weights."""


def _seconds(text: Any) -> Any:
    if not isinstance(text, str):
        raise ValueError(f'{text!r} is not a time: write it with its unit, such as "3 min"')
    try:
        seconds = units.parse(text, units.SECONDS)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if not seconds > 0:
        raise ValueError(f"{text} must be above zero")
    return seconds


StageTime = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=str)]


class StageGate(Documented):
    """The pipeline goes on only if the accuracy of this stage is high enough, or rose enough over an earlier stage."""

    by: float = Field(ge=-1.0, le=1.0)
    """Least rise over the stage `over`, or least accuracy without it: 0.08 is 8 points of 100."""
    over: str = ""
    """Earlier stage to compare with; empty: none."""
    figure: Literal["greedy", "sampled"] = "greedy"
    """greedy: the likeliest token each time; sampled: the mean over sampled answers."""
    bound: Literal["value", "low"] = "value"
    """low: the lower end of the 95 % interval must reach `by`, so that 0 means a rise that is no accident."""


class PipelineStage(Documented):
    """One `[[pipeline.stages]]` table."""

    name: StageId
    """Unique; other stages name it, and it labels the point."""
    stage: StageName
    """What it does, as `scalewright reason`: sft, grpo, generate, distill or evaluate."""
    from_: str = Field(default="", alias="from")
    """Earlier stage whose weights it starts from; empty: new weights, or those that its options name."""
    data_from: str = ""
    """Earlier stage whose answers it trains on; it must be of stage generate."""
    teacher: str = ""
    """Earlier stage whose model is the teacher; for distill."""
    seeds: Seeds | None = None
    """Default: those of the pipeline. A stage starts from the stage of the same seed, or else from its first seed."""
    gate: StageGate | None = None
    options: dict[OptionName, Value] = Field(default_factory=dict)
    """As `scalewright reason`, beyond those of the pipeline."""
    sizes: dict[ProfileName, dict[OptionName, Value]] = Field(default_factory=dict)
    """Options that depend on the machine, by profile."""
    time: Walltime | None = None
    """Time limit of its job at a site; default: that of [measure.job]."""
    takes: dict[ProfileName, StageTime] = Field(default_factory=dict)
    """Usual time of one seed, by profile: `--budget` needs it."""

    @property
    def needs(self) -> tuple[tuple[str, str], ...]:
        """Key and name of every stage whose files it reads."""
        keys = {"from": self.from_, "data_from": self.data_from, "teacher": self.teacher}
        return tuple((key, name) for key, name in keys.items() if name)


class PipelineProfile(Documented):
    """A machine that the pipeline has sizes for."""

    text: str = ""
    """What it is meant for, in one phrase."""
    options: dict[OptionName, Value] = Field(default_factory=dict)
    """Options of every stage on it: model, layout, precision."""
    least_budget: StageTime | None = None
    """Smallest `--budget`: with less, the first stages learn nothing. Default: a tenth of their time."""


class Pipeline(Documented):
    """Stages that run one after the other. Every stage is a point of kind `reason`."""

    profile: Literal["auto", "cpu", "gpu", "ranks"] = "auto"
    """auto: cpu without a GPU, gpu with one, ranks with several or at a site."""
    seeds: Seeds = (0,)
    """Every stage runs once for each."""
    options: dict[OptionName, Value] = Field(default_factory=dict)
    """Options of every stage."""
    profiles: dict[ProfileName, PipelineProfile] = Field(default_factory=dict)
    scaled: tuple[OptionName, ...] = ("steps",)
    """Options that `--budget` makes smaller."""
    retries: Retries = Retries(limit=0)
    """At a site: how often a stage that failed is submitted again. It goes on where it ended."""
    stages: tuple[PipelineStage, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Pipeline:
        problem = next(_problems(self), "")
        if problem:
            raise ValueError(problem)
        return self

    @property
    def profile_names(self) -> list[ProfileName]:
        """Profiles that the file gives sizes for; cpu if it gives none."""
        names = [*self.profiles, *(name for stage in self.stages for name in stage.sizes)]
        return list(dict.fromkeys(names)) or ["cpu"]


def _problems(pipeline: Pipeline) -> Iterator[str]:
    """What is wrong with the stages, the first in the file first, a sentence each."""
    every = [stage.name for stage in pipeline.stages]
    before: dict[str, PipelineStage] = {}
    for seeds in (pipeline.seeds, *(stage.seeds for stage in pipeline.stages)):
        if seeds is not None and len(set(seeds)) < len(seeds):
            yield f"seeds {list(seeds)} has one twice: give each seed once"
    for stage in pipeline.stages:
        if stage.name in before:
            yield f"two stages are named {stage.name!r}: give each stage its own name"
        gated = [("gate.over", stage.gate.over)] if stage.gate is not None and stage.gate.over else []
        for key, name in (*stage.needs, *gated):
            yield from _reference(stage, key, name, before, every)
        given = {*stage.options, *pipeline.options}
        reserved = {"stage": "stage", "seed": "seeds"} | {OPTIONS[key]: key for key, _ in stage.needs}
        for option in sorted(given & set(reserved)):
            yield f"stage {stage.name!r} has {option!r} among its options: write it as its key {reserved[option]!r}"
        before[stage.name] = stage


def _reference(
    stage: PipelineStage, key: str, name: str, before: dict[str, PipelineStage], every: list[str]
) -> Iterator[str]:
    where = f"stage {stage.name!r} has {key} = {name!r}"
    if name == stage.name:
        yield f"{where}, which is itself: name an earlier stage"
    elif name not in every:
        near = nearest(name, every)
        hint = f"did you mean {', '.join(near)}?" if near else f"choose among {', '.join(before) or 'earlier stages'}"
        yield f"{where}, which is no stage: {hint}"
    elif name not in before:
        yield f"{where}, which comes later: stages run in the order of the file, so move {name!r} before it"
    elif key == "data_from" and before[name].stage != "generate":
        yield f"{where}, a stage of {before[name].stage}, which writes no answers: name one of generate"
    elif key in ("from", "teacher") and before[name].stage not in TRAINS:
        yield f"{where}, a stage of {before[name].stage}, which writes no weights: name one of {', '.join(TRAINS)}"
