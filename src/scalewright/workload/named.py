"""A model as people name it: from the catalogue, by its shape, or by its configuration file."""

from __future__ import annotations

from pathlib import Path

from scalewright.catalog.library import Catalog
from scalewright.workload.model import ModelSpec, from_catalog, from_shape


def resolve_model(library: Catalog, name: str) -> ModelSpec:
    """A model by catalogue name, by shape (`layers=..`), or by the path of its config.json."""
    if "=" in name:
        return from_shape(name)
    path = Path(name)
    if path.is_dir() and (path / "config.json").exists():
        path = path / "config.json"
    if path.suffix == ".json":
        from scalewright.workload.huggingface.config import from_hf_config

        return from_hf_config(path)
    return from_catalog(library.model(name))
