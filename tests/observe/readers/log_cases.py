"""Logs for tests of readers: texts become files, and files evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact
from scalewright.observe.readers.reading import read_evidence


def read_text(folder: Path, text: str | bytes, name: str = "job.log") -> Evidence:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_evidence([path])


def assert_step(fact: StepFact, **fields: object) -> None:
    """Fields of a report, numbers to one in a million."""
    for name, expected in fields.items():
        value = getattr(fact, name)
        if isinstance(expected, float):
            assert value == pytest.approx(expected, rel=1e-6, nan_ok=True), name
        else:
            assert value == expected, name
