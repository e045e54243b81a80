"""The header of a script, read as sbatch reads it: which `#SBATCH` lines count, and which it passes over in silence.

Source: Slurm, src/sbatch/opt.c: get_argument and _opt_batch_script. A line counts if it begins with `#SBATCH` exactly
and stands before the first line that is neither blank nor a comment; quotes group, nothing is expanded, `#` begins a
comment; getopt reads the options up to the first stray word, at which sbatch refuses the script.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from scalewright.lint.options import SBATCH_TABLE, Argument, Option, read_options

MAGIC = "#SBATCH"
MAGIC_WORDS = (MAGIC, "#SLURM")
"""The second is read with a complaint."""
_LOOKS_LIKE = re.compile(
    r"^[ \t]*(?:(?:#[ \t#!]*|!#|//[ \t]*)(?i:SBATCH|SBACTH|SBTACH|SBTCH|SBATC|SBACH|SABTCH|BATCH)|SBATCH)"
    r"[ \t]+--?[A-Za-z]"
)
"""In small letters and without a mark it is the command."""
_MAYBE = re.compile(r"SB|SA|BATCH|SLURM|sb|batch", re.ASCII)
"""In every line that can be, or look like, a directive: most of a body is passed over quickly."""
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
    """First word of each part that is no option: sbatch refuses the script, older releases stop reading there."""
    errors: tuple[tuple[int, str], ...]
    """Line and reason of what makes sbatch refuse the script: an unmatched quote, a lone colon."""
    num_components: int


class _RefusedError(Exception):
    """What makes sbatch refuse a header line as a whole."""


def _arguments(line: str, text: str, offset: int) -> list[Argument]:
    """Words of what follows the magic word, as get_argument in Slurm's opt.c finds them.

    Three of its ways differ from a shell's: a backslash does not keep a space, a `#` ends the line inside a word too,
    and a word that is empty once its quotes are gone ends the line. `line` is `text` with placeholders masked.
    """
    found: list[Argument] = []
    place = 0
    while place < len(line):
        if line[place].isspace():
            place += 1
            continue
        if line[place] == ":":
            raise _RefusedError("a lone colon belongs on the command line, not in a directive")
        begin = place
        place, word, is_comment = _word(line, text, place)
        if word:
            found.append(Argument(text=word, start=offset + begin, end=offset + place))
        if not word or is_comment:
            break
    return found


def _word(line: str, text: str, place: int) -> tuple[int, str, bool]:
    """Where the word ends, what it says, and whether a comment follows."""
    said: list[str] = []
    quote = ""
    is_escaped = False
    while place < len(line) and (quote or not line[place].isspace()):
        char = line[place]
        if is_escaped:
            is_escaped = False
            said.append(text[place])
        elif char == "\\":
            is_escaped = True
        elif quote and char == quote:
            quote = ""
        elif quote:
            said.append(text[place])
        elif char in "\"'":
            quote = char
        elif char == "#":
            return place, "".join(said), True
        else:
            said.append(text[place])
        place += 1
    if quote:
        raise _RefusedError(f"the quote {quote} is never closed")
    return place, "".join(said), False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    number: int
    text: str
    masked: str
    offset: int

    def words(self) -> tuple[list[Argument], bool] | None:
        """Words of a directive and whether it begins another part of the job; None: it is no directive."""
        masked = self.masked if self.masked == self.text else self.masked.lstrip()  # a template's statement goes away
        magic = next((word for word in MAGIC_WORDS if masked.startswith(word)), None)
        if magic is None:
            return None
        begin = len(self.masked) - len(masked) + len(magic)
        rest = self.masked[begin:]
        separator = re.search("hetjob|packjob", rest, re.IGNORECASE)
        if separator:
            rest = rest[: separator.start()] + " " * len(separator.group()) + rest[separator.end() :]
        return _arguments(rest, self.text[begin:], self.offset + begin), separator is not None


def read_header(lines: tuple[str, ...], masked: tuple[str, ...], starts: tuple[int, ...]) -> Header:
    """Every directive of a script; lines have no ends, `masked` hides placeholders, `starts` are offsets."""
    parts: list[list[Argument]] = [[]]
    ignored: list[Directive] = []
    errors: list[tuple[int, str]] = []
    end_line = len(lines) + 1
    for number, (text, hidden) in enumerate(zip(lines, masked, strict=True), start=1):
        if number > end_line and not _MAYBE.search(text):
            continue
        line = _Line(number=number, text=text, masked=hidden, offset=starts[number - 1])
        try:
            read = line.words()
        except _RefusedError as error:
            if number < end_line:
                errors.append((number, str(error)))
            continue
        if read is None:
            bare = hidden.strip()
            if bare and not bare.startswith("#"):
                end_line = min(end_line, number)
            if _LOOKS_LIKE.match(text):
                ignored.append(_malformed(line))
        elif number > end_line:
            ignored.extend(_late(line, read[0], lines[end_line - 1], end_line))
        else:
            if read[1]:
                parts.append([])
            parts[-1].extend(read[0])
    return _assemble(parts, ignored, errors, lines, starts, end_line)


def _malformed(line: _Line) -> Directive:
    """A line that its author took for a directive."""
    text, number, offset = line.text, line.number, line.offset
    begin = len(text) - len(text.lstrip())
    words = text.split()
    at = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    name, _, value = words[at].lstrip("-").partition("=") if at < len(words) else ("", "", "")
    options, _ = read_options([Argument(text=w, start=0, end=0) for w in words[at:]], SBATCH_TABLE)
    first = options[0] if options else None
    return Directive(
        name=first.name if first else name,
        value=first.value if first else value or None,
        line=number,
        column=begin + 1,
        end_column=len(text.rstrip()) + 1,
        start=offset + begin,
        end=offset + len(text.rstrip()),
        raw=text,
        is_effective=False,
        why_ignored=f"only lines that begin with {MAGIC} exactly are directives; this one is a comment",
        is_known=first.is_known if first else False,
        ignored="disabled" if _DISABLED.match(text) else "malformed",
    )


def _late(line: _Line, words: list[Argument], command: str, command_line: int) -> list[Directive]:
    why = f"sbatch stops reading directives at the first command, line {command_line}: {command.strip()[:40]}"
    options, _ = read_options(words, SBATCH_TABLE)
    return [
        _directive(option, line.number, line.text, line.offset, is_effective=False, why_ignored=why, ignored="late")
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
    parts: list[list[Argument]],
    ignored: list[Directive],
    errors: list[tuple[int, str]],
    lines: tuple[str, ...],
    starts: tuple[int, ...],
    end_line: int,
) -> Header:
    found: list[Directive] = []
    stray: list[Argument] = []
    for component, words in enumerate(parts):
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
                    f"line {bisect_right(starts, rest[0].start)}",
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
        num_components=len(parts),
    )
