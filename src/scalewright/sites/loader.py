"""Finding and loading site profiles: in the folders `sites/` of the catalogue's search path, then in the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from scalewright.catalog.facts import link_sources
from scalewright.catalog.library import folded, search_path
from scalewright.errors import DocumentError, UnknownNameError
from scalewright.records.documents import read_text
from scalewright.records.loader import load_toml, parse_toml
from scalewright.sites.types import Site

KIND = "site"


def packaged_sites() -> Path:
    return Path(str(resources.files("scalewright.sites") / "profiles"))


def site_files(extra: Path | None = None) -> dict[str, Path]:
    """Paths of profiles by id. If two have the same id, the first on the search path is used."""
    path_of: dict[str, Path] = {}
    for folder in (*(root / "sites" for root in search_path(extra)[:-1]), packaged_sites()):
        for path in sorted(folder.glob("*.toml")):
            path_of.setdefault(path.stem, path)
    return path_of


def load_site(path: Path) -> Site:
    site = load_toml(path, Site, kind=KIND, prepare=link_sources)
    if site.id != path.stem:
        raise DocumentError(f"{path}: id is {site.id!r}; it must be the file's name, {path.stem!r}")
    return site


def readable_sites(extra: Path | None = None) -> tuple[list[Site], list[str]]:
    """Profiles that load, and why others do not: a broken file must not hide its neighbours."""
    sites, problems = [], []
    for _, path in sorted(site_files(extra).items()):
        try:
            sites.append(load_site(path))
        except DocumentError as error:
            problems.append(str(error))
    return sites, problems


def find_site(name: str, extra: Path | None = None) -> Site:
    """The profile whose id or alias is `name`. An unknown name is an error that lists the nearest names."""
    files = site_files(extra)
    if name in files:
        return load_site(files[name])
    for path in files.values():
        if folded(name) in {folded(alias) for alias in (path.stem, *_aliases(path))}:
            return load_site(path)
    raise UnknownNameError("site", name, files, hint="see: scalewright site show")


def site_of_system(system: str, extra: Path | None = None) -> Site | None:
    """The profile of the cluster that a catalogued system is; None if there is none."""
    files = site_files(extra)
    for path in sorted(files.values(), key=lambda path: path.stem != system):  # most often it has the same name
        try:
            if parse_toml(read_text(path), where=str(path)).get("system") == system:
                return load_site(path)
        except DocumentError:
            continue  # one broken profile must not break the search
    return None


def _aliases(path: Path) -> list[str]:
    """Aliases of a profile. The file is not validated: one broken profile must not break the search for another."""
    try:
        aliases = parse_toml(read_text(path), where=str(path)).get("aliases", [])
    except DocumentError:
        return []
    return [a for a in aliases if isinstance(a, str)] if isinstance(aliases, list) else []
