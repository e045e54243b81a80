"""Documents that could not be used, kept aside as JSON lines: where each was read, why, and its beginning."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import IO, Any, Self

from scalewright import units
from scalewright.data.text.execution.work_files import whole_file

HEAD_BYTES = 4096
"""What is kept of content that no document could be made of. The rest stays where it was read."""
MOST_CONTENT_BYTES = 64 * units.MIB
"""Of such beginnings in one task; the lines after it only say where and why."""


class AsideFile:
    """Written as documents come, so that it takes no memory; without a document, no file is made."""

    def __init__(self, path: Path) -> None:
        self.path, self.num = path, 0
        self._content_bytes = 0
        self._stack = contextlib.ExitStack()
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def add_unread(self, reason: str, *, file: str, origin: str, byte: int | None, content: bytes, num_bytes: int,
                   error: str) -> None:  # fmt: skip
        """Content of a file that is no document. Only its beginning is kept."""
        kept = content[:HEAD_BYTES] if self._content_bytes < MOST_CONTENT_BYTES else b""
        self._content_bytes += len(kept)
        self._add(
            {"reason": reason, "error": error, "file": file, "byte": byte, "origin": origin, "num_bytes": num_bytes,
             "text": kept.decode("utf-8", errors="backslashreplace"), "is_whole": bool(kept) and len(kept) == num_bytes}
        )  # fmt: skip

    def add_document(self, reason: str, *, error: str, callable_name: str, text: str, url: str, origin: str) -> None:
        """A document that was read, as a whole."""
        self._add(
            {"reason": reason, "error": error, "callable": callable_name, "origin": origin, "url": url, "text": text,
             "is_whole": True}
        )  # fmt: skip

    def _add(self, record: dict[str, Any]) -> None:
        if self._file is None:
            hidden = self._stack.enter_context(whole_file(self.path))
            self._file = self._stack.enter_context(hidden.open("w", encoding="utf-8"))
        self._file.write(json.dumps(record) + "\n")
        self.num += 1
