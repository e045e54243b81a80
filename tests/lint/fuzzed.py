"""Fuzzed scripts: mutations of real ones and random sequences of tokens, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from scalewright.lint.engine import Linter, LintFinding
from scalewright.lint.fixes import fix_script
from scalewright.lint.rule import Context
from scalewright.lint.script import Script, parse_script
from scalewright.lint.script_file import checked_text
from scalewright.lint.settings import LintSettings

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "sites"
TOKENS = (
    "#SBATCH ", "--nodes=2", "-N2", "--time=", "01:00:00", "--gres=gpu:4", "--array=0-99", "--output=%x-%j.out", "\n",
    "\n", "\n", "\r\n", " ", "\t", "'", '"', "`", "$(", ")", "${", "}", "$((", "))", "((", "[[", "]]", "{", "(", "|",
    "||", "&&", "&", ";", ";;", "<<EOF\n", "EOF\n", "<<-'X'\n", "X\n", "<<<", ">", "2>&1", "\\\n", "\\", "\\ \n", "#",
    "#!/bin/bash\n", "#!/usr/bin/env python\n", "if ", "then ", "fi\n", "for i in ", "while ", "do ", "done\n", "case ",
    "esac\n", "in ", "f() {", "function g", "srun ", "mpirun -np 4 ", "torchrun --nproc_per_node=4 ", "deepspeed ",
    "accelerate launch ", "apptainer exec --nv ", "img.sif ", "bash -c ", "eval ", "source ", "python train.py ",
    "export A=1 ", "A=(1 2) ", "A+=3 ", '"${A[@]}" ', "$A ", "trap 'x' USR1 ", "wait ", "sbatch job.sh ", "sleep 60 ",
    "squeue -u $USER ", "MASTER_PORT=29500 ", "CUDA_VISIBLE_DEVICES=0 ", "NCCL_DEBUG=INFO ", "{{ x }}", "{% if y %}",
    "{% endif %}", "{#", "#}", "é", "日本", "\u2028", "\x0b", "\x1b[31m", "\ufeff", "hetjob",
    "# scalewright: ignore=no-time",
)  # fmt: skip


@cache
def _scripts_of_sites() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted(GOLDEN.glob("*.sbatch")))


def fuzzed_script(chance: random.Random) -> bytes:
    """Of three scripts one is a random sequence of tokens; the others are mutated scripts of the sites."""
    if chance.randrange(3) == 0:
        return "".join(chance.choices(TOKENS, k=chance.randint(1, 60))).encode()
    return _mutated(chance.choice(_scripts_of_sites()), chance).encode()


def _mutated(text: str, chance: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    first = chance.randrange(len(lines))
    text = "".join(lines[:12] + lines[first : first + chance.randint(1, 40)])
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(4):
            case 0:
                text = text[:at] + text[at + chance.randint(1, 20) :]
            case 1:
                text = text[:at] + chance.choice(TOKENS) + text[at:]
            case 2:
                text = text[:at] + text[at : at + 30] * chance.randint(2, 4) + text[at + 30 :]
            case _:
                text = text[:at]
        if not text:
            return "\n"
    return text


LINTER = Linter(settings=LintSettings(), context=Context())


def linted(content: bytes) -> Script:
    """The script, linted. Raises `ConfigError` where it is refused."""
    checked_text(content, "fuzzed")
    text = content.decode()
    script = parse_script(text, "fuzzed")
    for finding in LINTER.lint(script):
        assert 1 <= finding.line <= len(script.lines)
        assert finding.column >= 1
        if finding.fix is not None:
            assert all(0 <= edit.start <= edit.end <= len(text) for edit in finding.fix.edits)
    return script


def num_serious(findings: Sequence[LintFinding]) -> int:
    return sum(finding.severity != "info" for finding in findings)


def check(content: bytes, *, fix: bool) -> None:
    """Lint a script. `fix`: mend it as well, and check that mending ends and makes nothing worse."""
    script = linted(content)
    if not fix:
        return
    fixed = fix_script(script, LINTER, parse_script, unsafe=True)
    again = fix_script(parse_script(fixed.text), LINTER, parse_script, unsafe=True)
    assert again.text == fixed.text
    assert num_serious(fixed.open_findings) <= num_serious(LINTER.lint(script)), script.text
