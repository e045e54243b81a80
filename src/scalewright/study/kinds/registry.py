"""The kinds of points by name. A kind's module is imported when a study or a benchmark uses it."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import cast

from scalewright.errors import UnknownNameError
from scalewright.study.kinds.base import Kind

KINDS = {
    "language": "scalewright.study.kinds.language",
    "engine": "scalewright.study.kinds.engine",
    "emulated": "scalewright.study.kinds.emulated",
    "vision": "scalewright.study.kinds.vision",
    "generate": "scalewright.study.kinds.generate",
    "reason": "scalewright.study.kinds.reason",
    "plan": "scalewright.study.kinds.plan",
    "saving": "scalewright.study.kinds.saving",
    "stage": "scalewright.study.kinds.stage",
    "rl": "scalewright.study.kinds.rl",
    "reading": "scalewright.study.kinds.reading",
    "gemm": "scalewright.study.kinds.micro.gemm",
    "memory": "scalewright.study.kinds.micro.memory",
    "attention": "scalewright.study.kinds.micro.attention",
    "convolution": "scalewright.study.kinds.micro.convolution",
    "dispatch": "scalewright.study.kinds.micro.dispatch",
    "decode": "scalewright.study.kinds.micro.decode",
    "collectives": "scalewright.study.kinds.micro.collectives",
    "sync": "scalewright.study.kinds.micro.sync",
    "storage": "scalewright.study.kinds.micro.storage",
    "checkpoint": "scalewright.study.kinds.micro.checkpoint",
}
"""Module of each kind; it holds one object called KIND."""


@lru_cache(maxsize=len(KINDS))
def kind_named(name: str) -> Kind:
    if name not in KINDS:
        raise UnknownNameError("kind of point", name, KINDS, hint=f"choose {', '.join(KINDS)}")
    return cast(Kind, importlib.import_module(KINDS[name]).KIND)
