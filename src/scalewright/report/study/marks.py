"""What is in doubt about a measured point, as a letter in a table and a sentence below it."""

from __future__ import annotations

from scalewright.records.study_report import DoubtSort, PointRow, StudyReport

MARKS: dict[DoubtSort, str] = {"busy": "b", "unsteady": "u", "throttled": "t", "fewer": "f", "outside": "o"}
TITLE = "mark"


def marks(row: PointRow) -> str:
    """One letter for every sort of doubt; empty where all was well."""
    found = {doubt.sort for doubt in row.doubts}
    return "".join(letter for sort, letter in MARKS.items() if sort in found)


def is_marked(report: StudyReport) -> bool:
    return any(row.doubts for row in report.points)


def mark_notes(report: StudyReport) -> list[str]:
    """What each letter of the table means, with the reason of the first point that has it."""
    found: dict[DoubtSort, list[str]] = {}
    for row in report.points:
        for doubt in row.doubts:
            found.setdefault(doubt.sort, []).append(doubt.text)
    notes = []
    for sort, letter in MARKS.items():
        texts = found.get(sort, [])
        if texts:
            more = f" (so or alike: {len(texts)} points)" if len(texts) > 1 else ""
            notes.append(f"{letter}: {texts[0]}{more}")
    return notes


def doubt_words(row: PointRow) -> str:
    """The sorts in one cell, for files that other programs read."""
    return ", ".join(dict.fromkeys(doubt.sort for doubt in row.doubts))
