"""Read whatever a user points at: files and folders become one Evidence. Content never raises."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scalewright.observe.evidence.evidence import Evidence, SourceFact
from scalewright.observe.readers.attempts import number_attempts
from scalewright.observe.readers.completing import complete_steps
from scalewright.observe.readers.line_pass import LinePass
from scalewright.observe.readers.reader import FolderReader, Reader
from scalewright.observe.readers.registry import folder_readers, line_readers, whole_readers
from scalewright.observe.readers.source import Head, Source

MOST_FILES = 5000
"""Files of a folder that are read."""
MOST_DEPTH = 8
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, EOFError, OSError)
"""What content that is not as it claims to be can raise in a reader; it becomes a problem of the source."""
LEAST_SURE = 0.5
"""Below it no whole-file reader takes a file."""
SKIPPED_FOLDERS = {".git", "__pycache__", "node_modules", ".venv", "checkpoints", "wandb-cache"}
SKIPPED_SUFFIXES = {
    ".pt", ".pth", ".safetensors", ".bin", ".npy", ".npz", ".so", ".o", ".pyc", ".distcp", ".arrow", ".parquet",
}  # fmt: skip
"""Weights and compiled code: large, and they say nothing. Flight-recorder dumps have other names or none."""
_ROTATED = re.compile(r"^(?P<stem>.+?)\.(?P<number>\d{1,4})(?P<packed>\.(?:gz|bz2|xz))?$")
_PACKED = re.compile(r"\.(?:gz|bz2|xz)$")


def read_evidence(paths: Sequence[Path]) -> Evidence:
    """Everything that these files and folders say. What cannot be read is listed with its reason."""
    into = Evidence()
    # Facts hold no cycles, and there are many: looking for cycles again and again would take a sixth of the time.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        _read_paths(paths, into)
    finally:
        if was_collecting:
            gc.enable()
    number_attempts(into)
    complete_steps(into)
    return into


def _read_paths(paths: Sequence[Path], into: Evidence) -> None:
    for path in paths:
        if not path.exists():
            into.sources.append(SourceFact(file=str(path), kind="missing", problem="there is no such file"))
            continue
        if not path.is_dir() and not path.is_file():
            into.sources.append(SourceFact(file=str(path), kind="unknown", problem="neither a file nor a folder"))
            continue
        files = list(_walk(path, into)) if path.is_dir() else [path]
        if path.is_dir() and not files:
            into.notes.append(f"{path} has no files.")
        taken = _read_folders(files, into)
        read_files((file for file in files if file not in taken), into)


def _read_folders(files: Sequence[Path], into: Evidence) -> set[Path]:
    """Folders that are one thing, such as our run directories; the files that nobody else has to read."""
    taken: set[Path] = set()
    for folder in sorted({file.parent for file in files}):
        for reader in folder_readers():
            if folder not in taken and reader.sees(folder):
                taken |= _read_folder(reader, folder, into)
    return taken


def _read_folder(reader: FolderReader, folder: Path, into: Evidence) -> set[Path]:
    before = _num_facts(into)
    problem = ""
    taken: set[Path] = set()
    try:
        taken = reader.read(folder, into)
    except UNREADABLE as error:
        problem = f"broken {reader.kind}: {type(error).__name__} {error}"
    num_facts = _num_facts(into) - before
    into.sources.append(SourceFact(file=str(folder), kind=reader.kind, num_facts=num_facts, problem=problem))
    return taken


def read_files(files: Iterable[Path], into: Evidence) -> None:
    """Read each file by the reader that its content calls for; rotated logs as one, the oldest part first."""
    for group in rotated_groups(files):
        lines = LinePass(line_readers())
        has_text = False
        for path in group:
            has_text = read_file(Source(path, str(path)), into, lines) or has_text
        if has_text:
            lines.end(into)


def read_file(source: Source, into: Evidence, lines: LinePass) -> bool:
    """Read one file; whether it went through the line pass."""
    head = source.head()
    if not head.raw:
        problem = "; ".join(source.problems) or "the file is empty"
        into.sources.append(
            SourceFact(file=source.name, kind="unknown" if source.problems else "empty", problem=problem)
        )
        return False
    reader = _surest(head)
    if reader is not None:
        _read_whole(reader, source, into)
        return False
    if not head.is_text:
        into.sources.append(SourceFact(file=source.name, kind="unknown", problem="no text, and no known binary form"))
        return False
    lines.read(source, into)
    return True


def _surest(head: Head) -> Reader | None:
    best: Reader | None = None
    most = LEAST_SURE
    for reader in whole_readers():
        sure = reader.sees(head)
        if sure > most:
            best, most = reader, sure
    return best


def _read_whole(reader: Reader, source: Source, into: Evidence) -> None:
    before = _num_facts(into)
    try:
        reader.read(source, into)
    except UNREADABLE as error:
        source.problem(f"broken {reader.kind}: {type(error).__name__} {error}")
    into.sources.append(SourceFact(
        file=source.name, kind=reader.kind, num_lines=source.num_lines, num_facts=_num_facts(into) - before,
        problem="; ".join(source.problems),
    ))  # fmt: skip


def _num_facts(into: Evidence) -> int:
    rooms = (
        into.steps, into.happenings, into.device_samples, into.jobs, into.collectives, into.transports, into.rank_times,
        into.flight_dumps,
    )  # fmt: skip
    return sum(len(room) for room in rooms)


def rotated_groups(files: Iterable[Path]) -> list[list[Path]]:
    """Files in order of their names, `log.2.gz`, `log.1`, `log` as one group: a higher number is older."""
    every = sorted(set(files))
    stems = {str(path) for path in every} | {_PACKED.sub("", str(path)) for path in every}
    groups: dict[str, list[tuple[int, Path]]] = {}
    for path in every:
        match = _ROTATED.match(path.name)
        base = str(path.with_name(match["stem"])) if match else str(path)
        if match and base in stems:
            groups.setdefault(base, []).append((-int(match["number"]), path))
        else:
            groups.setdefault(_PACKED.sub("", str(path)), []).append((0, path))
    return [[path for _, path in sorted(group)] for group in groups.values()]


def _walk(folder: Path, into: Evidence) -> Iterator[Path]:
    """Plain files below a folder, without links, weights and compiled code."""
    num = 0
    for root, folders, names in os.walk(folder, followlinks=False):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS) if depth < MOST_DEPTH else []
        for name in sorted(names):
            path = Path(root, name)
            if path.is_symlink() or not path.is_file() or path.suffix in SKIPPED_SUFFIXES:
                continue
            num += 1
            if num > MOST_FILES:
                into.notes.append(f"{folder} has more than {MOST_FILES} files: only the first ones were read.")
                return
            yield path
