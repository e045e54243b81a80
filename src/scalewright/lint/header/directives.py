"""The directives of a script: which `#SBATCH` lines sbatch reads, and which it skips without a message.

Source: Slurm, src/sbatch/opt.c: get_argument and _opt_batch_script. sbatch reads a line if it begins with `#SBATCH`
exactly and is above the first line that is neither blank nor a comment. Quotes group words, nothing is expanded, and
`#` begins a comment. getopt reads the options up to the first stray word; there sbatch refuses the script.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from scalewright.lint.header.options import SBATCH_TABLE, Argument, Option, read_options

MAGIC = "#SBATCH"
MAGIC_WORDS = (MAGIC, "#SLURM")
"""sbatch reads the second one too, with a warning."""
_LOOKS_LIKE = re.compile(
    r"^[ \t]*(?:(?:#[ \t#!]*|!#|//[ \t]*)(?:SBATCH|SBACTH|SBTACH|SBTCH|SBATC|SBACH|SABTCH|BATCH)|SBATCH|"
    r"#(?:sbatch|Sbatch|SBatch|sBATCH))[ \t]+--?[A-Za-z]"
)
"""`sbatch` in small letters is the command, not a misspelt directive, unless it follows the mark directly."""
_MAYBE = re.compile(r"SB|SA|BATCH|SLURM|sb|batch", re.ASCII)
"""Matches every line that is or looks like a directive; it skips most lines of a body quickly."""
_DISABLED = re.compile(r"^[ \t]*#[# \t]*#SBATCH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """One option of the header, or a line that looks like a directive but is not one."""

    name: str
    """Long form without dashes, such as `time`; empty if the line holds no readable option."""
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
    """Why Slurm ignores it; empty: Slurm does not."""
    problem: str = ""
    """Why sbatch refuses the script because of it; empty: sbatch accepts it."""
    is_known: bool = True
    component: int = 0
    """Number of the component of a heterogeneous job."""
    ignored: str = ""
    """Kind of `why_ignored`: `malformed`, `disabled` (`##SBATCH`, switched off on purpose), `late`, `stray` (after a
    stray word) or `overridden`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Everything that sbatch reads of a script."""

    directives: tuple[Directive, ...]
    end_line: int
    """Number of the first line that is not a comment; without one, one past the last line."""
    stray: tuple[Argument, ...]
    """First word of each component that is not an option: sbatch refuses the script, older releases stop reading."""
    errors: tuple[tuple[int, str], ...]
    """Line and reason of each error for which sbatch refuses the script: an unclosed quote, a lone colon."""
    num_components: int


class _RefusedError(Exception):
    """sbatch refuses a whole line of the header."""


def _arguments(line: str, text: str, offset: int) -> list[Argument]:
    """Words after the magic word, as get_argument in Slurm's opt.c splits them.

    It differs from a shell in three ways: a backslash does not protect a space, a `#` ends the line even inside a word,
    and an empty word in quotes ends the line. `line` is `text` with placeholders masked.
    """
    arguments: list[Argument] = []
    place = 0
    while place < len(line):
        if line[place].isspace():
            place += 1
            continue
        if line[place] == ":":
            raise _RefusedError("a lone colon is only allowed on the command line")
        begin = place
        place, word, is_comment = _word(line, text, place)
        if word:
            arguments.append(Argument(text=word, start=offset + begin, end=offset + place))
        if not word or is_comment:
            break
    return arguments


_SPACED_PLACEHOLDER = re.compile(r"\{ +[A-Za-z]\w* +\}")


def _word(line: str, text: str, place: int) -> tuple[int, str, bool]:
    """Where the word ends, its text without quotes, and whether a comment follows."""
    characters: list[str] = []
    quote = ""
    is_escaped = False
    while place < len(line) and (quote or not line[place].isspace()):
        char = line[place]
        if is_escaped:
            is_escaped = False
            characters.append(text[place])
        elif char == "\\":
            is_escaped = True
        elif quote and char == quote:
            quote = ""
        elif quote:
            characters.append(text[place])
        elif char in "\"'":
            quote = char
        elif char == "#":
            return place, "".join(characters), True
        else:
            characters.append(text[place])
        place += 1
    if quote:
        raise _RefusedError(f"the quote {quote} is never closed")
    return place, "".join(characters), False


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeaderLine:
    """One line of the script, with and without the placeholders of a template."""

    number: int
    text: str
    masked: str
    offset: int

    def words(self) -> tuple[list[Argument], bool] | None:
        """Words of a directive, and whether it begins another component of the job; None: it is not a directive."""
        masked = self.masked if self.masked == self.text else self.masked.lstrip()  # Jinja removes its statements
        magic = next((word for word in MAGIC_WORDS if masked.startswith(word)), None)
        if magic is None:
            return None
        begin = len(self.masked) - len(masked) + len(magic)
        options = self.masked[begin:]
        separator = re.search("hetjob|packjob", options, re.IGNORECASE)
        if separator:
            options = options[: separator.start()] + " " * len(separator.group()) + options[separator.end() :]
        return _arguments(_joined(options), _joined(self.text[begin:]), self.offset + begin), separator is not None


def _joined(text: str) -> str:
    """`{ name }`, which somebody fills in, as one word of the same length."""
    return _SPACED_PLACEHOLDER.sub(lambda match: match.group().replace(" ", "_"), text) if "{ " in text else text


def read_header(lines: tuple[str, ...], masked: tuple[str, ...], starts: tuple[int, ...]) -> Header:
    """Every directive of a script. `lines` have no line ends, `masked` hides placeholders, `starts` holds offsets."""
    components: list[list[Argument]] = [[]]
    ignored: list[Directive] = []
    errors: list[tuple[int, str]] = []
    end_line = len(lines) + 1
    for number, (text, hidden) in enumerate(zip(lines, masked, strict=True), start=1):
        if not text or (number > end_line and not _MAYBE.search(text)):
            continue
        line = _HeaderLine(number=number, text=text, masked=hidden, offset=starts[number - 1])
        try:
            words = line.words()
        except _RefusedError as error:
            if number < end_line:
                errors.append((number, str(error)))
            continue
        if words is None:
            bare = hidden.strip()
            if bare and not bare.startswith("#"):
                end_line = min(end_line, number)
            if _LOOKS_LIKE.match(text) and not _is_usage(text):
                ignored.append(_malformed(line))
        elif number > end_line:
            ignored.extend(_late(line, words[0], lines[end_line - 1], end_line))
        else:
            if words[1]:
                components.append([])
            components[-1].extend(words[0])
    directives, stray = _read_components(components, lines, starts)
    return Header(
        directives=tuple(sorted((*directives, *ignored), key=lambda directive: (directive.line, directive.column))),
        end_line=end_line,
        stray=tuple(stray),
        errors=tuple(errors),
        num_components=len(components),
    )


def _is_usage(text: str) -> bool:
    """Whether a comment shows how to call sbatch: words follow the options, such as the name of a script."""
    words = text.partition("sbatch" if "sbatch" in text else "BATCH")[2].partition(" #")[0].split()
    options, num_read = read_options([Argument(text=word, start=0, end=0) for word in words], SBATCH_TABLE)
    return num_read < len(words) and (not options or not words[num_read].startswith("-"))


def _malformed(line: _HeaderLine) -> Directive:
    """A line that looks like a directive, but that sbatch reads as a comment."""
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
        why_ignored=f"a directive begins with {MAGIC} exactly, so this line is a comment",
        is_known=first.is_known if first else False,
        ignored="disabled" if _DISABLED.match(text) else "malformed",
    )


def _late(line: _HeaderLine, words: list[Argument], command: str, command_line: int) -> list[Directive]:
    """Directives after the first command."""
    why = f"sbatch stops reading directives at the first command, line {command_line}: {command.strip()[:40]}"
    options, _ = read_options(words, SBATCH_TABLE)
    return [
        _directive(option, line.number, line.text, line.offset, why_ignored=why, ignored="late") for option in options
    ]


def _directive(
    option: Option, number: int, line: str, offset: int, *, component: int = 0, why_ignored: str = "", ignored: str = ""
) -> Directive:
    return Directive(
        name=option.name,
        value=option.value,
        line=number,
        column=option.start - offset + 1,
        end_column=option.end - offset + 1,
        start=option.start,
        end=option.end,
        raw=line,
        is_effective=not ignored,
        why_ignored=why_ignored,
        problem=option.problem,
        is_known=option.is_known,
        component=component,
        ignored=ignored,
    )


def _read_components(
    components: list[list[Argument]], lines: tuple[str, ...], starts: tuple[int, ...]
) -> tuple[list[Directive], list[Argument]]:
    """The directives of all components of a job, and the first stray word of each component that has one."""
    directives: list[Directive] = []
    stray: list[Argument] = []
    for component, words in enumerate(components):
        options, num_read = read_options(words, SBATCH_TABLE)
        unread = words[num_read:]
        lost: list[Option] = []
        if unread:
            stray.append(unread[0])
            lost, _ = read_options([word for word in unread if word.text.startswith("-")], SBATCH_TABLE)
        last = {option.name: option.start for option in options}
        for option in (*options, *lost):
            why, kind = "", ""
            if option in lost:
                kind = "stray"
                why = f"sbatch stops at the stray word {unread[0].text!r}, line {bisect_right(starts, unread[0].start)}"
            elif last[option.name] != option.start:
                kind = "overridden"
                why = f"a later --{option.name}, line {bisect_right(starts, last[option.name])}, wins"
            number = bisect_right(starts, option.start)
            line, offset = lines[number - 1], starts[number - 1]
            directives.append(
                _directive(option, number, line, offset, component=component, why_ignored=why, ignored=kind)
            )
    return directives, stray
