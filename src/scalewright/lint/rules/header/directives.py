"""Rules about directives: whether sbatch reads each #SBATCH line, and whether it knows the option."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from scalewright.lint.header.directives import Directive
from scalewright.lint.header.options import RENAMED, SBATCH, SRUN_TABLE, long_name
from scalewright.lint.job_facts import SURVEY, is_fill_in
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, remove_line, replace_text, rule
from scalewright.lint.script import BYTE_ORDER_MARK, Script

_PATTERNS = {
    "SLURM_JOB_ID": "%j", "SLURM_JOBID": "%j", "SLURM_ARRAY_JOB_ID": "%A", "SLURM_ARRAY_TASK_ID": "%a", "USER": "%u",
    "SLURM_JOB_NAME": "%x", "SLURM_JOB_USER": "%u",
}  # fmt: skip
"""Patterns of Slurm for the names of log files, by the variable that they replace: sbatch(1), filename pattern."""
_FILES = ("output", "error", "input")
_VARIABLE = re.compile(r"\$\{[A-Za-z_]\w*[^}]{0,80}\}|\$[A-Za-z_]\w*|\$\{?\d\b\}?|\$\(|`")


@rule(
    id="directive-after-command",
    severity="error",
    title="A directive after the first command is ignored",
    why="sbatch stops reading #SBATCH lines at the first line that is neither blank nor a comment, and prints no "
    "message. The job then runs without the options below that line.",
    source=f"Slurm, src/sbatch/opt.c, _opt_batch_script; 3.1 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --nodes=2\nmodule load cuda\n#SBATCH --time=01:00:00\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nmodule load cuda\nsrun hostname\n",
)
def directive_after_command(script: Script, context: Context) -> Iterator[Hit]:
    late = [directive for directive in script.directives if directive.ignored == "late"]
    lines = sorted({directive.line for directive in late})
    if late:
        more = f", like {len(lines) - 1} more below" if len(lines) > 1 else ""
        yield at(
            script,
            late[0],
            f"--{late[0].name} is ignored{more}: {late[0].why_ignored}",
            next_step=f"move the directives above line {script.header.end_line}",
            fix=_moved_up(script, lines),
        )


def _moved_up(script: Script, lines: list[int]) -> ScriptFix:
    """Unsafe: the options take effect."""
    place = script.starts[script.header.end_line - 1]
    moved = [(script.starts[line - 1], script.line_end(line)) for line in lines]
    text = "".join(script.lines[line - 1] + script.newline for line in lines)
    edits = (Edit(start=place, end=place, text=text), *(Edit(start=begin, end=end, text="") for begin, end in moved))
    return ScriptFix(edits=edits, title="move the directives before the first command", is_safe=False)


@rule(
    id="directive-malformed",
    severity="error",
    title="A line that looks like a directive is only a comment",
    why="sbatch reads only lines that begin with exactly #SBATCH. It skips lines such as !#SBATCH and # SBATCH "
    "without a message.",
    source=f"Slurm, src/sbatch/opt.c, _opt_batch_script; 2.8 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --nodes=2\n!#SBATCH --time=01:00:00\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def directive_malformed(script: Script, context: Context) -> Iterator[Hit]:
    for directive in script.directives:
        if directive.ignored != "malformed":
            continue
        # Some people write `# SBATCH` to switch a line off; if the option is set elsewhere, they did.
        is_comment = re.match(r"^#+[ \t]+#*SBATCH", directive.raw) is not None
        if is_comment and (script.has(directive.name) or directive.line > script.header.end_line):
            continue
        missed = not is_comment or _is_missed(script, directive.name)
        yield at(
            script,
            directive,
            f"Slurm ignores this line: {directive.why_ignored}",
            next_step="begin it with #SBATCH, or with ##SBATCH if it is switched off on purpose",
            severity=("warning" if missed else "info") if is_comment else None,
            fix=None if is_comment else _respelled(script, directive),
        )


_ANY_OF = (
    ("time",), ("nodes", "ntasks"), ("ntasks", "ntasks-per-node"), ("array",), ("account",), ("partition", "qos"),
    ("gres", "gpus", "gpus-per-node", "gpus-per-task"), ("cpus-per-task", "cpus-per-gpu"),
)  # fmt: skip
"""Groups of options; a job rarely lacks all options of a group."""


def _is_missed(script: Script, name: str) -> bool:
    """Whether the job lacks this kind of option; if not, the line may be switched off on purpose."""
    return any(name in group and not script.has(*group) for group in _ANY_OF)


def _respelled(script: Script, directive: Directive) -> ScriptFix | None:
    """Unsafe: the option takes effect."""
    lead = re.match(r"^[ \t]*(?:#[ \t#!]*|!#|//[ \t]*|)[A-Za-z]+(?=[ \t])", directive.raw)
    if lead is None or directive.line > script.header.end_line or not directive.is_known:
        return None
    start = script.starts[directive.line - 1]
    return ScriptFix(
        edits=(Edit(start=start, end=start + lead.end(), text="#SBATCH"),), title="spell it #SBATCH", is_safe=False
    )


@rule(
    id="directive-unknown",
    severity="error",
    title="sbatch does not know the option",
    why="sbatch refuses a script with an option that neither Slurm nor a plugin of the site defines.",
    source="Slurm, sbatch(1); Slurm 22.05.8: unrecognized option",
    before="#!/bin/bash\n#SBATCH --task-per-node=4\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --ntasks-per-node=4\nsrun hostname\n",
)
def directive_unknown(script: Script, context: Context) -> Iterator[Hit]:
    for directive in script.directives:
        if (
            not (directive.is_effective or directive.ignored == "overridden")
            or directive.is_known
            or is_fill_in(directive.name)
        ):
            continue
        if _srun_option(directive.name) is not None:
            continue
        near = difflib.get_close_matches(directive.name, [*SBATCH, *RENAMED], n=1, cutoff=0.75)
        suggestion = RENAMED.get(near[0], near[0]) if near else ""
        yield at(
            script,
            directive,
            directive.problem or f"sbatch has no option --{directive.name}",
            next_step=f"write --{suggestion}"
            if suggestion
            else "check its spelling, and whether a plugin of the site defines it",
            severity=None if suggestion or len(directive.name) == 1 else "warning",
        )


@rule(
    id="step-option-in-header",
    severity="error",
    title="An srun option in the header",
    why="sbatch refuses options that only srun has, such as --kill-on-bad-exit, --cpu-bind, --mpi and --label.",
    source="Slurm 22.05.8: sbatch: unrecognized option '--kill-on-bad-exit=1'",
    before="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --kill-on-bad-exit=1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\nsrun --kill-on-bad-exit=1 python train.py\n",
)
def step_option_in_header(script: Script, context: Context) -> Iterator[Hit]:
    for directive in script.directives:
        name = _srun_option(directive.name)
        if directive.is_known or name is None or not (directive.is_effective or directive.ignored == "overridden"):
            continue
        yield at(
            script,
            directive,
            f"--{name} is an option of srun, and sbatch refuses it",
            next_step=f"move it to srun: srun --{name}...",
        )


def _srun_option(name: str) -> str | None:
    """Long name of an option that srun has and sbatch does not; None: any other option."""
    srun_name = SRUN_TABLE.short.get(name) if len(name) == 1 else long_name(name, SRUN_TABLE)
    return srun_name if srun_name is not None and srun_name not in SBATCH else None


_ADDED_UP = ("mail-type",)
"""Options whose values Slurm combines if they are given several times (src/common/slurm_opt.c: opt->mail_type |= ...).
"""


@rule(
    id="directive-duplicate",
    severity="warning",
    title="An option is given twice with different values",
    why="The last value wins without a message. If you edit the first one, nothing changes.",
    source="Slurm, src/sbatch/opt.c: options are set in order",
    before="#!/bin/bash\n#SBATCH --time=02:00:00\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def directive_duplicate(script: Script, context: Context) -> Iterator[Hit]:
    for directive in script.directives:
        if directive.ignored != "overridden" or not directive.is_known or directive.name.startswith("container-"):
            continue
        if directive.name in _ADDED_UP:
            continue
        winner = next(
            d
            for d in script.directives
            if d.is_effective and (d.name, d.component) == (directive.name, directive.component)
        )
        if winner.value == directive.value or script.is_template:
            continue
        alone = re.fullmatch(r"#SBATCH[ \t]+\S+(?:[ \t]+[^-#\s]\S*)?[ \t]*(?:#.*)?", directive.raw) is not None
        yield at(
            script,
            directive,
            f"--{directive.name} is set again on line {winner.line}, and that value wins: {winner.value}",
            next_step="keep one of the two",
            fix=remove_line(script, directive.line, title="remove the ignored one", is_safe=True) if alone else None,
        )


@rule(
    id="variable-in-directive",
    severity="error",
    title="Slurm does not expand variables in directives",
    why="No shell reads the header: $USER, $(date) and ~ stay as they are. The folder of the log does not exist "
    "and the job ends at once without a log, or sbatch refuses the value.",
    source="Slurm, sbatch(1), filename pattern and DESCRIPTION",
    before="#!/bin/bash\n#SBATCH --output=/scratch/$USER/logs/$SLURM_JOB_ID.out\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --output=/scratch/%u/logs/%j.out\nsrun hostname\n",
)
def variable_in_directive(script: Script, context: Context) -> Iterator[Hit]:
    for directive in script.directives:
        if not directive.is_effective or directive.value is None or directive.name in ("comment", "wrap"):
            continue
        variable = _VARIABLE.search(directive.value)
        home = directive.value.startswith("~/") and directive.name in (*_FILES, "chdir")
        if not (variable or home) or (directive.name == "gres" and variable is None):
            continue
        written = variable.group() if variable else "~"
        yield at(
            script,
            directive,
            f"Slurm does not expand {'$(...)' if written in ('$(', '`') else written} in --{directive.name}",
            next_step="use Slurm's patterns (%j, %A, %a, %x, %u), or set the option on the sbatch command line",
            fix=_with_patterns(script, directive),
        )


def _with_patterns(script: Script, directive: Directive) -> ScriptFix | None:
    """Safe if the folder has the variable: no job runs with the literal name of a folder that does not exist."""
    if directive.name not in _FILES:
        return None
    folder = (directive.value or "").rpartition("/")[0]
    raw = script.text[directive.start : directive.end]
    text = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda m: _PATTERNS.get(m.group(1), m.group()), raw)
    if "$" in text or "`" in text or text == raw or "~" in text:
        return None
    return replace_text(directive, text, title="use Slurm's patterns", is_safe="$" in folder)


@rule(
    id="directive-stray-word",
    severity="error",
    title="A word in the header is not an option",
    why="sbatch reads the first word that is not an option as the name of the script. It refuses the job, or "
    "ignores every option after that word.",
    source="Slurm 22.05.8: sbatch: error: Unable to open file GB; src/sbatch/opt.c",
    before="#!/bin/bash\n#SBATCH --mem=64 GB\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --mem=64G\nsrun hostname\n",
)
def directive_stray_word(script: Script, context: Context) -> Iterator[Hit]:
    for word in script.header.stray:
        line, column = script.place(word.start)
        if is_fill_in(word.text) or re.search(r"<[^<>]+>|\{ *\w+ *\}", script.lines[line - 1][max(0, column - 4) :]):
            continue
        if script.lines[line - 1][: column - 1].count("<") > script.lines[line - 1][: column - 1].count(">"):
            continue
        hint = "a comment begins with #" if column > 12 else "an option begins with -- or -"
        yield Hit(
            line=line,
            column=column,
            end_column=column + (word.end - word.start),
            message=f"sbatch stops at {word.text[:40]!r}, which is not an option",
            next_step=f"remove it, or join it to its option ({hint})",
        )


@rule(
    id="directive-unreadable",
    severity="error",
    title="sbatch cannot read the line",
    why="sbatch refuses a script with an unclosed quote or a lone colon in a directive.",
    source="Slurm, src/sbatch/opt.c, get_argument",
    before='#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --comment="first run\nsrun hostname\n',
    after='#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --comment="first run"\nsrun hostname\n',
)
def directive_unreadable(script: Script, context: Context) -> Iterator[Hit]:
    for line, reason in script.header.errors:
        yield Hit(line=line, message=f"sbatch refuses the line: {reason}", next_step="close the quote, or remove it")
    for directive in script.directives:
        if directive.is_effective and directive.is_known and directive.problem:
            yield at(script, directive, f"sbatch refuses the option: {directive.problem}", next_step="see: man sbatch")


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
        message="the first line names no interpreter, and sbatch refuses the script",
        next_step="begin the script with #!/bin/bash, without blank lines above it",
        fix=ScriptFix(edits=edits, title="begin with #!/bin/bash", is_safe=True),
    )


@rule(
    id="byte-order-mark",
    severity="error",
    title="A byte order mark before the first line",
    why="Some editors on Windows begin a file with three invisible bytes. The first line then does not begin with "
    "#!, and sbatch refuses the script.",
    source="Slurm: This does not look like a batch script. The first line must start with #!",
    before="\ufeff#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
    needs_header=False,
)
def byte_order_mark(script: Script, context: Context) -> Iterator[Hit]:
    if script.text.startswith(BYTE_ORDER_MARK):
        yield Hit(
            line=1,
            end_column=2,
            message="the file begins with a byte order mark, and sbatch refuses the script",
            next_step="save it as UTF-8 without a byte order mark",
            fix=ScriptFix(edits=(Edit(start=0, end=1, text=""),), title="remove the byte order mark", is_safe=True),
        )


@rule(
    id="dos-line-ends",
    severity="error",
    title="Line ends of Windows or of old Macs",
    why="sbatch refuses a script with carriage returns. A shell would read them as part of the last word of each "
    "line. If lines end with a carriage return alone, the whole script is one comment.",
    source="Slurm: Batch script contains DOS line breaks (\\r\\n) instead of expected UNIX line breaks (\\n)",
    before="#!/bin/bash\r\n#SBATCH --nodes=2\r\nsrun hostname\r\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
    needs_header=False,
)
def dos_line_ends(script: Script, context: Context) -> Iterator[Hit]:
    if "\r" not in script.text:
        return
    is_old_mac = "\n" not in script.text and script.text.count("\r") > 1
    ends = list(re.finditer("\r" if is_old_mac else "\r\n", script.text))
    if not ends or not (script.has_header or is_old_mac):
        return
    yield Hit(
        line=script.place(ends[0].start())[0],
        message="lines end with a carriage return alone, so the whole script is one comment"
        if is_old_mac
        else "lines end with a carriage return, and sbatch refuses the script",
        next_step="save it with Unix line ends, for example: "
        + ("tr '\\r' '\\n' <FILE >FILE.new" if is_old_mac else "sed -i 's/\\r$//' FILE"),
        fix=ScriptFix(
            edits=tuple(Edit(start=m.start(), end=m.end(), text="\n") for m in ends),
            title="use Unix line ends",
            is_safe=not is_old_mac,
        ),
    )
