"""Rules about shell text that does not do what it seems to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.rule import Context, Hit, at, at_span, insert_text, replace_span, rule
from scalewright.lint.script import Script

_CUT_OFF = re.compile(r"\\\r?\n[ \t]*#")
_TRAILING = re.compile(r"\\[ \t]+\r?\n")
_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"


@rule(
    id="backslash-space",
    severity="error",
    title="A space after the backslash ends the command",
    why="Only a backslash at the very end of a line continues the command. With a space after it the command ends "
    "there, and its options on the next line become a command of their own.",
    source="bash(1), QUOTING; a common mistake in published recipes",
    before=_HEAD + "python train.py \\ \n  --epochs 3\n",
    after=_HEAD + "python train.py \\\n  --epochs 3\n",
    needs_header=False,
)
def backslash_space(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_shell or not _TRAILING.search(script.text):
        return
    for number, line in script.code_lines():
        match = re.search(r"(?<!\\)(?:\\\\)*\\([ \t]+)$", line)
        following = script.lines[number] if number < len(script.lines) else ""
        if match is None or not following.strip() or "#" in line[: match.start()].split(" ")[0]:
            continue
        start = script.starts[number - 1] + match.start(1)
        end = start + len(match.group(1))
        yield Hit(
            line=number,
            column=match.start(1),
            end_column=match.end(1) + 1,
            message="the command ends here: there is a space after the backslash",
            next_step="remove the space",
            fix=replace_span(start, end, "", title="remove the space", is_safe=False),
        )


@rule(
    id="comment-breaks-command",
    severity="error",
    title="A comment inside a command ends it",
    why="A comment between continued lines ends the command. The shell runs the options below it as a command of "
    "their own, which it does not find.",
    source="bash(1), COMMENTS and QUOTING",
    before=_HEAD + "python train.py \\\n  --epochs 3 \\\n  # --lr 0.1 \\\n  --batch 8\n",
    after=_HEAD + "# --lr 0.1\npython train.py \\\n  --epochs 3 \\\n  --batch 8\n",
    needs_header=False,
)
def comment_breaks_command(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_shell:
        return
    if not _CUT_OFF.search(script.text):
        return
    comments = {comment.line for comment in script.comments}
    for number, line in script.code_lines():
        if not re.search(r"(?<!\\)(?:\\\\)*\\$", line) or number >= len(script.lines):
            continue
        below = number + 1
        while below <= len(script.lines) and below in comments and script.lines[below - 1].lstrip().startswith("#"):
            below += 1
        if below == number + 1 or below > len(script.lines):
            continue
        if re.match(r"^\s*(?:--?[A-Za-z]|\$\{?\w+[\[@\]]*\}?\s*\\?$|\"\$\{?\w+)", script.lines[below - 1]):
            yield Hit(
                line=number + 1,
                message=f"the command ends before this comment, and line {below} runs as a command of its own",
                next_step="move the comment above the command",
            )


@rule(
    id="copy-without-target",
    severity="error",
    title="A copy has no target",
    why="rsync with one path only lists its files, and cp and mv refuse it. Nothing is copied.",
    source="rsync(1): usages with just one SRC argument and no DEST argument list the source files",
    before=_HEAD + "rsync -a $SCRATCH/data\npython train.py\n",
    after=_HEAD + "rsync -a $SCRATCH/data $TMPDIR/\npython train.py\n",
    needs_header=False,
)
def copy_without_target(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.commands:
        texts = list(command.texts)
        start = next((i for i, text in enumerate(texts) if text in _COPIES), None)
        if start is None or (start > 0 and command.name != "srun") or command.origin or command.within.is_pipeline:
            continue
        words = command.words[start + 1 :]
        takes_value = {"-e", "-t", "--rsh", "--target-directory", "--exclude", "--include", "--files-from", "-f"}
        paths, skip = [], False
        for word in words:
            if skip or word.text.startswith("-"):
                skip = not skip and word.text in takes_value
                continue
            paths.append(word)
        options = [word.text for word in words if word.text.startswith("-")]
        if len(paths) != 1 or any(o.startswith(("-t", "--target", "--list", "--help", "--version")) for o in options):
            continue
        if re.search(r"(?<!\$)\{|[*\[]|\$\{?[@*]", paths[0].text) or (not paths[0].is_quoted and " " in paths[0].text):
            continue  # the shell may make several words of it
        message = f"{texts[start]} gets one path, so it copies nothing"
        yield at(script, command, message, next_step="write the source and the target")


_COPIES = ("rsync", "cp", "mv")


@rule(
    id="assignment-to-value",
    severity="error",
    title="An assignment begins with a dollar sign",
    why="$NAME=value is no assignment: the shell runs a program that is called like the value. The variable stays as "
    "it is.",
    source="bash(1), PARAMETERS",
    before=_HEAD + "$TMPDIR=/scratch/me\npython train.py\n",
    after=_HEAD + "TMPDIR=/scratch/me\npython train.py\n",
    needs_header=False,
)
def assignment_to_value(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.commands:
        first = command.words[0] if command.words else None
        if first is None or command.origin or first.is_quoted or first.is_expanded:
            continue
        written = script.text[first.start : first.end]
        match = re.match(r"\$\{?([A-Za-z_]\w*)\}?=", written)
        if match is None:
            continue
        message = f"this runs a program, and {match.group(1)} keeps its value"
        yield at(script, first, message, next_step=f"write {match.group(1)}=... without $")


@rule(
    id="assignment-with-spaces",
    severity="error",
    title="An assignment with spaces is a command",
    why="NAME = value runs a program called NAME. The variable stays empty.",
    source="bash(1), PARAMETERS",
    before=_HEAD + "EPOCHS = 3\npython train.py --epochs $EPOCHS\n",
    after=_HEAD + "EPOCHS=3\npython train.py --epochs $EPOCHS\n",
    needs_header=False,
)
def assignment_with_spaces(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.commands:
        if len(command.words) < 2 or command.words[1].text != "=" or command.words[1].is_quoted or command.origin:
            continue
        if (
            not re.fullmatch(r"[A-Za-z_]\w*", command.words[0].text)
            or command.words[0].is_expanded
            or command.name == "test"
        ):
            continue
        first, sign = command.words[0], command.words[1]
        third = command.words[2] if len(command.words) == 3 else None
        fix = None
        if third is not None and not command.redirects and first.end <= sign.start < third.start:  # of broken text not
            fix = replace_span(first.end, third.start, "=", title="remove the spaces", is_safe=False)
        message = f"this runs a program called {first.text}"
        advice = f"write {first.text}=... without spaces"
        yield at_span(script, first.start, sign.end, message, next_step=advice, fix=fix)


_GLUED = re.compile(
    r"(?:^|[;&|(]|\b(?:if|elif|while|until|then|else|do)\b|!)[ \t]*"
    r"(\[[ \t]+(?:\$\{?#|[^\[\]\n#;|&]){0,200}[^\s\[\]]\])(?=[ \t]*(?:$|;|&&|\|\|))"
)
"""`[ ... word]` as a command: `]` is part of the last word."""
_ENDS_GLUED = re.compile(r"\[[ \t][^\[\]\n]*[^\s\[\]]\]")


@rule(
    id="bracket-glued",
    severity="error",
    title="A blank is missing before ]",
    why="[ is a command, and ] is its last word. Without a blank before it the command ends with: missing `]', which "
    "counts as false, whatever was tested.",
    source="bash(1), SHELL BUILTIN COMMANDS, test: the last argument must be ]",
    before=_HEAD + 'if [ -z "$1"]; then\n  exit 1\nfi\npython train.py $1\n',
    after=_HEAD + 'if [ -z "$1" ]; then\n  exit 1\nfi\npython train.py $1\n',
    needs_header=False,
)
def bracket_glued(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_shell or not _ENDS_GLUED.search(script.text):
        return
    for number, line in script.code_lines():
        match = _GLUED.search(line) if "[ " in line else None
        if match is None:
            continue
        end = match.end(1) - 1
        place = script.starts[number - 1] + end
        yield Hit(
            line=number,
            column=match.start(1) + 1,
            end_column=match.end(1) + 1,
            message="the test always fails: ] needs a blank before it",
            next_step="write a blank before ]",
            fix=insert_text(place, " ", title="add the blank", is_safe=False),
        )
