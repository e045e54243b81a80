"""`scalewright data advise`: where data should lie for a site and a number of ranks, and how to read it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder

DataFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set.", show_default=False)]
SiteName = Annotated[str, typer.Option(help="Profile of the cluster; here: the cluster you are on.")]
RankCount = Annotated[int, typer.Option("--ranks", metavar="N", help="Ranks that read, one per GPU.")]
EpochCount = Annotated[int, typer.Option("--epochs", help="Passes over the data, for the cost of a copy.")]
TrainingRate = Annotated[
    float | None, typer.Option("--samples-per-s", help="What one rank trains on a second, for the data wait.")
]
SampleSize = Annotated[str, typer.Option(metavar="SIZE", help="Of a sample; default: what the set says.")]
StorageName = Annotated[str, typer.Option("--storage", help="Catalogue entry of the file system; default: the site's.")]
MeasuredRun = Annotated[
    Path | None, typer.Option("--measured", metavar="RUN", help="Run of bench storage there: its rates are used.")
]


def run(
    folder: DataFolder,
    site: SiteName = "here",
    ranks: RankCount = 8,
    epochs: EpochCount = 10,
    samples_per_s: TrainingRate = None,
    sample_size: SampleSize = "",
    storage: StorageName = "",
    measured: MeasuredRun = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Advise on striping, copies on the nodes, loaders and small files. Exit 1: something should change."""
    from scalewright import units
    from scalewright.catalog.library import open_catalog
    from scalewright.launch.placement.advice import PlacementRequest, advise_placement
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.cluster.placement import print_placement
    from scalewright.report.console import answer_console
    from scalewright.sites.current import site_named

    request = PlacementRequest(
        folder=folder, num_ranks=ranks, num_epochs=epochs, samples_per_s=samples_per_s, storage=storage,
        measured=measured, sample_bytes=units.parse(sample_size, units.BYTES) if sample_size else None,
    )  # fmt: skip
    advice = advise_placement(
        open_catalog(catalog), site_named(site, catalog), request,
        on_progress=lambda num: typer.echo(f"looked at {num:,} entries", err=True) if num % 50_000 == 0 else None,
    )  # fmt: skip
    if as_json:
        typer.echo(to_json(advice.document()), nl=False)
    else:
        print_placement(answer_console(), advice)
    if any(finding.severity != "info" for finding in advice.findings):
        raise typer.Exit(ExitCode.NO)
