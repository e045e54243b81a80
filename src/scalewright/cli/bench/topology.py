"""`scalewright bench topology`: what is on this node, how it hangs together, and what is badly placed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder

PictureFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")]


def run(plot: PictureFile = None, as_json: AsJson = False, catalog: CatalogFolder = None) -> None:
    """Show NUMA nodes, GPUs, network ports and links of this node. Exit 1: something is badly placed."""
    from dataclasses import asdict

    from scalewright.catalog.library import open_catalog
    from scalewright.here.placement_rules import catalogued_links, placement_findings
    from scalewright.here.topology import read_topology
    from scalewright.records.documents import document, to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.cluster.topology import print_topology
    from scalewright.report.cluster.topology_plot import plot_topology
    from scalewright.report.console import answer_console
    from scalewright.report.figure_file import check_plot

    if plot is not None:
        check_plot(plot)
    topology = read_topology()
    findings = placement_findings(topology, num_links=catalogued_links(open_catalog(catalog)))
    if plot is not None:
        plot_topology(plot, topology, findings)
        typer.echo(f"drawn in {plot}", err=True)
    if as_json:
        body = topology.as_dict() | {"findings": [asdict(finding) for finding in findings]}
        typer.echo(to_json(document("topology", body)), nl=False)
    else:
        print_topology(answer_console(), topology, findings)
    if any(finding.severity != "info" for finding in findings):
        raise typer.Exit(ExitCode.NO)
