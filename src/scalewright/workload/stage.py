"""Stages of a training campaign, by the passes over the model that one sample costs."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.errors import ConfigError, UnknownNameError
from scalewright.workload.grammar import assignments, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """How one sample uses the model."""

    name: str
    num_forward: float
    """Full forward passes per sample, beside the one that trains."""
    trains: bool
    """One forward and one backward pass with an optimizer update."""
    generates: bool
    """Tokens are sampled one by one."""
    title: str

    def num_forward_equivalents(self) -> float:
        """Work of the stage in units of one forward pass, generation not counted: backward is twice forward."""
        return self.num_forward + (3.0 if self.trains else 0.0)


STAGES: dict[str, Stage] = {
    s.name: s
    for s in (
        Stage(name="pretrain", num_forward=0, trains=True, generates=False, title="next-token training"),
        Stage(name="sft", num_forward=0, trains=True, generates=False, title="supervised fine-tuning, all weights"),
        Stage(
            name="rl", num_forward=2, trains=True, generates=True, title="rollout, old and reference log-probs, update"
        ),
        Stage(name="generate", num_forward=1, trains=False, generates=True, title="prefill and decode"),
        Stage(name="distill", num_forward=0, trains=True, generates=True, title="teacher generates, student trains"),
    )
}


def stage(name: str) -> Stage:
    try:
        return STAGES[name]
    except KeyError as error:
        raise UnknownNameError("stage", name, STAGES, hint=f"choose {', '.join(STAGES)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """`prompt=2048,response=256[,longest=1024]`: tokens in, mean tokens out, longest answer."""

    prompt: int
    response: int
    longest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RlRequest:
    """`prompts=128,samples=8,prompt=512,response=1024[,longest=,tp=1]`: one GRPO step."""

    prompts: int
    samples: int
    prompt: int
    response: int
    longest: int | None = None
    tp: int = 1
    """Tensor parallelism of the generator, which may differ from the trainer's."""


def parse_generate(text: str) -> GenerateRequest:
    return GenerateRequest(**_numbers(text, "generate", needed=("prompt", "response"), optional=("longest",)))


def parse_rl(text: str) -> RlRequest:
    needed, optional = ("prompts", "samples", "prompt", "response"), ("longest", "tp")
    return RlRequest(**_numbers(text, "rl", needed=needed, optional=optional))


def _numbers(text: str, what: str, *, needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, int]:
    written = assignments(text, allowed=(*needed, *optional), what=what)
    missing = [key for key in needed if key not in written]
    if missing:
        raise ConfigError(f"{what} {text!r} lacks {', '.join(missing)}: write {','.join(f'{k}=N' for k in needed)}")
    return {key: whole_number(value, key=key, what=what) for key, value in written.items()}
