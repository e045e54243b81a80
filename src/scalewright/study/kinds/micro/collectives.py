"""Collectives over sizes, with the options of nccl-tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError
from scalewright.here.devices import device_here, visible_gpus
from scalewright.launch.ranks.allocation import default_num_ranks, is_inside
from scalewright.launch.ranks.external import num_ranks_here
from scalewright.records.measurements import Measurements
from scalewright.study.kinds.micro.kind import MicroConfig, MicroKind, largest
from scalewright.study.kinds.options import STRICT
from scalewright.workload.collective import OPS, parse_op
from scalewright.workload.collectives_run import CollectivesRun, ElementType
from scalewright.workload.run_options import DeviceKind

DEFAULT_CPU_RANKS = 2
DEFAULT_FACTOR = 2.0


@checked(frozen=True, kw_only=True, config=STRICT)
class CollectivesOptions:
    """Options of `bench collectives`, and of a point of this kind."""

    ops: str = "all"
    dtype: str = "fp32"
    ranks: int | None = None
    """Processes; None: one per GPU, 2 on a CPU."""
    min_bytes: str = "1 KiB"
    max_bytes: str = "64 MiB"
    factor: float | None = None
    """From one size to the next; None: 2."""
    step: str | None = None
    """From one size to the next, instead of a factor."""
    warmup: int = 1
    iters: int = 0
    """Timed calls per size; 0: what the budget allows."""
    in_place: bool = False
    root: int = 0
    device: str = "auto"
    budget: str = "60 s"


class CollectivesKind(MicroKind[CollectivesOptions]):
    name = "collectives"
    options = TypeAdapter(CollectivesOptions)
    metrics = ("bus_bytes_per_s",)

    def device(self, options: CollectivesOptions) -> DeviceKind:
        """As given: ranks choose their device themselves, on nodes that this process may not see."""
        return cast(DeviceKind, options.device)

    def config(
        self, catalog: Catalog, options: CollectivesOptions, *, device: DeviceKind, folder: Path
    ) -> CollectivesRun:
        del catalog, folder
        return CollectivesRun(
            ops=OPS if options.ops.strip() == "all" else tuple(parse_op(name) for name in options.ops.split(",")),
            dtype=cast(ElementType, options.dtype),
            min_bytes=round(units.parse(options.min_bytes, units.BYTES)),
            max_bytes=round(units.parse(options.max_bytes, units.BYTES)),
            factor=DEFAULT_FACTOR if options.factor is None else options.factor,
            step_bytes=_step_bytes(options),
            warmup=options.warmup,
            iterations=options.iters,
            budget_s=units.parse(options.budget, units.SECONDS),
            in_place=options.in_place,
            root=options.root,
            device=device,
        )

    def num_ranks(self, options: CollectivesOptions, config: MicroConfig) -> int:
        started = num_ranks_here(os.environ, requested_ranks=options.ranks, has_run_dir=True)
        num_ranks = started or _default_ranks(options)
        assert isinstance(config, CollectivesRun)
        config.check_ranks(num_ranks)
        return num_ranks

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        return {"bus_bytes_per_s": largest(measurements.rows, "bus_bytes_per_s")}


def _step_bytes(options: CollectivesOptions) -> int:
    if options.step is None:
        return 0
    if options.factor is not None:
        raise ConfigError(
            f"--factor {options.factor:g} and --step {options.step} both say how sizes grow: give one of them"
        )
    step_bytes = round(units.parse(options.step, units.BYTES))
    if step_bytes < 1:
        raise ConfigError(f"--step {options.step}: sizes must grow, so give a step of 1 B or more")
    return step_bytes


def _default_ranks(options: CollectivesOptions) -> int:
    """The given number, if there are devices for it; by default one rank per device."""
    if options.ranks is not None and options.ranks < 1:
        raise ConfigError(f"--ranks {options.ranks} starts nothing: collectives need 2 or more")
    if is_inside(os.environ):
        return default_num_ranks(os.environ) if options.ranks is None else options.ranks
    device = device_here(options.device, num_ranks=options.ranks or 1)
    if options.ranks is not None:
        return options.ranks
    return len(visible_gpus()) if device == "cuda" else DEFAULT_CPU_RANKS


KIND = CollectivesKind()
