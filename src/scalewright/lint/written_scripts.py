"""Job scripts that a script writes: the text of `sbatch <<EOF`, or of `cat > job.sbatch <<EOF`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scalewright.lint.script import Script, parse_script
from scalewright.lint.shell.syntax import Heredoc

_WRITERS = ("sbatch", "cat", "tee")
_REFERENCE = re.compile(r"(?<!\\)\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_OUTER = re.compile(
    r"(?<!\\)\$\(\([^()\n]{0,200}\)\)|(?<!\\)\$\{?([A-Za-z_]\w*)[^}\s]{0,40}\}?|(?<!\\)\$\([^()\n]{0,200}\)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenScript:
    """A job script inside a heredoc."""

    script: Script
    line: int
    """Line of the outer script that holds its first line."""


def written_scripts(script: Script) -> Iterator[WrittenScript]:
    """The job scripts that a script writes in heredocs, as far as they are known."""
    for doc in script.heredocs:
        if "#SBATCH" not in doc.text or doc.command is None or doc.command.name not in _WRITERS:
            continue
        text = _text(script, doc)
        if text.startswith("#!"):
            inner = replace(parse_script(text, script.path, script.overrides), made_folders=_made_folders(script))
            yield WrittenScript(script=inner, line=doc.line)


def _made_folders(script: Script) -> tuple[str, ...]:
    """The operands of the outer script's own mkdir: it runs before sbatch does."""
    made = (word for command in script.called("mkdir") if command.parent is None for word in command.arguments)
    return tuple(script.resolve(word.text) for word in made)


def _text(script: Script, doc: Heredoc) -> str:
    """The text that the job gets: tabs of `<<-` removed, and known variables of the outer script put in."""
    mark = script.text[: doc.start].rpartition("<<")[2]
    text = re.sub(r"^\t+", "", doc.text, flags=re.MULTILINE) if mark.startswith("-") else doc.text
    if doc.is_quoted:
        return text
    lines = [_expanded(script, line) for line in text.split("\n")]
    return re.sub(r"\\([$`\\])", r"\1", "\n".join(lines))


def _expanded(script: Script, line: str) -> str:
    """A line as the outer shell writes it; what it expands to in a directive is a placeholder if it is unknown."""

    def value(match: re.Match[str]) -> str:
        words = script.body.variables.get(match.group(1) or match.group(2))
        return match.group() if words is None else " ".join(word.text for word in words)

    line = _REFERENCE.sub(value, line)
    return _OUTER.sub("{VALUE}", line) if line.startswith("#SBATCH") else line
