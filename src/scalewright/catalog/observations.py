"""Observations of a publication: what it states of each stage, in our words, and the setting they are predicted in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scalewright.catalog.facts import Id, Source, Strict, link_sources
from scalewright.catalog.library import packaged_data
from scalewright.errors import UnknownNameError
from scalewright.records.loader import load_toml

KIND = "observations"
ObservedStage = Literal["sft", "rl", "generation", "distillation"]
FigureUnit = Literal["times", "share", "GPUs", "FLOP/s"]
Sense = Literal["about", "above", "up to"]
"""about: the figure itself; above: more than it; up to: it is the largest of several."""


class ObservedFigure(Strict):
    """A figure that the publication prints."""

    value: float = Field(gt=0)
    unit: FigureUnit
    sense: Sense


class ObservedSetting(Strict):
    """What a prediction assumes. Each check reads the parts that it needs."""

    model: str = ""
    models: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    """Of the system: nodes with different devices."""
    nodes: tuple[int, ...] = ()
    micro_batches: tuple[int, ...] = (1,)
    """Sequences of a device at once."""
    accumulate: int = Field(default=1, gt=0)
    """Micro-batches of a device in one step."""
    seqs: tuple[int, ...] = (1536,)
    """Tokens of a sequence."""
    transports: tuple[str, ...] = ()
    """The fast one, then the slow one."""
    modes: tuple[Literal["full", "lora", "offload", "serve"], ...] = ()
    published_mode: str = ""
    """Mode that the published minimum is held against."""
    published_partition: str = ""
    """Partition that the publication names; empty: it names none."""
    tp: int = Field(default=1, gt=0)
    """Tensor parallelism of the generator."""
    pipelines: tuple[int, ...] = ()
    """Pipeline ranks of the generator."""
    batch: int = Field(default=256, gt=0)
    """Prompts at once in generation."""
    memory_frac: float | None = Field(default=None, gt=0, le=1)
    """Share of a device's memory that the generator of an RL step fills."""
    prompts: int = Field(default=1024, gt=0)
    answers: int = Field(default=1, gt=0)
    prompt: int = Field(default=512, gt=0)
    response: int = Field(default=1024, gt=0)
    mini_prompts: int = Field(default=256, gt=0)
    """Prompts of an update; each has all of its answers in it."""
    limit_frac: float = Field(default=0.5, gt=0, le=1)
    """Share from which a statement without a figure is said to hold."""


class Observation(Strict):
    """One statement of a publication."""

    id: Id
    stage: ObservedStage
    text: str
    """In our words, one sentence without a full stop."""
    figure: ObservedFigure | None = None
    check: str = ""
    """How it is predicted; empty: it cannot be."""
    setting: ObservedSetting = ObservedSetting()
    assumption: str = ""
    """What the prediction assumes, for people."""
    measure: str = ""
    """How it is measured on a run of the stages; empty: `not_here` says why it is not."""
    not_here: str = ""
    source: Source

    @property
    def is_known(self) -> bool:
        """Whether our sources give the statement itself."""
        return bool(self.check)

    @model_validator(mode="after")
    def _check(self) -> Observation:
        if self.is_known and not (self.measure or self.not_here):
            raise ValueError(f"observation {self.id} is not measured: say why in not_here")
        if self.is_known and not self.assumption:
            raise ValueError(f"observation {self.id} is predicted: say under which assumption")
        return self


class ObservationSet(Strict):
    """All observations of one publication."""

    schema_: str = Field(alias="schema")
    id: Id
    title: str
    system: str
    """Catalogued system that they were made on."""
    notes: tuple[str, ...] = ()
    stages: dict[ObservedStage, int]
    """How many observations the publication counts for each stage."""
    sources: dict[str, Source]
    observations: tuple[Observation, ...]

    @model_validator(mode="after")
    def _counted(self) -> ObservationSet:
        for stage, count in self.stages.items():
            listed = sum(observation.stage == stage for observation in self.observations)
            if listed != count:
                raise ValueError(f"{listed} observations of {stage} are listed: the publication counts {count}")
        return self


def load_observations(name: str) -> ObservationSet:
    """The observations of that name."""
    paths = {path.stem: path for path in sorted((packaged_data() / "observations").glob("*.toml"))}
    if name not in paths:
        raise UnknownNameError("set of observations", name, paths)
    return load_toml(paths[name], ObservationSet, kind=KIND, prepare=link_sources)
