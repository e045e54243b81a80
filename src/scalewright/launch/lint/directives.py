"""The header of a script, read as sbatch reads it: which `#SBATCH` lines count, and which it passes over in silence.

Source: Slurm, src/sbatch/opt.c: get_argument and _opt_batch_script. A line counts if it begins with `#SBATCH` exactly
and stands before the first line that is neither blank nor a comment; words follow shell-like quoting without
expansion; an unquoted `#` at a word's place begins a comment; options are read by getopt until the first stray word.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from scalewright.launch.lint.options import SBATCH_TABLE, Argument, Option, read_options

MAGIC = "#SBATCH"
_LOOKS_LIKE = re.compile(
    r"^[ \t]*(?:#[ \t#!]*|!#|//[ \t]*|)(?:SBATCH|SBACTH|SBTACH|SBTCH|SBATC|SBACH|SABTCH|BATCH)[ \t]+--?[A-Za-z]",
    re.IGNORECASE,
)
_DISABLED = re.compile(r"^[ \t]*#[# \t]*#SBATCH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """One option of the header, or one line that looks like one and is not."""

    name: str
    """Long form without dashes, such as `time`; empty where the line holds no option that can be read."""
    value: str | None
    line: int
    """From 1."""
    column: int
    """From 1, of the option itself."""
    end_column: int
    """One past the option's last character."""
    start: int
    """Offset in the text of the option."""
    end: int
    raw: str
    """The whole line without its end."""
    is_effective: bool
    why_ignored: str = ""
    """Why Slurm does not act on it; empty: it does."""
    problem: str = ""
    """Why sbatch refuses the script because of it."""
    is_known: bool = True
    component: int = 0
    """Number of the part of a heterogeneous job."""
    ignored: str = ""
    """Kind of `why_ignored`: `malformed`, `disabled` (`##SBATCH`, as people switch one off), `late`, `stray` (after a
    stray word) or `overridden`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    directives: tuple[Directive, ...]
    end_line: int
    """Number of the first line that is no comment; one past the last line where there is none."""
    stray: tuple[Argument, ...]
    """Words that are no options: getopt stops there."""
    errors: tuple[tuple[int, str], ...]
    """Line and reason of what makes sbatch refuse the script: an unmatched quote, a lone colon."""
    num_components: int


class _QuoteError(Exception):
    pass


def _arguments(line: str, offset: int) -> list[Argument]:
    """Words of what follows the magic word. Raises _QuoteError at an unmatched quote."""
    found: list[Argument] = []
    place = 0
    while place < len(line):
        if line[place].isspace():
            place += 1
            continue
        text: list[str] = []
        begin = place
        quote = ""
        comment = False
        while place < len(line) and (quote or not line[place].isspace()):
            char = line[place]
            if char == "\\":
                place += 1
                text.append(line[place : place + 1])
            elif quote:
                if char == quote:
                    quote = ""
                else:
                    text.append(char)
            elif char in "\"'":
                quote = char
            elif char == "#":
                comment = True
                break
            else:
                text.append(char)
            place += 1
        if quote:
            raise _QuoteError(f"the quote {quote} is never closed")
        if place > begin:
            found.append(Argument(text="".join(text), start=offset + begin, end=offset + min(place, len(line))))
        if comment:
            break
    return found


def read_header(lines: tuple[str, ...], starts: tuple[int, ...], masked: str) -> Header:
    """Every directive of a script; `lines` have no ends, `starts` are their offsets, `masked` hides placeholders."""
    arguments: dict[int, list[Argument]] = {0: []}
    ignored: list[Directive] = []
    errors: list[tuple[int, str]] = []
    component = 0
    end_line = len(lines) + 1
    for number, line in enumerate(lines, start=1):
        if not line.startswith(MAGIC):
            bare = line.strip()
            if number < end_line and bare and not bare.startswith("#"):
                end_line = number
                if not _LOOKS_LIKE.match(line):
                    continue
            if _LOOKS_LIKE.match(line):
                ignored.append(_malformed(number, line, starts[number - 1]))
            continue
        rest = masked[starts[number - 1] + len(MAGIC) : starts[number - 1] + len(line)]
        hetjob = re.search("hetjob|packjob", rest, re.IGNORECASE)
        if hetjob:
            rest = rest[: hetjob.start()] + " " * 6 + rest[hetjob.end() :]
        try:
            words = _arguments(rest, starts[number - 1] + len(MAGIC))
        except _QuoteError as error:
            if number < end_line:
                errors.append((number, str(error)))
            continue
        if number > end_line:
            ignored.extend(_late(number, line, starts[number - 1], words, lines[end_line - 1], end_line))
            continue
        if hetjob:
            component += 1
            arguments[component] = []
        arguments[component].extend(words)
    return _assemble(arguments, ignored, errors, lines, starts, end_line)


def _malformed(number: int, line: str, offset: int) -> Directive:
    """A line that its author took for a directive."""
    begin = len(line) - len(line.lstrip())
    words = line.split()
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    name, _, value = words[at].lstrip("-").partition("=") if at < len(words) else ("", "", "")
    options, _ = read_options([Argument(text=w, start=0, end=0) for w in words[at:]], SBATCH_TABLE)
    first = options[0] if options else None
    return Directive(
        name=first.name if first else name,
        value=first.value if first else value or None,
        line=number,
        column=begin + 1,
        end_column=len(line.rstrip()) + 1,
        start=offset + begin,
        end=offset + len(line.rstrip()),
        raw=line,
        is_effective=False,
        why_ignored=f"only lines that begin with {MAGIC} exactly are directives; this one is a comment",
        is_known=first.is_known if first else False,
        ignored="disabled" if _DISABLED.match(line) else "malformed",
    )


def _late(
    number: int, line: str, offset: int, words: list[Argument], command: str, command_line: int
) -> list[Directive]:
    why = f"sbatch stops reading directives at the first command, line {command_line}: {command.strip()[:40]}"
    options, _ = read_options(words, SBATCH_TABLE)
    return [
        _directive(option, number, line, offset, is_effective=False, why_ignored=why, ignored="late")
        for option in options
    ]


def _directive(option: Option, number: int, line: str, offset: int, **more: object) -> Directive:
    return Directive(
        name=option.name,
        value=option.value,
        line=number,
        column=option.start - offset + 1,
        end_column=option.end - offset + 1,
        start=option.start,
        end=option.end,
        raw=line,
        problem=option.problem,
        is_known=option.is_known,
        **more,  # type: ignore[arg-type]
    )


def _assemble(
    arguments: dict[int, list[Argument]],
    ignored: list[Directive],
    errors: list[tuple[int, str]],
    lines: tuple[str, ...],
    starts: tuple[int, ...],
    end_line: int,
) -> Header:
    found: list[Directive] = []
    stray: list[Argument] = []
    for component, words in arguments.items():
        options, num_read = read_options(words, SBATCH_TABLE)
        rest = words[num_read:]
        lost: list[Option] = []
        if rest:
            stray.append(rest[0])
            lost, _ = read_options([word for word in rest if word.text.startswith("-")], SBATCH_TABLE)
        last = {option.name: option.start for option in options}
        for option in (*options, *lost):
            number = bisect_right(starts, option.start)
            more: dict[str, object] = {"component": component, "is_effective": True}
            if option in lost:
                more |= {
                    "is_effective": False,
                    "ignored": "stray",
                    "why_ignored": f"sbatch stops at the stray word {rest[0].text!r}, "
                    f"line {bisect_right(starts, rest[0].start)}, and reads no option after it",
                }
            elif last[option.name] != option.start:
                more |= {
                    "is_effective": False,
                    "ignored": "overridden",
                    "why_ignored": f"a later --{option.name}, line {bisect_right(starts, last[option.name])}, wins",
                }
            found.append(_directive(option, number, lines[number - 1], starts[number - 1], **more))
    everything = sorted((*found, *ignored), key=lambda directive: (directive.line, directive.column))
    return Header(
        directives=tuple(everything),
        end_line=end_line,
        stray=tuple(stray),
        errors=tuple(errors),
        num_components=len(arguments),
    )
