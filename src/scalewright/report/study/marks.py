"""Doubts about a measured point: a letter in the table, and a sentence below it."""

from __future__ import annotations

from scalewright.records.study_report import DoubtSort, PointRow, StudyReport

MARKS: dict[DoubtSort, str] = {"busy": "b", "unsteady": "u", "throttled": "t", "fewer": "f", "outside": "o"}
TITLE = "mark"


def marks(row: PointRow) -> str:
    """One letter for every sort of doubt; empty without a doubt."""
    sorts = {doubt.sort for doubt in row.doubts}
    return "".join(letter for sort, letter in MARKS.items() if sort in sorts)


def is_marked(report: StudyReport) -> bool:
    return any(row.doubts for row in report.points)


def mark_notes(report: StudyReport) -> list[str]:
    """The meaning of each letter in the table: the doubt of the first point that has it."""
    texts_by_sort: dict[DoubtSort, list[str]] = {}
    for row in report.points:
        for doubt in row.doubts:
            texts_by_sort.setdefault(doubt.sort, []).append(doubt.text)
    notes = []
    for sort, letter in MARKS.items():
        texts = texts_by_sort.get(sort, [])
        if texts:
            more = f" (this or similar: {len(texts)} points)" if len(texts) > 1 else ""
            notes.append(f"{letter}: {texts[0]}{more}")
    return notes


def doubt_words(row: PointRow) -> str:
    """The sorts of doubt in one cell, for files that other programs read."""
    return ", ".join(dict.fromkeys(doubt.sort for doubt in row.doubts))
