"""Find and load site profiles: the same search path as the catalogue, in its folders `sites/`, then the package."""

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
    """Profiles by id; one found earlier on the search path hides one of the same id found later."""
    found: dict[str, Path] = {}
    for folder in (*(place / "sites" for place in search_path(extra)[:-1]), packaged_sites()):
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def load_site(path: Path) -> Site:
    site = load_toml(path, Site, kind=KIND, prepare=link_sources)
    if site.id != path.stem:
        raise DocumentError(f"{path}: id is {site.id!r}; it must be the file's name, {path.stem!r}")
    return site


def find_site(name: str, extra: Path | None = None) -> Site:
    """The profile whose id or alias is `name`; otherwise an error that lists the nearest."""
    files = site_files(extra)
    if name in files:
        return load_site(files[name])
    for path in files.values():
        if folded(name) in {folded(alias) for alias in (path.stem, *_aliases(path))}:
            return load_site(path)
    raise UnknownNameError("site", name, files, hint="see: scalewright site show")


def _aliases(path: Path) -> list[str]:
    """Aliases without validating the file: a broken neighbour must not break a lookup."""
    try:
        found = parse_toml(read_text(path), where=str(path)).get("aliases", [])
    except DocumentError:
        return []
    return [a for a in found if isinstance(a, str)] if isinstance(found, list) else []
