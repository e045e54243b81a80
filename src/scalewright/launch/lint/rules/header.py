"""Rules about the header itself: whether Slurm reads what its author wrote."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.launch.lint.rule import Context, Edit, Fix, Hit, at, at_header, rule
from scalewright.launch.lint.script import Script


@rule(
    id="directive-after-command",
    severity="error",
    title="A directive after the first command is ignored",
    why="sbatch stops reading #SBATCH lines at the first line that is neither blank nor a comment, in silence.",
    source="Slurm, src/sbatch/opt.c, _opt_batch_script; 3.1 % of 287 public training scripts",
    before="#!/bin/bash\n#SBATCH --nodes=2\nmodule load cuda\n#SBATCH --time=01:00:00\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nmodule load cuda\nsrun hostname\n",
)
def directive_after_command(script: Script, context: Context) -> Iterator[Hit]:
    for found in script.directives:
        if found.ignored == "late":
            yield at(
                script,
                found,
                f"Slurm ignores --{found.name} here: {found.why_ignored}",
                next_step=f"move the line above line {script.header.end_line}",
                fix=_moved_up(script, found.line),
            )


def _moved_up(script: Script, line: int) -> Fix:
    """Unsafe: the option starts to count."""
    begin, end = script.starts[line - 1], script.line_end(line)
    place = script.starts[script.header.end_line - 1]
    text = script.text[begin:end]
    if not text.endswith("\n"):
        text += script.newline
    edits = (Edit(start=place, end=place, text=text), Edit(start=begin, end=end, text=""))
    return Fix(edits=edits, title="move it before the first command", is_safe=False)


@rule(
    id="directive-malformed",
    severity="error",
    title="A line that looks like a directive is a comment to Slurm",
    why="Only lines that begin with #SBATCH exactly are read; !#SBATCH and # SBATCH are passed over in silence.",
    source="Slurm, src/sbatch/opt.c, _opt_batch_script; 2.8 % of 287 public training scripts",
    before="#!/bin/bash\n#SBATCH --nodes=2\n# SBATCH --time=01:00:00\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def directive_malformed(script: Script, context: Context) -> Iterator[Hit]:
    for found in script.directives:
        if found.ignored == "malformed":
            yield at(script, found, f"Slurm ignores this line: {found.why_ignored}", next_step="begin it with #SBATCH")


@rule(
    id="no-time",
    severity="info",
    title="No time limit",
    why="Without --time a job gets its partition's default, often far from its need; a short limit starts earlier.",
    source="Slurm, sbatch(1), --time; 23.0 % of 287 public training scripts",
    before="#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def no_time(script: Script, context: Context) -> Iterator[Hit]:
    if not script.has("time"):
        mandatory = context.site is not None and "time" in context.site.select.mandatory
        yield at_header(
            script,
            "no time limit is asked for",
            next_step="add #SBATCH --time=HH:MM:SS, a little more than the job needs",
            severity="error" if mandatory else None,
        )
