"""Rules about the header itself: whether Slurm reads what its author wrote."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from scalewright.lint.header.directives import Directive
from scalewright.lint.header.options import RENAMED, SBATCH, SRUN_TABLE, long_name
from scalewright.lint.job_facts import SURVEY, is_fill_in
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, remove_line, rule
from scalewright.lint.script import Script

_PATTERNS = {
    "SLURM_JOB_ID": "%j", "SLURM_JOBID": "%j", "SLURM_ARRAY_JOB_ID": "%A", "SLURM_ARRAY_TASK_ID": "%a", "USER": "%u",
    "SLURM_JOB_NAME": "%x", "SLURM_JOB_USER": "%u",
}  # fmt: skip
"""What the names of log files may hold instead of variables: sbatch(1), filename pattern."""
_FILES = ("output", "error", "input")
_VARIABLE = re.compile(r"\$\{[A-Za-z_]\w*[^}]{0,80}\}|\$[A-Za-z_]\w*|\$\(|`")


@rule(
    id="directive-after-command",
    severity="error",
    title="A directive after the first command is ignored",
    why="sbatch stops reading #SBATCH lines at the first line that is neither blank nor a comment, in silence.",
    source=f"Slurm, src/sbatch/opt.c, _opt_batch_script; 3.1 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --nodes=2\nmodule load cuda\n#SBATCH --time=01:00:00\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nmodule load cuda\nsrun hostname\n",
)
def directive_after_command(script: Script, context: Context) -> Iterator[Hit]:
    late = [found for found in script.directives if found.ignored == "late"]
    lines = sorted({found.line for found in late})
    if late:
        more = f", and so are the {len(lines) - 1} below" if len(lines) > 1 else ""
        yield at(
            script,
            late[0],
            f"--{late[0].name} is ignored{more}: {late[0].why_ignored}",
            next_step=f"move directives above line {script.header.end_line}",
            fix=_moved_up(script, lines),
        )


def _moved_up(script: Script, lines: list[int]) -> ScriptFix:
    """Unsafe: the options start to count."""
    place = script.starts[script.header.end_line - 1]
    moved = [(script.starts[line - 1], script.line_end(line)) for line in lines]
    text = "".join(script.lines[line - 1] + script.newline for line in lines)
    edits = (Edit(start=place, end=place, text=text), *(Edit(start=begin, end=end, text="") for begin, end in moved))
    return ScriptFix(edits=edits, title="move directives before the first command", is_safe=False)


@rule(
    id="directive-malformed",
    severity="error",
    title="A line that looks like a directive is a comment to Slurm",
    why="Only lines that begin with #SBATCH exactly are read; !#SBATCH and # SBATCH are passed over in silence.",
    source=f"Slurm, src/sbatch/opt.c, _opt_batch_script; 2.8 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --nodes=2\n!#SBATCH --time=01:00:00\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def directive_malformed(script: Script, context: Context) -> Iterator[Hit]:
    for found in script.directives:
        if found.ignored != "malformed":
            continue
        # `# SBATCH` is how some people switch a line off; that the option is set elsewhere shows that they did.
        is_comment = re.match(r"^#+[ \t]+#*SBATCH", found.raw) is not None
        if is_comment and (script.has(found.name) or found.line > script.header.end_line):
            continue
        missed = not is_comment or _is_missed(script, found.name)
        yield at(
            script,
            found,
            f"Slurm ignores this line: {found.why_ignored}",
            next_step="begin it with #SBATCH, or with ##SBATCH where it is switched off on purpose",
            severity=("warning" if missed else "info") if is_comment else None,
            fix=None if is_comment else _respelled(script, found),
        )


_ANY_OF = (
    ("time",), ("nodes", "ntasks"), ("ntasks", "ntasks-per-node"), ("array",), ("account",), ("partition", "qos"),
    ("gres", "gpus", "gpus-per-node", "gpus-per-task"), ("cpus-per-task", "cpus-per-gpu"),
)  # fmt: skip
"""What a job is seldom without, and the options that say it."""


def _is_missed(script: Script, name: str) -> bool:
    """Whether a job lacks something if the option does not count; else its author may well have switched it off."""
    return any(name in group and not script.has(*group) for group in _ANY_OF)


def _respelled(script: Script, found: Directive) -> ScriptFix | None:
    """Unsafe: the option starts to count."""
    lead = re.match(r"^[ \t]*(?:#[ \t#!]*|!#|//[ \t]*|)[A-Za-z]+(?=[ \t])", found.raw)
    if lead is None or found.line > script.header.end_line or not found.is_known:
        return None
    start = script.starts[found.line - 1]
    return ScriptFix(
        edits=(Edit(start=start, end=start + lead.end(), text="#SBATCH"),), title="spell it #SBATCH", is_safe=False
    )


@rule(
    id="directive-unknown",
    severity="error",
    title="sbatch does not know the option",
    why="sbatch refuses a script with an option that neither it nor a plugin of the site knows.",
    source="Slurm, sbatch(1); Slurm 22.05.8: unrecognized option",
    before="#!/bin/bash\n#SBATCH --task-per-node=4\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --ntasks-per-node=4\nsrun hostname\n",
)
def directive_unknown(script: Script, context: Context) -> Iterator[Hit]:
    for found in script.directives:
        if not (found.is_effective or found.ignored == "overridden") or found.is_known or is_fill_in(found.name):
            continue
        if _of_steps(found.name) is not None:
            continue
        near = difflib.get_close_matches(found.name, [*SBATCH, *RENAMED], n=1, cutoff=0.75)
        named = RENAMED.get(near[0], near[0]) if near else ""
        yield at(
            script,
            found,
            found.problem or f"sbatch knows no option --{found.name}",
            next_step=f"write --{named}" if named else "check its spelling, or that a plugin of the site brings it",
            severity=None if named or len(found.name) == 1 else "warning",
        )


@rule(
    id="step-option-in-header",
    severity="error",
    title="An option of srun stands in the header",
    why="sbatch refuses options that only srun has: kill-on-bad-exit, cpu-bind, mpi, label and others.",
    source="Slurm 22.05.8: sbatch: unrecognized option '--kill-on-bad-exit=1'",
    before="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --kill-on-bad-exit=1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\nsrun --kill-on-bad-exit=1 python train.py\n",
)
def step_option_in_header(script: Script, context: Context) -> Iterator[Hit]:
    for found in script.directives:
        name = _of_steps(found.name)
        if found.is_known or name is None or not (found.is_effective or found.ignored == "overridden"):
            continue
        yield at(
            script,
            found,
            f"--{name} is an option of srun: sbatch refuses the script",
            next_step=f"give it to srun: srun --{name}...",
        )


def _of_steps(name: str) -> str | None:
    """The option of srun that sbatch lacks."""
    known = SRUN_TABLE.short.get(name) if len(name) == 1 else long_name(name, SRUN_TABLE)
    return known if known is not None and known not in SBATCH else None


_ADDED_UP = ("mail-type",)
"""Options that Slurm adds up where they are given several times (src/common/slurm_opt.c: opt->mail_type |= ...)."""


@rule(
    id="directive-duplicate",
    severity="warning",
    title="An option is given twice with different values",
    why="The last one wins without a word; whoever edits the first wonders why nothing changes.",
    source="Slurm, src/sbatch/opt.c: options are set in order",
    before="#!/bin/bash\n#SBATCH --time=02:00:00\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def directive_duplicate(script: Script, context: Context) -> Iterator[Hit]:
    for found in script.directives:
        if found.ignored != "overridden" or not found.is_known or found.name.startswith("container-"):
            continue
        if found.name in _ADDED_UP:
            continue
        winner = next(
            d for d in script.directives if d.is_effective and (d.name, d.component) == (found.name, found.component)
        )
        if winner.value == found.value or script.is_template:
            continue
        alone = re.fullmatch(r"#SBATCH[ \t]+\S+(?:[ \t]+[^-#\s]\S*)?[ \t]*(?:#.*)?", found.raw) is not None
        yield at(
            script,
            found,
            f"--{found.name} is given again on line {winner.line}, and that one wins: {winner.value}",
            next_step="keep one of them",
            fix=remove_line(script, found.line, title="remove the one that is ignored", is_safe=True)
            if alone
            else None,
        )


@rule(
    id="variable-in-directive",
    severity="error",
    title="Slurm expands no variables in directives",
    why="The header is no shell: $USER, $(date) and ~ are taken literally, so a log's folder is not found and the job "
    "ends at once without a log, or a value is refused.",
    source="Slurm, sbatch(1), filename pattern and DESCRIPTION",
    before="#!/bin/bash\n#SBATCH --output=/scratch/$USER/logs/$SLURM_JOB_ID.out\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --output=/scratch/%u/logs/%j.out\nsrun hostname\n",
)
def variable_in_directive(script: Script, context: Context) -> Iterator[Hit]:
    for found in script.directives:
        if not found.is_effective or found.value is None or found.name in ("comment", "wrap"):
            continue
        variable = _VARIABLE.search(found.value)
        home = found.value.startswith("~/") and found.name in (*_FILES, "chdir")
        if not (variable or home) or (found.name == "gres" and variable is None):
            continue
        written = variable.group() if variable else "~"
        yield at(
            script,
            found,
            f"Slurm does not expand {'$(...)' if written in ('$(', '`') else written} in --{found.name}",
            next_step="use its patterns (%j, %A, %a, %x, %u), or give the option on sbatch's command line",
            fix=_with_patterns(script, found),
        )


def _with_patterns(script: Script, found: Directive) -> ScriptFix | None:
    """Safe: no job works with the literal name."""
    if found.name not in _FILES:
        return None
    raw = script.text[found.start : found.end]
    text = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda m: _PATTERNS.get(m.group(1), m.group()), raw)
    if "$" in text or "`" in text or text == raw or "~" in text:
        return None
    edit = Edit(start=found.start, end=found.end, text=text)
    return ScriptFix(edits=(edit,), title="use Slurm's own patterns", is_safe=True)


@rule(
    id="directive-stray-word",
    severity="error",
    title="A word in the header is no option",
    why="sbatch takes the first word that is no option for the script's name and refuses the job, or stops "
    "reading there.",
    source="Slurm 22.05.8: sbatch: error: Unable to open file GB; src/sbatch/opt.c",
    before="#!/bin/bash\n#SBATCH --mem=64 GB\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --mem=64G\nsrun hostname\n",
)
def directive_stray_word(script: Script, context: Context) -> Iterator[Hit]:
    for word in script.header.stray:
        if is_fill_in(word.text):
            continue
        line, column = script.place(word.start)
        if script.lines[line - 1][: column - 1].count("<") > script.lines[line - 1][: column - 1].count(">"):
            continue
        hint = "comments begin with #" if column > 12 else "options begin with -- or -"
        yield Hit(
            line=line,
            column=column,
            end_column=column + (word.end - word.start),
            message=f"sbatch stops at {word.text[:40]!r}, which is no option",
            next_step=f"remove it, or join it with its option: {hint}",
        )


@rule(
    id="directive-unreadable",
    severity="error",
    title="sbatch cannot read the line",
    why="A quote that is never closed, or a lone colon, makes sbatch refuse the script.",
    source="Slurm, src/sbatch/opt.c, get_argument",
    before='#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --comment="first run\nsrun hostname\n',
    after='#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --comment="first run"\nsrun hostname\n',
)
def directive_unreadable(script: Script, context: Context) -> Iterator[Hit]:
    for line, reason in script.header.errors:
        yield Hit(line=line, message=f"sbatch refuses the line: {reason}", next_step="close the quote, or remove it")
    for found in script.directives:
        if found.is_effective and found.is_known and found.problem:
            yield at(script, found, f"sbatch refuses this: {found.problem}", next_step="see: man sbatch")


@rule(
    id="no-shebang",
    severity="error",
    title="The first line names no interpreter",
    why="sbatch refuses a script whose first line does not begin with #!.",
    source="Slurm: This does not look like a batch script. The first line must start with #!",
    before="#SBATCH --nodes=2\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
)
def no_shebang(script: Script, context: Context) -> Iterator[Hit]:
    if script.shebang or not script.lines or script.is_template:
        return
    if not any(d.is_effective for d in script.directives):
        return
    edits = (Edit(start=0, end=0, text=f"#!/bin/bash{script.newline}"),)
    yield Hit(
        line=1,
        message="the first line names no interpreter: sbatch refuses the script",
        next_step="begin with #!/bin/bash, without blank lines above it",
        fix=ScriptFix(edits=edits, title="begin with #!/bin/bash", is_safe=True),
    )


@rule(
    id="dos-line-ends",
    severity="error",
    title="Lines end as on Windows",
    why="sbatch refuses a script with carriage returns, and the shell would take them for a part of every last word.",
    source="Slurm: Batch script contains DOS line breaks (\\r\\n) instead of expected UNIX line breaks (\\n)",
    before="#!/bin/bash\r\n#SBATCH --nodes=2\r\nsrun hostname\r\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
)
def dos_line_ends(script: Script, context: Context) -> Iterator[Hit]:
    first = script.text.find("\r\n")
    if first < 0:
        return
    edits = tuple(Edit(start=m.start(), end=m.end(), text="\n") for m in re.finditer("\r\n", script.text))
    yield Hit(
        line=script.place(first)[0],
        message="lines end with a carriage return: sbatch refuses the script",
        next_step="save it with Unix line ends, for example: sed -i 's/\\r$//' FILE",
        fix=ScriptFix(edits=edits, title="end lines as Unix does", is_safe=True),
    )
