"""Weight sync between trainer and engine ranks, by peers, broadcast and file."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError
from scalewright.records.measurements import Measurements
from scalewright.study.kinds.micro.kind import MicroConfig, MicroKind
from scalewright.study.kinds.options import STRICT
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model
from scalewright.workload.run_options import DeviceKind
from scalewright.workload.sync_run import WAY_NAMES, SyncPrecision, SyncRun, SyncWayName

DEFAULT_MODEL = "layers=8,hidden=768,heads=12"


@checked(frozen=True, kw_only=True, config=STRICT)
class SyncOptions:
    """Options of `bench sync`, and of a point of this kind."""

    model: str = DEFAULT_MODEL
    layout: str = "dp=2,zero=3"
    """Of the trainer: dp, zero and tp."""
    engines: int = 1
    engine_tp: int = 1
    sync_ways: str = "all"
    """all, or some of peers, broadcast, file, with commas."""
    precision: str = "bf16"
    """On the wire: bf16 for engines of 16 or 8 bit, fp32 for others."""
    path: str = ""
    """Folder for a sync by file; empty: the run directory."""
    repeats: int = 3
    seed: int = 0
    ranks: int | None = None
    """Processes; they follow from the layout and the engines."""
    device: str = "cpu"
    """Where the trainer's weights lie."""
    budget: str = "60 s"


class SyncKind(MicroKind[SyncOptions]):
    name = "sync"
    options = TypeAdapter(SyncOptions)
    metrics = ("sync_time_s", "link_frac")

    def config(self, catalog: Catalog, options: SyncOptions, *, device: DeviceKind, folder: Path) -> SyncRun:
        spec = resolve_model(catalog, options.model)
        names = options.sync_ways.strip()
        chosen = WAY_NAMES if names == "all" else tuple(one.strip() for one in names.split(","))
        if spec.transformer.moe is not None or spec.transformer.mla is not None:
            raise ConfigError(
                f"{spec.id} is not dense: weights of engines are those of dense GPT, Llama or Qwen models"
            )
        return SyncRun(
            model_id=spec.id, shape=spec.transformer, layout=parse_layout(options.layout),
            path=str((Path(options.path) if options.path else folder).resolve() / "weight-sync"),
            num_engines=options.engines, engine_tp=options.engine_tp, sync_ways=cast(tuple[SyncWayName, ...], chosen),
            precision=cast(SyncPrecision, options.precision), repeats=options.repeats, seed=options.seed, device=device,
            budget_s=units.parse(options.budget, units.SECONDS),
        )  # fmt: skip

    def num_ranks(self, options: SyncOptions, config: MicroConfig) -> int:
        assert isinstance(config, SyncRun)
        if options.ranks not in (None, config.num_ranks):
            raise ConfigError(
                f"--ranks {options.ranks}: {config.num_trainers} trainer ranks ({config.layout_text}) and "
                f"{config.num_engine_ranks} engine ranks are {config.num_ranks}; leave --ranks out"
            )
        return config.num_ranks

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        """Of the fastest way."""
        best = min(measurements.rows, key=lambda row: float(row["time_s"]), default=None)
        if best is None:
            return {"sync_time_s": None, "link_frac": None}
        return {"sync_time_s": float(best["time_s"]), "link_frac": float(best["link_frac"])}


KIND = SyncKind()
