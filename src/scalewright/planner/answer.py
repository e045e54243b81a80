"""Answer: everything that a prediction says, for every kind of question.

    answer(question).time.total      answer(question).fits      answer(question).document()

Training of transformers and vision models, generation and RL steps all have time, memory, energy, an interval, a bound
and limits. What only one of them has is in `figures`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from scalewright import __version__, units
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.generation import scaled
from scalewright.costs.room import Room, room
from scalewright.errors import ConfigError
from scalewright.planner.context import check_stage_context
from scalewright.planner.energy_use import Footprint
from scalewright.planner.figures import Figures, GenerationFigures, RlFigures, TransformerFigures, VisionFigures
from scalewright.planner.generation import CHANGED, Generation, changed_generation, joined_parts, no_room_words
from scalewright.planner.limits import Limit, differences, limits
from scalewright.planner.question import (
    Question,
    TransformerStep,
    VisionModelStep,
    check,
    resolve_recipe,
    resolve_stack,
)
from scalewright.records.documents import document
from scalewright.records.types import Confidence
from scalewright.workload.grammar import assignments, whole_number
from scalewright.workload.layout import KEYS, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.rl import CHANGED_KEYS, RlStep, changed_step
from scalewright.workload.training import training_mode

WHAT_IF_KEYS = (*KEYS, "precision", "stack", "mode", "seq")
CONFIDENCE_TITLES: dict[Confidence, str] = {
    "bound": "physics only: peak rates, nothing lost",
    "model": "formulas and catalogue values; not measured here",
    "calibrated": "formulas with rates measured on this machine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A prediction with the question that it answers."""

    question: Question
    time: Breakdown
    """Of one step; of generation until the last answer."""
    memory: Breakdown
    """Peak allocated on the device that holds the most."""
    reserved_bytes: float
    """What the framework's allocator takes for that peak."""
    device_bytes: float
    """What nvidia-smi or rocm-smi shows: context and communicators as well."""
    needed_bytes: float
    """The least of it that a device must have: the allocator can give back what it does not use."""
    host_memory: Breakdown | None
    """What the processes of one node hold in its host memory; None if it is not predicted."""
    interval_s: tuple[float, float]
    """Where the time lies with a probability of 90 %."""
    bound_s: float
    """What no run can beat: the arithmetic at peak, and in generation the weights read once a step."""
    fits: bool
    """Whether device memory and host memory suffice, tightly or not."""
    fits_host: bool
    num_units: float
    """Tokens or images that the time brings: of generation, the generated ones."""
    footprint: Footprint | None
    """Energy, money and carbon; None without a facility."""
    warnings: tuple[str, ...]
    """What a reader should know before trusting the numbers."""
    figures: Figures
    """What only this kind of stage has."""

    @property
    def id(self) -> str:
        return self.question.id

    @property
    def num_params(self) -> int:
        return self.question.spec.num_params

    @property
    def num_active_params(self) -> int:
        """Parameters that a token meets: all, less the experts that it is not sent to."""
        return self.question.spec.num_active_params

    @property
    def model_words(self) -> str:
        """One line: parameters, what was assumed of the model, and what of it is not modelled."""
        return self.question.model_words

    @property
    def time_s(self) -> float:
        return float(self.time.total)

    @property
    def memory_bytes(self) -> float:
        return float(self.memory.total)

    @property
    def room(self) -> Room:
        """Whether a device holds what it is predicted to show: with the model's error to spare, tightly or not."""
        if isinstance(self.figures, GenerationFigures):  # a serving engine fills the share of memory it is given
            return "fits" if self.fits else "too large"
        return room(self.question.machine, self.needed_bytes)

    @property
    def verdict(self) -> Literal["fits", "tight", "does not fit"]:
        """One word on memory, of the device and of the hosts."""
        if not self.fits:
            return "does not fit"
        return "tight" if self.room == "tight" else "fits"

    @property
    def shown_by(self) -> str:
        """The tool that shows `device_bytes` on this device."""
        vendor = self.question.machine.accelerator.vendor
        return {"NVIDIA": "nvidia-smi", "AMD": "rocm-smi"}.get(vendor, "the vendor's tool")

    @property
    def rate_per_s(self) -> float:
        """Tokens or images per second, over all devices."""
        return self.num_units / self.time_s

    @property
    def energy(self) -> Breakdown | None:
        return None if self.footprint is None else self.footprint.energy

    @property
    def money(self) -> Breakdown | None:
        return None if self.footprint is None else self.footprint.money

    @property
    def carbon(self) -> Breakdown | None:
        return None if self.footprint is None else self.footprint.carbon

    @property
    def confidence(self) -> Confidence:
        """Of the time: what is known of the machine's rates."""
        machine, is_generating = self.question.machine, isinstance(self.question.stage, Generation | RlStep)
        return machine.generation_confidence if is_generating else machine.confidence

    @property
    def transformer(self) -> TransformerFigures:
        assert isinstance(self.figures, TransformerFigures)
        return self.figures

    @property
    def vision(self) -> VisionFigures:
        assert isinstance(self.figures, VisionFigures)
        return self.figures

    @property
    def generation(self) -> GenerationFigures:
        assert isinstance(self.figures, GenerationFigures)
        return self.figures

    @property
    def rl(self) -> RlFigures:
        assert isinstance(self.figures, RlFigures)
        return self.figures

    @property
    def limits(self) -> list[Limit]:
        """What takes the time, largest first."""
        return limits(self.question, self.time)

    @property
    def why_not(self) -> str:
        """One sentence: why it does not fit, and what would help; empty where it fits."""
        if self.fits:
            return ""
        machine = self.question.machine
        if isinstance(self.figures, GenerationFigures) and isinstance(self.question.stage, Generation):
            return no_room_words(self.figures.serving, self.question.stage, self.memory_bytes)
        if self.room == "too large":
            needed, has = (units.format(size, units.BYTES) for size in (self.needed_bytes, machine.memory_bytes))
            return f"a device needs {needed} and has {has}: most of it is {_largest(self.memory)}; split it further"
        if not self.fits_host and self.host_memory is not None and machine.host_memory_bytes is not None:
            needed, has = (
                units.format(size, units.BYTES) for size in (float(self.host_memory.total), machine.host_memory_bytes)
            )
            return f"a node needs {needed} of host memory and has {has}: most of it is {_largest(self.host_memory)}"
        return "the generator has no room for one sequence beside the trainer: raise its tp or use more devices"

    def what_if(self, text: str) -> Change:
        """The same question with some knobs set otherwise, such as `tp=8,dp=4`, `precision=fp8` or `stack=eager`."""
        return Change(name=text, before=self, after=answer(changed(self.question, text)))

    def document(self) -> dict[str, Any]:
        """The `prediction/1` document."""
        question, machine, used = self.question, self.question.machine, self.footprint
        has_host = self.host_memory is not None
        body = {
            "id": self.id,
            "scalewright": __version__,
            "stage": self.figures.stage_name,
            "model": question.spec.id,
            **model_document(question.spec, uses_seq=not question.has_own_lengths),
            "system": machine.name,
            "stack_origin": question.stack_origin,
            "input": question.resolved_input(),
            "num_gpus": question.num_gpus,
            "num_nodes": question.num_nodes,
            "step_time_s": self.time_s,
            "step_time_interval_s": [self.interval_s[0], self.interval_s[1]],
            "step_time_bound_s": self.bound_s,
            "confidence": self.confidence,
            "confidence_of": self._confidence_of(),
            "memory_bytes": self.memory_bytes,
            "reserved_bytes": self.reserved_bytes,
            "device_bytes": self.device_bytes,
            "needed_bytes": self.needed_bytes,
            "device_memory_bytes": machine.memory_bytes,
            "fits": self.fits,
            "room": self.room,
            **(self._host_keys() if has_host else {}),
            **self.figures.document_keys(self),
            **({} if used is None else self._energy_keys(used)),
            "warnings": list(self.warnings),
            "time": self.time.as_dict(),
            "memory": self.memory.as_dict(),
            **({"host_memory": self.host_memory.as_dict()} if self.host_memory is not None else {}),
        }
        return document("prediction", body)

    def _host_keys(self) -> dict[str, Any]:
        assert self.host_memory is not None
        return {
            "host_memory_bytes_per_node": float(self.host_memory.total),
            "host_memory_available_bytes_per_node": self.question.machine.host_memory_bytes,
            "fits_host": self.fits_host,
        }

    def _energy_keys(self, used: Footprint) -> dict[str, Any]:
        return {
            "energy_j": float(used.energy.total),
            f"energy_j_per_{self.figures.unit}": used.energy_j_per_token,
            **({} if used.cost_usd is None else {"cost_usd": used.cost_usd}),
            **({} if used.carbon_kgco2e is None else {"carbon_kgco2e": used.carbon_kgco2e}),
        }

    def _confidence_of(self) -> dict[str, Confidence]:
        """How each number was made. Memory and energy follow from counts and sourced shares, never a calibration."""
        levels: dict[str, Confidence] = {
            "step_time": self.confidence,
            "step_time_bound": "bound",
            "memory": "model",
        }
        return levels | ({} if self.footprint is None else {"energy": "model"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A prediction beside the one it departs from, compared per token (or image) and device.

    A change may take other devices or do other work: another batch, answers that a token budget cuts off.
    """

    name: str
    before: Answer
    after: Answer

    @property
    def terms(self) -> list[tuple[str, float]]:
        """Seconds more on each term for as much work as before, the largest difference first."""
        return differences(self.before.time, scaled(self.after.time, 1.0 / self.work_ratio_frac))

    @property
    def work_ratio_frac(self) -> float:
        """Tokens or images of a step, new over old."""
        return self.after.num_units / self.before.num_units

    @property
    def device_ratio_frac(self) -> float:
        """Devices, new over old."""
        return self.after.question.num_gpus / self.before.question.num_gpus

    @property
    def time_ratio_frac(self) -> float:
        """Device time of a token or an image, new over old: below 1 is faster. With the same devices and work it is
        the ratio of the step times."""
        return self.after.time_s / self.before.time_s * self.device_ratio_frac / self.work_ratio_frac

    @property
    def rate_ratio_frac(self) -> float:
        """Tokens or images per second and device, new over old: above 1 is faster."""
        return 1.0 / self.time_ratio_frac

    @property
    def gain_frac(self) -> float:
        """Part of the device time of a token saved; negative where the change costs time."""
        return 1.0 - self.time_ratio_frac

    @property
    def memory_difference_bytes(self) -> float:
        return self.after.memory_bytes - self.before.memory_bytes

    @property
    def unequal(self) -> tuple[str, ...]:
        """What the change takes or does otherwise, beside what it asks for: devices, and work of a step."""
        words = []
        if self.device_ratio_frac != 1.0:
            words.append(f"{self.after.question.num_gpus:,} devices instead of {self.before.question.num_gpus:,}")
        if self.work_ratio_frac != 1.0:
            words.append(f"{self.after.num_units:,.0f} {self.counted}s a step instead of {self.before.num_units:,.0f}")
        return tuple(words)

    @property
    def counted(self) -> str:
        """What the work of a step is counted in."""
        return f"{'trained ' if isinstance(self.after.figures, RlFigures) else ''}{self.after.figures.unit}"

    @property
    def summary(self) -> str:
        """One sentence: what the change gives, and against which devices and work."""
        if not self.after.fits:
            return f"does not fit: {self.after.why_not}"
        ratio = self.time_ratio_frac - 1.0
        verdict = "slower" if ratio > 0.0 else "faster"
        if not self.unequal and ratio == 0.0:
            return "as fast"
        if not self.unequal:
            delta = units.format(abs(self.after.time_s - self.before.time_s), units.SECONDS)
            return f"{delta} {verdict} ({ratio:+.1%})"
        return f"{abs(ratio):.1%} {verdict} per {self.counted} and device: it takes {' and '.join(self.unequal)}"

    def as_dict(self) -> dict[str, Any]:
        """What `--what-if --json` says of the change itself."""
        unit = self.after.figures.unit
        return {
            "change": self.name,
            "summary": self.summary,
            "is_equal_work_on_equal_devices": not self.unequal,
            "num_gpus": [self.before.question.num_gpus, self.after.question.num_gpus],
            f"num_{unit}s": [self.before.num_units, self.after.num_units],
            f"device_time_per_{unit}_ratio_frac": self.time_ratio_frac,
            "step_time_difference_s": self.after.time_s - self.before.time_s,
            "memory_difference_bytes": self.memory_difference_bytes,
            "terms_s": dict(self.terms),
        }


def model_document(spec: ModelSpec, *, uses_seq: bool = True) -> dict[str, Any]:
    """How large the model is and what was assumed of it, for every document that names a model."""
    return {
        "num_params": spec.num_params,
        "num_active_params": spec.num_active_params,
        "model_assumed": list(spec.assumptions(uses_seq=uses_seq)),
        "model_not_modelled": list(spec.not_modelled),
        "model_words": spec.words(uses_seq=uses_seq),
    }


def tight_memory(question: Question, needed_bytes: float) -> list[str]:
    """A warning where a device holds the step only without the memory model's own error."""
    machine = question.machine
    if room(machine, needed_bytes) != "tight":
        return []
    needed, has = (units.format(size, units.BYTES) for size in (needed_bytes, machine.memory_bytes))
    error = f"{machine.constants.memory_error.value:.0%}"
    return [f"memory is tight: {needed} of {has}, and one published run in ten needs {error} more than predicted"]


def answer(question: Question) -> Answer:
    """Check the question against model and machine, then predict."""
    check(question)
    # Each kind of stage builds an Answer, so its module imports this one: they are loaded when they are needed.
    match question.stage:
        case TransformerStep():
            from scalewright.planner.stages.transformer_step import predict_transformer

            return predict_transformer(question)
        case VisionModelStep():
            from scalewright.planner.stages.vision_step import predict_vision

            return predict_vision(question)
        case Generation() as generation:
            from scalewright.planner.stages.generation_batch import predict_generation

            return predict_generation(question, generation)
        case RlStep() as rl:
            from scalewright.planner.stages.rl_step import predict_rl

            return predict_rl(question, rl)


def changed(question: Question, text: str) -> Question:
    """The question with some knobs of the layout, the precision, stack, mode or sequence length set otherwise."""
    stage = question.stage
    own = CHANGED if isinstance(stage, Generation) else CHANGED_KEYS if isinstance(stage, RlStep) else ()
    written = assignments(
        joined_parts(text) if isinstance(stage, Generation) else text, allowed=(*WHAT_IF_KEYS, *own), what="what-if",
        value_separator=";",
    )  # fmt: skip
    requested = {name: value for name, value in written.items() if name in own}
    if requested and isinstance(stage, Generation):
        question = replace(question, stage=changed_generation(stage, requested, question.catalog))
    elif requested and isinstance(stage, RlStep):
        question = replace(question, stage=changed_step(stage, requested))
    if requested and isinstance(question.stage, Generation | RlStep):
        check_stage_context(question.spec, question.stage)
    layout = {name: value for name, value in written.items() if name in KEYS}
    if layout:
        whole = {**{k: int(v) if isinstance(v, bool) else v for k, v in question.layout.as_dict().items()}, **layout}
        question = replace(question, layout=parse_layout(",".join(f"{k}={v}" for k, v in whole.items())))
    if "precision" in written:
        precision = resolve_recipe(written["precision"], question.machine)
        question = replace(question, recipe=precision.with_optimizer(question.recipe.optimizer))
    if "mode" in written:
        question = replace(question, mode=training_mode(written["mode"]))
    if "seq" in written:
        question = replace(
            question, spec=question.spec.with_seq(whole_number(written["seq"], key="seq", what="what-if"))
        )
    if "stack" in written:
        if question.catalog is None:
            raise ConfigError(f"what-if stack={written['stack']}: this question has no catalogue to look it up in")
        named = resolve_stack(written["stack"], question.catalog, question.layout, question.machine)
        question = replace(question, stack=named)
    return question


def _largest(breakdown: Breakdown) -> str:
    return max(breakdown.parts, key=lambda part: float(part.total)).name.replace("_", " ")
