"""Rules about the tasks of an array: how many there are, how they start, their logs and their index."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import GUIDE, MANY_TASKS, code_of, mentions
from scalewright.lint.rule import Context, Hit, at, at_span, insert_before_body, insert_text, replace_text, rule
from scalewright.lint.script import Script

HUNDREDS = 100
"""Tasks that load a file system when they start together."""
_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --output=logs/%A_%a.out\n"
_BODY = 'python train.py --seed "$SLURM_ARRAY_TASK_ID"\n'


def array_size(value: str) -> int | None:
    """How many tasks an array has; None: unknown."""
    total = 0
    for part in value.partition("%")[0].strip("[]").split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip())
        if match is None:
            return None
        first, last, step = (int(g) if g else None for g in match.groups())
        total += 1 if last is None or first is None else max(0, last - first) // (step or 1) + 1
    return total


def _large_size(script: Script) -> int | None:
    """Tasks of an array with more than `MANY_TASKS`; None: smaller, unknown, or no array."""
    size = array_size(script.value("array") or "") if script.has("array") else None
    return size if size is not None and size > MANY_TASKS else None


@rule(
    id="array-uncapped",
    severity="warning",
    title="A large array may start all its tasks at once",
    why="Tasks that start together load the file system and the scheduler together, and use up your fair share.",
    source=f"{GUIDE} 2.4.4 and 2.4.13: --array=0-999%20",
    before=_HEAD + "#SBATCH --array=0-499\n" + _BODY,
    after=_HEAD + f"#SBATCH --array=0-499%{MANY_TASKS}\n" + _BODY,
)
def array_uncapped(script: Script, context: Context) -> Iterator[Hit]:
    directive, size = script.directive("array"), _large_size(script)
    if directive is None or size is None or "%" in (directive.value or ""):
        return
    limit = f"%{MANY_TASKS}"
    is_plain = script.text[directive.start : directive.end].endswith(directive.value or " ")
    yield at(
        script,
        directive,
        f"{size} tasks may run at once",
        next_step=f"limit them: --array={directive.value}{limit}",
        severity=None if size > HUNDREDS else "info",
        fix=insert_text(directive.end, limit, title=f"run at most {MANY_TASKS} at once", is_safe=False)
        if is_plain
        else None,
    )


@rule(
    id="array-no-jitter",
    severity="info",
    title="All tasks of a large array start at the same moment",
    why="Hundreds of tasks that open the same files in the same second slow down the file system for everybody.",
    source=f"{GUIDE} 2.4.4: sleep $((RANDOM % 15))",
    before=_HEAD + "#SBATCH --array=0-499%100\n" + _BODY,
    after=_HEAD + "#SBATCH --array=0-499%100\nsleep $((RANDOM % 15))\n" + _BODY,
)
def array_no_jitter(script: Script, context: Context) -> Iterator[Hit]:
    directive, size = script.directive("array"), _large_size(script)
    if (
        directive is None
        or size is None
        or re.search(r"\bsleep\s+\S{0,80}(RANDOM|shuf|TASK_ID|SRANDOM)", code_of(script))
    ):
        return
    at_once = re.search(r"%(\d+)", directive.value or "")
    if at_once and int(at_once.group(1)[:9]) < MANY_TASKS:
        return
    line = "sleep $((RANDOM % 15))  # tasks of the array do not all read at once"
    yield at(
        script,
        directive,
        f"{size} tasks start without a random delay",
        next_step="begin with a random delay: sleep $((RANDOM % 15))",
        fix=insert_before_body(script, line, title="spread the starts", is_safe=False) if script.is_shell else None,
    )


@rule(
    id="array-output-collides",
    severity="warning",
    title="All tasks of an array write to one log",
    why="Without %a or %j in the name, every task opens the same file, and the logs overwrite each other.",
    source="Slurm, sbatch(1), filename pattern",
    before="#!/bin/bash\n#SBATCH --array=0-7\n#SBATCH --output=logs/%A.out\n" + _BODY,
    after="#!/bin/bash\n#SBATCH --array=0-7\n#SBATCH --output=logs/%A_%a.out\n" + _BODY,
)
def array_output_collides(script: Script, context: Context) -> Iterator[Hit]:
    if not script.has("array") or array_size(script.value("array") or "") == 1:
        return
    for name in ("output", "error"):
        directive = script.directive(name)
        value = directive.value if directive else None
        if directive is None or not value or value == "/dev/null" or re.search(r"%\d*[ajJ]|[$`{]", value):
            continue
        raw = script.text[directive.start : directive.end]
        stem, dot, suffix = raw.rpartition(".")
        text = f"{stem}_%a{dot}{suffix}" if dot and "/" not in suffix else f"{raw}_%a"
        text = text if "%A" in value else text.replace("_%a", "_%A_%a")
        is_plain = '"' not in raw and "'" not in raw
        yield at(
            script,
            directive,
            f"every task of the array writes to {value}",
            next_step="add %A_%a to the name",
            fix=replace_text(directive, text, title="write one log per task", is_safe=not _is_named(script, value))
            if is_plain
            else None,
        )


def _is_named(script: Script, log: str) -> bool:
    """Whether the script itself reads or names the log, whose name changes."""
    stem = re.split(r"%", log.rpartition("/")[2])[0]
    return not stem or stem in code_of(script)


@rule(
    id="array-index-unused",
    severity="info",
    title="No task reads its array index",
    why="If nothing reads SLURM_ARRAY_TASK_ID, every task does the same work.",
    source="Slurm, job array support: SLURM_ARRAY_TASK_ID",
    before=_HEAD + "#SBATCH --array=0-7\npython train.py\n",
    after=_HEAD + "#SBATCH --array=0-7\n" + _BODY,
)
def array_index_unused(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("array")
    value = directive.value or "" if directive else ""
    # An array that runs one task at a time is a chain of restarts.
    if directive is None or not script.is_shell or value.endswith("%1") or array_size(value) == 1:
        return
    if mentions(script, r"ARRAY|TASK_ID") or any(c.name in ("source", ".", "bash", "sh", "") for c in script.commands):
        return
    yield at(
        script,
        directive,
        "nothing in the script reads SLURM_ARRAY_TASK_ID",
        next_step="pass it to the program, unless the program reads it itself",
    )


_COUNTED = re.compile(
    r"(?:--|\b)((?:num|n|total|nb|world)[-_](?:\w+[-_])?"
    r"(?:shards?|chunks?|splits?|parts?|jobs?|tasks?|workers?|folds?|size)|"
    r"(?:shards|chunks|splits|parts|folds)|(?:NUM|N|TOTAL|WORLD)_\w+)"
    r"(?:=|\s{1,4})[\"']?(\d{1,6}\b|\$\{?SLURM_ARRAY_TASK_MAX\}?)"
)
"""An option or a variable that counts the parts of the work."""


@rule(
    id="array-count-off",
    severity="warning",
    title="The number of parts and the number of array tasks differ by one",
    why="An array 0-10 has 11 tasks, and SLURM_ARRAY_TASK_MAX is its last index. Counted from 0, the last task has no "
    "part of its own, or one part is never processed.",
    source="Slurm, job array support: SLURM_ARRAY_TASK_COUNT is the number of tasks, TASK_MAX the last index",
    before=_HEAD
    + "#SBATCH --array=0-9\npython run.py --shard $SLURM_ARRAY_TASK_ID --num-shards $SLURM_ARRAY_TASK_MAX\n",
    after=_HEAD
    + '#SBATCH --array=0-9\npython run.py --shard "$SLURM_ARRAY_TASK_ID" --num-shards $SLURM_ARRAY_TASK_COUNT\n',
)
def array_count_off(script: Script, context: Context) -> Iterator[Hit]:
    bounds = re.fullmatch(r"0-(\d{1,6})(?:%\d+)?", script.value("array") or "")
    if bounds is None or "SLURM_ARRAY_TASK_ID" not in script.text:
        return
    last = int(bounds.group(1))
    for match in _COUNTED.finditer(code_of(script)):
        is_max = "TASK_MAX" in match.group(2)
        if not is_max and (match.group(2) != str(last) or last < 2 or not re.search(_PARTS, match.group(1))):
            continue
        yield at_span(
            script,
            match.start(),
            match.end(),
            f"{match.group(1)} is {last}, and the array 0-{last} has {last + 1} tasks",
            next_step="write $SLURM_ARRAY_TASK_COUNT" if is_max else f"write --array=0-{last - 1}, or {last + 1} parts",
        )
        return


_PARTS = re.compile(r"shard|chunk|split|part|fold|job|task", re.IGNORECASE)


@rule(
    id="array-too-large",
    severity="error",
    title="The array is larger than the site allows",
    why="sbatch refuses an array whose largest index reaches MaxArraySize.",
    source="Slurm, slurm.conf(5), MaxArraySize; the site's profile",
    before=_HEAD + "#SBATCH --array=0-20000%20\n" + _BODY,
    after=_HEAD + "#SBATCH --array=0-9999%20\n" + _BODY,
)
def array_too_large(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("array")
    limit = context.site.max_array_size.value if context.site and context.site.max_array_size else None
    if directive is None or limit is None:
        return
    largest = max((int(n[:9]) for n in re.findall(r"\d+", (directive.value or "").partition("%")[0])), default=0)
    if largest >= limit:
        yield at(
            script,
            directive,
            f"index {largest} is above the limit of {context.site.name if context.site else 'the site'}, {limit - 1}",
            next_step="let each task process several items, or submit two arrays",
        )
