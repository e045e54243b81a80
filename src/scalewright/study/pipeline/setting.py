"""How large a pipeline runs: the sizes of its machine, and the time that the user gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.here.devices import visible_gpus
from scalewright.study.expressions import Value
from scalewright.study.pipeline.tables import Pipeline, PipelineStage, ProfileName

LEAST_SHARE = 0.75
"""With a budget, later stages are left out before the others get less than this share of their size."""
SMALLEST_SHARE = 0.1
"""Smaller stages show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSetting:
    """What the machine and the user decide. It is kept with the results, so that they stay readable elsewhere."""

    profile: ProfileName
    budget: str = ""
    """Time as the user gave it; empty: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPipeline:
    """A pipeline with the sizes of a setting."""

    setting: PipelineSetting
    stages: tuple[PipelineStage, ...]
    """Those that run. A budget leaves out the last ones."""
    share: float = 1.0
    """Of the sizes that the file gives."""
    seeds: Mapping[str, tuple[int, ...]]
    """Of each stage."""
    sentence: str = ""
    """What a budget made smaller."""

    def options(self, pipeline: Pipeline, stage: PipelineStage) -> dict[str, Value]:
        """All options of a stage: its own override the pipeline's, and those of the profile override both."""
        profile = pipeline.profiles.get(self.setting.profile)
        own = stage.sizes.get(self.setting.profile, {})
        options = {**pipeline.options, **({} if profile is None else profile.options), **stage.options, **own}
        if self.share < 1.0:
            options |= {name: _smaller(options[name], self.share) for name in pipeline.scaled if name in options}
        return {name: value for name, value in options.items() if value != ""}


def _smaller(value: Value, share: float) -> Value:
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return max(round(value * share), 1)


def profile_of(pipeline: Pipeline, *, is_at_site: bool) -> ProfileName:
    """The profile of the file, or the one that suits this machine."""
    if pipeline.profile != "auto":
        return pipeline.profile
    num_gpus = 0 if is_at_site else len(visible_gpus())
    name = "ranks" if is_at_site or num_gpus > 1 else "gpu" if num_gpus == 1 else "cpu"
    return cast(ProfileName, name)


def sized(pipeline: Pipeline, setting: PipelineSetting) -> SizedPipeline:
    """The stages that run and how large they are. Raises ConfigError for a profile without sizes, or a short budget."""
    if setting.profile not in pipeline.profile_names:
        raise ConfigError(
            f"the pipeline has no sizes for the profile {setting.profile}: add [pipeline.profiles.{setting.profile}], "
            f"or write profile = {pipeline.profile_names[0]!r} under [pipeline]"
        )
    seeds = {stage.name: stage.seeds or pipeline.seeds for stage in pipeline.stages}
    if not setting.budget:
        return SizedPipeline(setting=setting, stages=pipeline.stages, seeds=seeds)
    return _within(pipeline, setting, seeds)


def _within(pipeline: Pipeline, setting: PipelineSetting, seeds: Mapping[str, tuple[int, ...]]) -> SizedPipeline:
    """Smaller by a budget: one seed first, then fewer stages from the end, then fewer steps."""
    budget_s = units.parse(setting.budget, units.SECONDS)
    times_s = _times_s(pipeline, setting.profile)
    if budget_s >= sum(times_s[name] * len(own) for name, own in seeds.items()):
        return SizedPipeline(
            setting=setting, stages=pipeline.stages, seeds=seeds,
            sentence=f"the whole pipeline fits in {setting.budget}",
        )  # fmt: skip
    least_s = least_budget_s(pipeline, setting.profile)
    if least_s is not None and budget_s < least_s:
        least = units.format(least_s, units.SECONDS)
        raise ConfigError(
            f"a budget of {setting.budget} is too short: the least useful budget of this study is {least} "
            f"({setting.profile}), because stages that are made smaller still learn nothing: give {least} or more"
        )
    kept = list(pipeline.stages)
    first = _num_first(pipeline)
    while len(kept) > first and budget_s < LEAST_SHARE * sum(times_s[stage.name] for stage in kept):
        kept.pop()
    while first < len(kept) < len(pipeline.stages) and kept[-1].stage == "generate":
        kept.pop()  # the stages that would use its answers are left out
    needed_s = sum(times_s[stage.name] for stage in kept)
    share = min(budget_s / needed_s, 1.0)
    if share < SMALLEST_SHARE:
        names = " and ".join(stage.name for stage in kept)
        raise ConfigError(
            f"a budget of {setting.budget} is too short for {names}, which take "
            f"{units.format(needed_s, units.SECONDS)}: give at least "
            f"{units.format(SMALLEST_SHARE * needed_s, units.SECONDS)}"
        )
    return SizedPipeline(
        setting=setting, stages=tuple(kept), share=share, seeds={name: own[:1] for name, own in seeds.items()},
        sentence=_sentence(pipeline, setting, kept, share, seeds),
    )  # fmt: skip


def least_budget_s(pipeline: Pipeline, profile: ProfileName) -> float | None:
    """The least useful budget of a profile, where the file gives one."""
    own = pipeline.profiles.get(profile)
    return None if own is None else own.least_budget


def _times_s(pipeline: Pipeline, profile: ProfileName) -> dict[str, float]:
    unknown = [stage.name for stage in pipeline.stages if profile not in stage.takes]
    if unknown:
        raise ConfigError(
            f"--budget needs the usual time of every stage, and {unknown[0]} has none for the profile {profile}: "
            f'write takes = {{ {profile} = "3 min" }} in its table'
        )
    return {stage.name: stage.takes[profile] for stage in pipeline.stages}


def _num_first(pipeline: Pipeline) -> int:
    """Stages that every budget keeps: up to the first GRPO, or the first stage alone."""
    rl = [number for number, stage in enumerate(pipeline.stages, start=1) if stage.stage == "grpo"]
    return rl[0] if rl else 1


def _sentence(
    pipeline: Pipeline, setting: PipelineSetting, kept: list[PipelineStage], share: float,
    seeds: Mapping[str, tuple[int, ...]],
) -> str:  # fmt: skip
    left_out = [stage.name for stage in pipeline.stages[len(kept) :]]
    names = ", ".join(stage.name for stage in kept)
    parts = [f"for {setting.budget} the pipeline is smaller: {len(kept)} of {len(pipeline.stages)} stages ({names})"]
    parts.append(f"with {share:.0%} of their {', '.join(pipeline.scaled)}" if share < 1.0 else "in full size")
    if any(len(own) > 1 for own in seeds.values()):
        parts.append("with one seed")
    return ", ".join(parts) + (f"; left out: {', '.join(left_out)}" if left_out else "")
