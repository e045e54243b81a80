"""Every reader. A new one is one line here."""

from __future__ import annotations

from scalewright.observe.readers.reader import FolderReader, LineReader, Reader
from scalewright.observe.readers.run_folder import RunFolderReader


def whole_readers() -> list[Reader]:
    """Readers of whole files, new ones for every call."""
    return []


def folder_readers() -> list[FolderReader]:
    """Readers of folders that are one thing."""
    return [RunFolderReader()]


def line_readers() -> list[LineReader]:
    """Readers of lines, new ones for every log."""
    return []
