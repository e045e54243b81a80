"""Versioned JSON documents, written atomically.

Every document starts with `schema: "scalewright.KIND/MAJOR"`. A reader refuses another kind or a newer major.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

from scalewright.errors import DocumentError, shortened
from scalewright.records.plain_file import MOST_TEXT_BYTES, read_plain
from scalewright.records.terminal_text import escaped_in_json
from scalewright.records.unit_keys import check_keys

KINDS_WITH_UNITS = ("plan", "prediction")
"""Kinds whose values are checked by their keys: they travel between people and machines, and are computed with."""
MOST_LINKS = 40
"""As many links in a row as Linux follows."""
_SCHEMA = re.compile(r"^scalewright\.([a-z-]+)/(\d+)$")


def schema(kind: str, major: int = 1) -> str:
    return f"scalewright.{kind}/{major}"


def document(kind: str, body: dict[str, Any], *, major: int = 1) -> dict[str, Any]:
    """`body` with its schema as the first key."""
    return {"schema": schema(kind, major), **body}


def to_json(doc: dict[str, Any]) -> str:
    return escaped_in_json(json.dumps(doc, indent=2, allow_nan=False, ensure_ascii=False)) + "\n"


def write_document(path: Path, doc: dict[str, Any]) -> None:
    """Write `doc`; readers see the old file or the whole new one, never a part."""
    if _SCHEMA.match(str(doc.get("schema", ""))) is None:
        raise AssertionError(f"a document needs a schema first, not {doc.get('schema')!r}")
    write_text(path, to_json(doc))


def write_text(path: Path, text: str, *, is_synced: bool = True) -> None:
    write_bytes(path, text.encode("utf-8"), is_synced=is_synced)


def write_bytes(path: Path, content: bytes, *, is_synced: bool = True, mode: int | None = None) -> None:
    """Write a file that somebody named. Nothing else in the project renames onto a path that a user gives.

    A plain file is replaced as a whole. If `path` is a link, its target is replaced and the link stays. A character
    device, a pipe and an open file such as /dev/stdout are written to. A folder, a socket and a disk are refused.
    `is_synced` may be false for what can be made again: it is whole for every process, but may be lost with the power.
    `mode` is the file's permissions; None: those of a new file.
    """
    try:
        stream = _open_stream(path)
        if stream is None:
            target = Path(os.path.realpath(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    except OSError as error:
        raise DocumentError(f"{path}: cannot be written: {error.strerror}; choose another place") from error
    if stream is not None:
        with os.fdopen(stream, "wb") as file:
            file.write(content)
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if is_synced:
                os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask if mode is None else mode)  # noqa: PTH101  mkstemp makes 0600, which colleagues could not read
        os.replace(temporary, target)  # noqa: PTH105  Path.replace says the same with one more object
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _open_stream(path: Path) -> int | None:
    """An open handle of `path` if it names what must be written in place; None for a plain file, new or old."""
    number = _own_descriptor(path)
    if number is not None:
        for printed in (sys.stdout, sys.stderr):
            printed.flush()  # what was printed before comes first
        return os.dup(number)
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISCHR(kind) or stat.S_ISFIFO(kind):
        return os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    _check_kind(path, kind)
    return None


def _check_kind(path: Path, kind: int) -> None:
    if stat.S_ISDIR(kind):
        raise DocumentError(f"{path}: is a folder; name a file in it")
    if stat.S_ISSOCK(kind) or stat.S_ISBLK(kind):
        name = "socket" if stat.S_ISSOCK(kind) else "block device"
        raise DocumentError(f"{path}: is a {name}, not a file; name another file")


def _own_descriptor(path: Path) -> int | None:
    """The number of an open file of this process that `path` names, such as 1 for /dev/stdout.

    It is written as it is open: a second opening would cut the file that the shell redirects to.
    """
    own = f"/proc/{os.getpid()}/fd"
    for _ in range(MOST_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) == own:
            return int(path.name)
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return None


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be written, before the work whose results it will hold. Leaves no trace."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise DocumentError(f"{path}: cannot be written: {error.strerror}; choose another place") from error
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # it could not be made, or somebody else has put something there
                folder.rmdir()


def check_file(path: Path) -> None:
    """Refuse a file that cannot be written, before the work whose result it will hold. Leaves no trace."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    except OSError as error:
        raise DocumentError(f"{path}: cannot be written: {error.strerror}; choose another place") from error
    _check_kind(path, kind)
    if stat.S_ISREG(kind) and _own_descriptor(path) is None:
        check_folder(Path(os.path.realpath(path)).parent)


def read_document(path: Path, kind: str, *, major: int = 1) -> dict[str, Any]:
    """The JSON document at `path`, if it is a `kind` of at most this major version."""
    doc = parse_json(read_text(path), where=str(path))
    if not isinstance(doc, dict):
        raise DocumentError(f"{path}: holds a {type(doc).__name__}, not a document with a schema")
    check_schema(doc.get("schema"), kind, major=major, where=str(path))
    if kind in KINDS_WITH_UNITS:
        check_keys(doc, where=str(path))
    return doc


def check_schema(value: object, kind: str, *, major: int = 1, where: str) -> None:
    match = _SCHEMA.match(value) if isinstance(value, str) else None
    if match is None:
        raise DocumentError(f'{where}: schema is {value!r}; a {kind} starts with schema = "{schema(kind, major)}"')
    actual_kind, actual_major = match.group(1), int(match.group(2))
    if actual_kind != kind:
        raise DocumentError(f"{where}: is a {actual_kind} document, where a {kind} was expected")
    if actual_major > major:
        raise DocumentError(
            f"{where}: has {kind} version {actual_major}, newer than {major}, the newest this release reads; upgrade"
        )


def read_text(path: Path, *, most_bytes: int = MOST_TEXT_BYTES) -> str:
    """The text of an ordinary file of at most `most_bytes`."""
    try:
        return read_plain(path, most_bytes=most_bytes).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError as error:
        raise DocumentError(f"{path}: no such file; check the path") from error
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from error


def parse_json(text: str, *, where: str, is_line: bool = False) -> Any:
    """The JSON value in `text`; with `is_line`, `where` already names the line."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=finite_float, parse_int=_finite_int)
    except json.JSONDecodeError as error:
        place = f", column {error.colno}" if is_line else f", line {error.lineno}, column {error.colno}"
        raise DocumentError(f"{where}{place}: is not valid JSON: {error.msg}") from error
    except ValueError as error:
        raise DocumentError(f"{where}: is not valid JSON: {error}") from error
    except RecursionError as error:
        raise DocumentError(f"{where}: is nested too deeply to be one of our documents") from error


MOST_DIGITS = 300
"""Of a number: every one of them is finite as a float."""


def finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shortened(text)} is not a finite number")
    return value


def _finite_int(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"{shortened(text)} is too large for a number")
    return int(text)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number JSON allows")


def digest(body: object) -> str:
    """A short stable id of a resolved input: the same content gives the same id on any machine."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
