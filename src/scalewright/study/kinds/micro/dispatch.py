"""What starting a kernel costs the host."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.records.measurements import Measurements
from scalewright.study.kinds.micro.kind import MicroKind
from scalewright.study.kinds.options import STRICT
from scalewright.workload.micro_run import DispatchRun
from scalewright.workload.run_options import DeviceKind


@checked(frozen=True, kw_only=True, config=STRICT)
class DispatchOptions:
    """Options of `bench dispatch`, and of a point of this kind."""

    compile: bool = True
    """Also measure torch.compile."""
    compile_in_budget: bool = True
    """Compiling must end within the budget, else it is left out."""
    ranks: int | None = None
    device: str = "auto"
    budget: str = "30 s"


class DispatchKind(MicroKind[DispatchOptions]):
    name = "dispatch"
    options = TypeAdapter(DispatchOptions)
    metrics = ("launch_time_s",)

    def config(self, catalog: Catalog, options: DispatchOptions, *, device: DeviceKind, folder: Path) -> DispatchRun:
        del catalog, folder
        return DispatchRun(
            compiles=options.compile,
            budgets_compiling=options.compile_in_budget,
            device=device,
            budget_s=units.parse(options.budget, units.SECONDS),
        )

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        times_s = [float(row["time_s"]) for row in measurements.rows if row["mode"] == "eager"]
        return {"launch_time_s": min(times_s, default=None)}


KIND = DispatchKind()
