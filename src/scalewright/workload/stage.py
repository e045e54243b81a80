"""Stages of a training campaign."""

from __future__ import annotations

from scalewright.errors import UnknownNameError

STAGES = ("pretrain", "sft", "rl", "generate", "distill")
"""Next-token training, supervised fine-tuning of all weights, rollouts with an update, prefill and decode, and a
teacher that generates what a student is trained on."""


def check_stage(name: str) -> None:
    if name not in STAGES:
        raise UnknownNameError("stage", name, STAGES, hint=f"choose {', '.join(STAGES)}")
