"""Stages of a training campaign, and the requests of those that generate."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.errors import ConfigError, UnknownNameError
from scalewright.workload.grammar import assignments, whole_number

STAGES = ("pretrain", "sft", "rl", "generate", "distill")
"""Next-token training, supervised fine-tuning of all weights, rollouts with an update, prefill and decode, and a
teacher that generates what a student is trained on."""


def check_stage(name: str) -> None:
    if name not in STAGES:
        raise UnknownNameError("stage", name, STAGES, hint=f"choose {', '.join(STAGES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """`prompt=2048,response=256[,longest=1024]`: tokens in, mean tokens out, longest answer."""

    prompt: int
    response: int
    longest: int | None = None


def parse_generate(text: str) -> GenerateRequest:
    return GenerateRequest(**_numbers(text, "generate", needed=("prompt", "response"), optional=("longest",)))


def _numbers(text: str, what: str, *, needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, int]:
    written = assignments(text, allowed=(*needed, *optional), what=what)
    missing = [key for key in needed if key not in written]
    if missing:
        raise ConfigError(f"{what} {text!r} lacks {', '.join(missing)}: write {','.join(f'{k}=N' for k in needed)}")
    return {key: whole_number(value, key=key, what=what) for key, value in written.items()}
