"""Texts of machines and schedulers as one file, read the way a user's file is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening
from scalewright.observe.readers.reading import read_evidence


def read_text(text: str, name: str = "job.log") -> Evidence:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(text, encoding="utf-8")
        return read_evidence([path])


def happenings(text: str, *kinds: str) -> list[Happening]:
    return [one for one in read_text(text).happenings if not kinds or one.kind in kinds]
