"""`scalewright site`: profiles of clusters, shown, made from the scheduler at hand, and held against it."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder

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
    """Show all profiles, or one with where each value comes from."""
    from scalewright.records.documents import document, to_json
    from scalewright.report.cluster.site import print_site, print_sites
    from scalewright.report.console import answer_console
    from scalewright.sites.loader import find_site, load_site, site_files

    files = site_files(catalog)
    chosen = [load_site(path) for _, path in sorted(files.items())] if name is None else [find_site(name, catalog)]
    if as_json:
        body = [site.model_dump(mode="json", by_alias=True) for site in chosen]
        typer.echo(to_json(document("sites", {"sites": body})), nl=False)
    elif name is None:
        print_sites(answer_console(), chosen)
    else:
        print_site(answer_console(), chosen[0])


@app.command("detect")
def detect(
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Write it to the user's folder.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a profile of the cluster we stand on, from sinfo, scontrol and sacctmgr. Exit 3: no scheduler answers."""
    from scalewright.catalog.library import home
    from scalewright.records.documents import document, to_json, write_text
    from scalewright.sites.current import cluster_of_user, detected_site
    from scalewright.sites.detect import check_name

    wanted = check_name(name) if name else ""
    cluster = cluster_of_user()
    site_id = wanted or "".join(c if c.isalnum() else "-" for c in cluster.name).strip("-").lower() or "here"
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
    """Hold a profile, or `here`, against the cluster we stand on. Exit 1: they differ; 3: no scheduler answers."""
    from dataclasses import asdict

    from scalewright.records.documents import document, to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.cluster.site import print_differences
    from scalewright.report.console import answer_console
    from scalewright.sites.current import HERE, cluster_of_user, site_of
    from scalewright.sites.detect import differences
    from scalewright.sites.loader import find_site

    known = None if name == HERE else find_site(name, catalog)
    cluster = cluster_of_user()
    site = known or site_of(HERE, cluster, catalog)
    found = differences(site, cluster)
    if as_json:
        body = {"site": site.id, "cluster": cluster.name, "findings": [asdict(finding) for finding in found]}
        typer.echo(to_json(document("site-check", body)), nl=False)
    else:
        print_differences(answer_console(), site, cluster.name, found)
    raise typer.Exit(ExitCode.NO if found else ExitCode.YES)
