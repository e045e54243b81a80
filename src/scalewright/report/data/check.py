"""The check of a pipeline in the terminal: what it would do, and which input files have faults."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path

from scalewright import units
from scalewright.data.text.execution.check import LARGE_COMPRESSED_BYTES, PipelineCheck
from scalewright.data.text.reading.documents import CUT_OFF, NO_TEXT, NOT_JSON, REPAIRED, TOO_LONG
from scalewright.data.text.reading.file_check import FileProblem
from scalewright.observe.findings.words import counted
from scalewright.report.console import answer_console

MOST_FILES = 20
"""With faults, that are printed; --json has all."""
WHAT_RUN_DOES = {
    CUT_OFF: "a run takes what is before the damage", NOT_JSON: "a run keeps such lines aside",
    NO_TEXT: "a run keeps them aside; the key is text_field in [read]", TOO_LONG: "a run keeps their beginnings aside",
    REPAIRED: "a run puts replacement characters there", "empty file": "a run passes over it",
}  # fmt: skip


def print_check(checked: PipelineCheck) -> None:
    console = answer_console()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    say(f"{checked.path}: {' -> '.join(checked.steps)}")
    tasks = "" if checked.num_tasks is None else f", in {counted(checked.num_tasks, 'task')}"
    say(f"{counted(checked.num_files, 'file')}, {_bytes(checked.input_bytes)}{tasks}")
    for words in _notes(checked):
        say(f"note: {words}")
    problems = checked.files.problems
    if not problems:
        say(f"nothing is wrong; run it: scalewright data run {checked.path}")
        return
    by_file = [(name, list(group)) for name, group in groupby(problems, key=lambda one: one.file)]
    say(f"{counted(len(by_file), 'file')} with faults:")
    for name, group in by_file[:MOST_FILES]:
        for one in group:
            say(f"  {_short(name)}: {_words(one)}")
    if len(by_file) > MOST_FILES:
        say(f"  and {len(by_file) - MOST_FILES:,} more; --json names all")
    if checked.num_tasks is None:
        say("data run refuses these inputs: repair the files, or leave them out of [read] paths")


def _short(name: str) -> str:
    """The path as people type it in this folder."""
    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else name


def _notes(checked: PipelineCheck) -> list[str]:
    notes, cores = [], len(os.sched_getaffinity(0))
    largest, num_tasks = checked.largest_compressed_bytes, checked.num_tasks
    if largest > checked.chunk_bytes and num_tasks is not None and num_tasks < cores:
        notes.append(
            f"{counted(num_tasks, 'task')} for the {cores} cores of this machine: compressed files are not cut; "
            "give as many files as workers"
        )
    if largest > LARGE_COMPRESSED_BYTES:
        notes.append(
            f"the largest compressed file has {_bytes(largest)} and is one task, which one worker reads alone: cut it "
            "into files of about 1 GB"
        )
    if checked.files.num_not_drained:
        notes.append(
            f"{counted(checked.files.num_not_drained, 'compressed file')} ({_bytes(checked.files.not_drained_bytes)}) "
            "looked at only in the beginning; --whole reads to the end"
        )
    return notes


def _words(one: FileProblem) -> str:
    detail = f" ({one.detail})" if one.detail else ""
    where = one.place.removeprefix(one.file).strip()
    count = f": {one.num_seen:,} seen, the first {where}" if where else ""
    effect = f"; {WHAT_RUN_DOES[one.problem]}" if one.problem in WHAT_RUN_DOES else ""
    return f"{one.problem}{count}{detail}{effect}"


def _bytes(size: float) -> str:
    return units.format(size, units.BYTES) if size else "0 B"
