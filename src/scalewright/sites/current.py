"""The current site (`here`): the profile with this cluster's name, else one detected from its scheduler."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path

from scalewright.catalog.facts import link_sources
from scalewright.errors import DocumentError, EnvironmentFailedError
from scalewright.records.loader import parse_toml, validate
from scalewright.sites.cluster import Cluster, ask_cluster
from scalewright.sites.detected_profile import detected, to_toml
from scalewright.sites.loader import find_site, load_site, site_files
from scalewright.sites.types import Site

HERE = "here"


def site_named(name: str, extra: Path | None = None) -> Site:
    """A profile by name. Only `here` runs the scheduler's commands."""
    if name != HERE:
        return find_site(name, extra)
    try:
        return site_of(name, cluster_of_user(), extra)
    except EnvironmentFailedError as error:
        raise EnvironmentFailedError(f"{error}; or name a site: --site NAME (see scalewright site show)") from error


def site_of(name: str, cluster: Cluster, extra: Path | None = None) -> Site:
    """A profile by name. `here` is the profile with this cluster's name, else a detected one."""
    if name != HERE:
        return find_site(name, extra)
    for path in site_files(extra).values():
        try:
            site = load_site(path)
        except DocumentError:
            continue  # one broken profile must not break the search
        if cluster.name and cluster.name in {name.lower() for name in site.clusters}:
            return site
    return detected_site(cluster, HERE)[1]


def detected_site(cluster: Cluster, site_id: str) -> tuple[str, Site]:
    """A profile made from the scheduler's output, as TOML text and as a Site."""
    where = "the detected profile"
    text = to_toml(detected(cluster, site_id, today=datetime.now(UTC).date()))
    return text, validate(link_sources(parse_toml(text, where=where))[0], Site, where=where)


def cluster_of_user() -> Cluster:
    return ask_cluster(getpass.getuser())
