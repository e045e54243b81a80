"""The stack of a training program: its entry of the catalogue, with the program's own factors where they are known."""

from __future__ import annotations

from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Stack
from scalewright.costs.machine import Machine


def named_stack(name: str, catalog: Catalog, machine: Machine | None) -> Stack:
    """A stack by its name; a training program's has the factors that were fitted here, else on GPUs those shipped."""
    engine = name.lower()
    fitted = None if machine is None else machine.engine_stacks.get(engine)
    if fitted is not None:
        return catalog.stack(fitted.stack).model_copy(update={"id": engine})
    return _with_shipped_factors(catalog.stack(name), engine, machine)


def engine_stack(catalog: Catalog, machine: Machine | None, *, engine: str, stack: str) -> Stack:
    """The stack of a program that runs with this entry of the catalogue. Factors that were fitted here to its runs
    with another entry do not count."""
    fitted = None if machine is None else machine.engine_stacks.get(engine)
    entry = catalog.stack(stack)
    if fitted is not None:
        return entry.model_copy(update={"id": engine}) if fitted.stack == entry.id else entry
    return _with_shipped_factors(entry, engine, machine)


def _with_shipped_factors(entry: Stack, engine: str, machine: Machine | None) -> Stack:
    on_gpu = machine is not None and machine.accelerator.kind != "cpu"
    return entry.model_copy(update={"id": engine}) if on_gpu and engine in entry.engine_factors else entry
