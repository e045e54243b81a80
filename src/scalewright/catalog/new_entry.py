"""Templates of the entries that people write themselves: a system, a fabric, a price, a site."""

from __future__ import annotations

import re
from datetime import date
from importlib import resources
from pathlib import Path
from string import Template

from scalewright.errors import ConfigError, UnknownNameError
from scalewright.records.documents import write_text

FOLDERS = {"system": "systems", "fabric": "fabrics", "price": "prices", "site": "sites"}
"""Folder of each kind of entry that has a template."""
EXAMPLE = "scalewright catalog new system my-cluster"
ID = re.compile(r"[a-z0-9][a-z0-9.+-]*")


def new_entry_text(kind: str, entry_id: str, *, today: date, accelerator: str | None = None) -> str:
    """A commented entry that validates; its values are examples.

    A price with the name of a system is for that system: `accelerator` is then the system's own.
    """
    template = resources.files("scalewright.catalog") / "templates" / f"{kind}.toml"
    system = '# system = "leonardo"' if accelerator is None else f'system = "{entry_id}"'
    return Template(template.read_text(encoding="utf-8")).substitute(
        ID=entry_id, TODAY=today.isoformat(), ACCELERATOR=accelerator or "h100-sxm", SYSTEM=system
    )


def write_new_entry(
    kind: str, entry_id: str, *, folder: Path, today: date, accelerator: str | None = None
) -> Path:  # fmt: skip
    """Write the template into a folder of the catalogue's search path. An existing file stays."""
    if kind not in FOLDERS:
        raise UnknownNameError("template", kind, FOLDERS, hint=f"choose {', '.join(FOLDERS)}")
    if not ID.fullmatch(entry_id):
        raise ConfigError(f"name {entry_id!r}: use lower case, digits, dots and dashes, such as my-cluster")
    path = folder / FOLDERS[kind] / f"{entry_id}.toml"
    if path.exists():
        raise ConfigError(f"{path} exists: edit it, or choose another name")
    write_text(path, new_entry_text(kind, entry_id, today=today, accelerator=accelerator))
    return path
