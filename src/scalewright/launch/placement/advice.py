"""PlacementAdvice: a folder looked at for a site and a number of ranks, with figures and findings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.data.contents import SetContents, set_contents
from scalewright.data.scan import FolderScan, scan_folder
from scalewright.errors import ConfigError
from scalewright.launch.placement.reading import ReadingCost, reading_cost, supply_of
from scalewright.launch.placement.rules import PlacedData, placement_findings
from scalewright.launch.placement.striping import Striping, read_striping
from scalewright.records.documents import document
from scalewright.records.types import Finding
from scalewright.sites.types import Site

KIND = "placement"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    folder: Path
    num_ranks: int
    num_epochs: int = 10
    samples_per_s: float | None = None
    """Of one rank in training."""
    sample_bytes: float | None = None
    storage: str = ""
    measured: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("--ranks", self.num_ranks), ("--epochs", self.num_epochs)):
            if value < 1:
                raise ConfigError(f"{name} {value} must be 1 or more")
        for name, number in (("--samples-per-s", self.samples_per_s), ("--sample-size", self.sample_bytes)):
            if number is not None and not (number > 0 and math.isfinite(number)):
                raise ConfigError(f"{name} {number:g} must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementAdvice:
    request: PlacementRequest
    site: Site
    scan: FolderScan
    contents: SetContents
    striping: Striping
    cost: ReadingCost
    findings: list[Finding]

    def document(self) -> dict[str, Any]:
        scan, cost, striping = self.scan, self.cost, self.striping
        return document(KIND, {
            "folder": str(scan.path), "site": self.site.id, "num_ranks": cost.num_ranks,
            "num_nodes": cost.supply.num_nodes, "num_files": scan.num_files, "num_folders": scan.num_folders,
            "num_links": scan.num_links, "num_others": scan.num_others, "num_unreadable": scan.num_unreadable,
            "total_bytes": scan.total_bytes, "mean_bytes": scan.mean_bytes, "is_whole": scan.is_whole,
            "contents": asdict(self.contents),
            "striping": {**asdict(striping), "components": [
                {**asdict(part), "end_bytes": None if math.isinf(part.end_bytes) else part.end_bytes}
                for part in striping.components
            ]},
            "rates_from": cost.supply.source, "read_bytes_per_s": cost.supply.read_bytes_per_s,
            "num_files_per_s": cost.supply.num_files_per_s, "num_operations_per_epoch": cost.num_operations,
            "stream_s": cost.stream_s, "metadata_s": cost.metadata_s, "copy_s": cost.copy_s, "local_s": cost.local_s,
            "break_even_epochs": None if math.isinf(cost.break_even_epochs) else cost.break_even_epochs,
            "copy_fits": cost.fits, "num_loaders_per_rank": cost.num_loaders, "data_wait_frac": cost.wait_frac,
            "data_wait_from_copy_frac": cost.local_wait_frac, "largest_samples_per_s_per_rank": cost.largest_rate,
            "findings": [asdict(one) for one in self.findings],
        })  # fmt: skip


def advise_placement(
    catalog: Catalog, site: Site, request: PlacementRequest, *, on_progress: Callable[[int], object] = str
) -> PlacementAdvice:
    """Look at the folder and its file system, and compare reading in place with a copy on the nodes."""
    supply = supply_of(
        catalog, site, num_ranks=request.num_ranks, storage=request.storage, measured=request.measured
    )  # fmt: skip
    scan = scan_folder(request.folder, on_progress=on_progress)
    if not scan.num_files:
        extra = f", but {scan.num_links} links, which are not followed" if scan.num_links else ""
        raise ConfigError(f"{request.folder}: holds no file{extra}; name the folder that holds the data set")
    contents = set_contents(scan)
    if request.sample_bytes is not None:
        contents = contents.with_sample_bytes(request.sample_bytes)
    striping = read_striping(request.folder)
    cost = reading_cost(
        scan, contents, supply, num_ranks=request.num_ranks, num_epochs=request.num_epochs,
        samples_per_s=request.samples_per_s,
    )  # fmt: skip
    placed = PlacedData(
        scan=scan, contents=contents, striping=striping, cost=cost, num_epochs=request.num_epochs
    )  # fmt: skip
    return PlacementAdvice(
        request=request, site=site, scan=scan, contents=contents, striping=striping, cost=cost,
        findings=placement_findings(placed),
    )  # fmt: skip
