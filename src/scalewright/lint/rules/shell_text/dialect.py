"""Rules about the first line: the shell that it names, and whether that shell understands the script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import code_of
from scalewright.lint.rule import Context, Hit, at_span, replace_span, rule
from scalewright.lint.script import Script, interpreter

_BASH_ONLY: tuple[tuple[str, str], ...] = (
    ("source", r"(?m)^\s*source\s"),
    ("[[ ]]", r"(?m)(?:^|[;&|(]|\bif|\bwhile|\buntil|\belif|!)\s*\[\[\s"),
    ("an array", r"(?m)^\s*(?:export\s+|local\s+)?[A-Za-z_]\w*\+?=\((?!\()"),
    ("<<<", r"<<<"),
    ("<(...)", r"[^<]<\("),
    ("${NAME[...]}", r"\$\{#?[A-Za-z_]\w*\["),
    ("${NAME//...}", r"\$\{[A-Za-z_]\w*(?://|\^|,)"),
    ("function", r"(?m)^\s*function\s+\w"),
    ("&>", r"[^&\d]&>[^&]"),
    ("for ((", r"\bfor\s*\(\("),
)


@rule(
    id="bash-in-sh",
    severity="warning",
    title="The script is written for bash and runs in sh",
    why="On Debian and Ubuntu sh is dash, which has no source, arrays or [[ ]]: these lines fail and the script goes "
    "on. Where sh is bash, it leaves out some of bash's syntax.",
    source="dash(1); bash(1), POSIX MODE",
    before="#!/bin/sh\n#SBATCH --gres=gpu:1\nsource ~/env/bin/activate\npython train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\nsource ~/env/bin/activate\npython train.py\n",
)
def bash_in_sh(script: Script, context: Context) -> Iterator[Hit]:
    if not script.lines or interpreter(script.lines[0]) != "sh":
        return
    code = code_of(script)
    places = [(match.start(), name) for name, form in _BASH_ONLY if (match := re.search(form, code)) is not None]
    outside = [(at, name) for at, name in sorted(places) if not any(d.start <= at < d.end for d in script.heredocs)]
    if not outside:
        return
    first = script.lines[0]
    place = first.rindex("sh")
    fix = replace_span(place, place + 2, "bash", title="run it in bash", is_safe=False)
    names = ", ".join(dict.fromkeys(name for _, name in outside))
    yield at_span(
        script, 0, len(first), f"the script uses {names} of bash, and the first line names sh",
        next_step="write #!/bin/bash", fix=fix if first[place:].strip() == "sh" else None,
    )  # fmt: skip


@rule(
    id="shebang-option",
    severity="error",
    title="The first line has an option that the shell does not know",
    why="The kernel passes the rest of the line to the shell as one argument. A dash that a word processor made long "
    "is read as the name of a script, which does not exist: the job ends at once.",
    source="execve(2), Interpreter scripts",
    before="#!/bin/bash \u2013l\n#SBATCH --gres=gpu:1\npython train.py\n",
    after="#!/bin/bash -l\n#SBATCH --gres=gpu:1\npython train.py\n",
    needs_header=False,
)
def shebang_option(script: Script, context: Context) -> Iterator[Hit]:
    match = re.match(r"#!\s*\S+[ \t]+([\u2010-\u2015\u2212]+)(\w*)", script.lines[0] if script.lines else "")
    if match is None:
        return
    fix = replace_span(match.start(1), match.end(1), "-", title="write a plain dash", is_safe=False)
    yield at_span(
        script, match.start(1), match.end(2), f"{match.group(1)}{match.group(2)} is no option: the dash is too long",
        next_step=f"write -{match.group(2)}", fix=fix,
    )  # fmt: skip
