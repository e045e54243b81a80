"""Choices of kernels that were timed, kept in files, so that the next process starts without timing them again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from scalewright.errors import ScalewrightError
from scalewright.records.documents import to_json, write_document
from scalewright.records.types import EnvName

SCHEMA = "scalewright.kernel-choice/1"


def choice_folder() -> Path:
    """`kernel_choices` in $SCALEWRIGHT_HOME, else in the XDG cache folder."""
    chosen = os.environ.get(EnvName.HOME)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(chosen) if chosen else caches / "scalewright") / "kernel_choices"


class KeptChoices:
    """One file for each key. A file that is damaged or of another key is as good as none, and is written again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: dict[str, Any]) -> dict[str, Any]:
        """The choice for this key; empty if none is kept."""
        try:
            document = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        is_own = isinstance(document, dict) and document.get("schema") == SCHEMA and document.get("key") == key
        choice = document.get("choice") if is_own else None
        return choice if isinstance(choice, dict) else {}

    def write(self, key: dict[str, Any], choice: dict[str, Any]) -> None:
        """Keep a choice. Where the folder cannot be written, nothing is kept and the next process times again."""
        with contextlib.suppress(ScalewrightError, OSError):
            write_document(self._path(key), {"schema": SCHEMA, "key": key, "choice": choice})

    def _path(self, key: dict[str, Any]) -> Path:
        return self.folder / f"{hashlib.sha256(to_json(key).encode()).hexdigest()[:32]}.json"
