"""Stages of a training campaign, by the passes over the model that one sample costs."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.errors import UnknownNameError


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
