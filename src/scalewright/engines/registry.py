"""Every adapter by the id of its engine."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from scalewright.engines.info import find_engine
from scalewright.engines.types import EngineJob, EngineRequest


class Adapter(Protocol):
    """What a module of `adapters/` has."""

    refuse_what_it_lacks: Callable[[EngineRequest], None]
    """Raises NotExpressedError with the sentence for what the engine cannot be told."""
    render: Callable[[EngineRequest], EngineJob]
    """The job of a request that was not refused."""


def adapter_of(engine: str) -> Adapter:
    """The adapter of an engine by id or alias; an unknown name is an error."""
    return cast(Adapter, import_module(f"scalewright.engines.adapters.{find_engine(engine).id}"))
