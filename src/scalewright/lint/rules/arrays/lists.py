"""Rules about the list that the tasks of an array pick their items from: a bash array, or the lines of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.lint.header.directives import Directive
from scalewright.lint.job_facts import code_of
from scalewright.lint.rule import Context, Hit, ScriptFix, at, replace_text, rule
from scalewright.lint.rules.arrays.tasks import array_size
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Assignment, Word

_ID = "SLURM_ARRAY_TASK_ID"
_ITEM = re.compile(r"\$\{(\w{1,60})\[([^\]\n]{1,80})\]\}")
_OF_ID = re.compile(rf"{_ID}(?:([+-])(\d{{1,6}}))?")
_LINE_OF = re.compile(
    r"\bsed\s+(?:-n\s+)?(?:-e\s+)?[\"']?(?P<sed>\$(?:\{\w+\}|\w+|\(\([^()\n]{1,60}\)\)))(?:\{?p;?\}?|q;d)[\"']?"
    r"(?:\s+(?P<sedfile>[^\s|;)]+))?"
    r"|\bawk\s+[\"']NR\s?==\s?[\"']?(?P<awk>\$(?:\{\w+\}|\w+|\(\([^()\n]{1,60}\)\)))[^\n]{0,40}?[\"']"
    r"(?:\s+(?P<awkfile>[^\s|;)]+))?"
    r"|\bhead\s+-n?\s?[\"']?(?P<head>\$(?:\{\w+\}|\w+|\(\([^()\n]{1,60}\)\)))[\"']?(?:\s+(?P<headfile>[^\s|;)]+))?"
    r"\s{0,4}\|\s{0,4}tail\s+-n?\s?1\b"
)
_MAX_LIST_BYTES = 1_000_000
_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --output=logs/%A_%a.out\n"
_LIST = 'lrs=(1e-4 3e-4 1e-3)\npython train.py --lr "${lrs[$SLURM_ARRAY_TASK_ID]}"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Access:
    """A place where a task picks its item: the task's index plus `shift`, in a list that counts from `first`."""

    name: str
    shift: int
    first: int
    num_items: int | None
    """None: unknown."""


@rule(
    id="array-beyond-list",
    severity="error",
    title="Some array tasks have no item in the list",
    why="A task with an index beyond the list gets an empty value. It fails after waiting in the queue, or trains "
    "unnoticed with a default value. Bash arrays count from 0, lines of a file from 1.",
    source="bash(1), Arrays: indexing begins at zero; sed(1), addresses: lines count from 1",
    before=_HEAD + "#SBATCH --array=1-3\n" + _LIST,
    after=_HEAD + "#SBATCH --array=0-2\n" + _LIST,
)
def array_beyond_list(script: Script, context: Context) -> Iterator[Hit]:
    directive, value = script.directive("array"), script.value("array") or ""
    bounds = re.fullmatch(r"(\d{1,6})-(\d{1,6})(%\d+)?", value)
    if directive is None or _ID not in script.text or array_size(value) is None or "zsh" in script.shebang:
        return
    indices = [int(n) for n in re.findall(r"\d{1,9}", re.sub(r":\d+|%\d+", "", value))]
    for access in (*_items(script), *_lines(script, context)):
        lowest, highest = min(indices) + access.shift, max(indices) + access.shift
        below = access.first == 1 and lowest < 1
        beyond = access.num_items is not None and highest > access.first + access.num_items - 1
        if not (below or beyond):
            continue
        last = None if access.num_items is None else access.first + access.num_items - 1 - access.shift
        lead = access.first - access.shift
        index_range = f"{lead}-{last}" if last is not None else f"{lead}-{max(indices) + lead - min(indices)}"
        items = "" if access.num_items is None else f", which has {access.num_items} items"
        yield at(
            script,
            directive,
            f"there is no item for task {max(indices) if beyond else min(indices)} in {access.name}{items}",
            next_step=f"write --array={index_range}" + (bounds.group(3) or "" if bounds else ""),
            fix=_renumbered(script, directive, value, index_range, bounds),
        )
        return


def _renumbered(
    script: Script, directive: Directive, value: str, index_range: str, bounds: re.Match[str] | None
) -> ScriptFix | None:
    raw = script.text[directive.start : directive.end]
    if bounds is None or raw.count(value) != 1:
        return None
    text = raw.replace(value, index_range + (bounds.group(3) or ""))
    return replace_text(directive, text, title=f"number the tasks {index_range}", is_safe=False)


def _items(script: Script) -> Iterator[_Access]:
    """`${LIST[$SLURM_ARRAY_TASK_ID]}` of a list that the script assigns."""
    names = {a.name for a in script.assignments}
    lists = {name: size for name in names if (size := _num_elements(script, name)) is not None}
    for match in _ITEM.finditer(code_of(script)):
        shift = _shift(script, match.group(2))
        if shift is not None and match.group(1) in lists:
            yield _Access(name=match.group(1), shift=shift, first=0, num_items=lists[match.group(1)])


def _num_elements(script: Script, name: str) -> int | None:
    """Elements of a bash array; None: it is assigned twice, or its elements are not certain."""
    assignments = [a for a in script.assignments if a.name == name]
    if len(assignments) != 1:
        return None
    array = assignments[0]
    if not array.is_array or array.is_append or not _is_certain(array):
        return None
    return len(array.items) if all(_is_one_element(item) for item in array.items) else None


def _is_certain(assignment: Assignment) -> bool:
    """Whether the assignment always runs, once."""
    within = assignment.within
    return not (within.is_branch or within.loops or within.functions or assignment.origin)


def _is_one_element(word: Word) -> bool:
    return word.is_static or (word.is_quoted and "[@]" not in word.text and "$@" not in word.text)


def _shift(script: Script, text: str) -> int | None:
    """What an expression adds to the task's id; None: it is not the id plus a number."""
    for _ in range(3):
        bare = re.sub(r"[\s\"'{}]|\$(?!\()", "", text)
        bare = bare.removeprefix("$((").removesuffix("))")
        match = _OF_ID.fullmatch(bare)
        if match is not None:
            return 0 if match.group(1) is None else int(match.group(1) + match.group(2))
        assignments = [a for a in script.assignments if a.name == bare]
        if len(assignments) != 1 or not _is_certain(assignments[0]):
            return None
        text = assignments[0].value.text
    return None


def _lines(script: Script, context: Context) -> Iterator[_Access]:
    """`sed -n "${SLURM_ARRAY_TASK_ID}p" FILE`, and the same with awk or head."""
    for match in _LINE_OF.finditer(code_of(script)):
        kind = next((name for name in ("sed", "awk", "head") if match.group(name)), "")
        shift = _shift(script, match.group(kind)) if kind else None
        if shift is None:
            continue
        name = script.resolve((match.group(f"{kind}file") or "").strip("\"'<"))
        yield _Access(name=name or "the lines", shift=shift, first=1, num_items=_num_lines(context, name))


def _num_lines(context: Context, name: str) -> int | None:
    """Lines of a file; None: it does not exist here, or is too large for a list."""
    if not name or re.search(r"[$`*?\0]", name):
        return None
    try:
        path = context.folder / name
        if not path.is_file() or path.stat().st_size > _MAX_LIST_BYTES:
            return None
        return len(path.read_bytes().splitlines())
    except OSError:
        return None
