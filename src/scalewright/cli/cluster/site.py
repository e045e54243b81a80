"""`scalewright site`: show profiles of clusters, make one from the current scheduler, and compare the two."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, warn_left_out

app = typer.Typer(help="Profiles of clusters: show, detect, check.", no_args_is_help=True, rich_markup_mode=None)
SiteName = Annotated[str, typer.Argument(metavar="SITE", help="Name of a profile.", show_default=False)]


@app.command("show")
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[SITE]", help="One profile; default: all.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Show all profiles, or one with the source of each value."""
    from scalewright.records.documents import document, to_json
    from scalewright.report.cluster.site import print_site, print_sites
    from scalewright.report.console import answer_console
    from scalewright.sites.loader import find_site, readable_sites

    chosen, problems = readable_sites(catalog) if name is None else ([find_site(name, catalog)], [])
    warn_left_out(problems)
    if as_json:
        body = [site.model_dump(mode="json", by_alias=True) for site in chosen]
        typer.echo(to_json(document("sites", {"sites": body})), nl=False)
    elif name is None:
        print_sites(answer_console(), chosen)
    else:
        print_site(answer_console(), chosen[0])


@app.command("detect")
def detect(
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Store it under this name in your folder.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a profile of this cluster from sinfo, scontrol and sacctmgr. Exit 3: no scheduler answers."""
    from scalewright.catalog.library import home
    from scalewright.records.documents import document, to_json, write_text
    from scalewright.sites.current import cluster_of_user, detected_site
    from scalewright.sites.detected_profile import check_name

    requested_id = check_name(name) if name else ""
    cluster = cluster_of_user()
    site_id = requested_id or "".join(c if c.isalnum() else "-" for c in cluster.name).strip("-").lower() or "here"
    text, site = detected_site(cluster, site_id)
    if name:
        path = home() / "sites" / f"{site_id}.toml"
        write_text(path, text)
        typer.echo(f"wrote {path}", err=True)
    if as_json:
        typer.echo(to_json(document("sites", {"sites": [site.model_dump(mode="json", by_alias=True)]})), nl=False)
    else:
        typer.echo(text, nl=False)


@app.command("check")
def check(name: SiteName, as_json: AsJson = False, catalog: CatalogFolder = None) -> None:
    """Compare a profile, or `here`, with this cluster. Exit 1: they differ; 3: no scheduler answers."""
    from dataclasses import asdict

    from scalewright.records.documents import document, to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.cluster.site import print_differences
    from scalewright.report.console import answer_console
    from scalewright.sites.current import HERE, cluster_of_user, site_of
    from scalewright.sites.detected_profile import differences
    from scalewright.sites.loader import find_site

    profile = (
        None if name == HERE else find_site(name, catalog)
    )  # a wrong name is refused before the scheduler is asked
    cluster = cluster_of_user()
    site = profile or site_of(HERE, cluster, catalog)
    findings = differences(site, cluster)
    if as_json:
        body = {"site": site.id, "cluster": cluster.name, "findings": [asdict(finding) for finding in findings]}
        typer.echo(to_json(document("site-check", body)), nl=False)
    else:
        print_differences(answer_console(), site, cluster.name, findings)
    raise typer.Exit(ExitCode.NO if findings else ExitCode.YES)
