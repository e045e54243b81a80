"""Names of the files in a folder that a class stands for, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class _HasPath(Protocol):
    @property
    def path(self) -> Path: ...


class NamedPath:
    """A file or folder of fixed name: if a class has `logs = NamedPath("logs")`, its `x.logs` is `x.path / "logs"`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: _HasPath, owner: type[object]) -> Path:
        return folder.path / self._name
