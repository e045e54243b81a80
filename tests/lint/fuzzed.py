"""Fuzzed scripts: mutations of real ones and random sequences of tokens, the same for the same seed.

    python tests/lint/fuzzed.py 100000

lints that many of them and prints the time; `make soak` calls it.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from scalewright.errors import ConfigError
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


def fuzzed_scripts(seed: int, count: int) -> Iterator[str]:
    """`count` scripts; every third is a random sequence of tokens, the others are mutated scripts of the sites."""
    chance = random.Random(seed)
    whole = [path.read_text(encoding="utf-8") for path in sorted(GOLDEN.glob("*.sbatch"))]
    for number in range(count):
        if number % 3 == 0:
            yield "".join(chance.choices(TOKENS, k=chance.randint(1, 60)))
        else:
            yield _mutated(chance.choice(whole), chance)


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
HANG_CPU_S = 20.0
"""Far above the time of any script, so that a busy machine does not fail the test."""


def linted(text: str) -> Script | None:
    try:
        checked_text(text.encode("utf-8"), "fuzzed")
    except ConfigError:
        return None
    script = parse_script(text, "fuzzed")
    for finding in LINTER.lint(script):
        assert 1 <= finding.line <= len(script.lines)
        assert finding.column >= 1
        if finding.fix is not None:
            assert all(0 <= edit.start <= edit.end <= len(text) for edit in finding.fix.edits)
    return script


def num_serious(findings: Sequence[LintFinding]) -> int:
    return sum(finding.severity != "info" for finding in findings)


def check_many(seed: int, count: int) -> float:
    """Lint and fix scripts; return the longest CPU time of one script."""
    longest = 0.0
    for number, text in enumerate(fuzzed_scripts(seed, count)):
        before = time.process_time()
        script = linted(text)
        longest = max(longest, time.process_time() - before)
        assert longest < HANG_CPU_S, text
        if script is not None and number % 20 == 0:
            fixed = fix_script(script, LINTER, parse_script, unsafe=True)
            again = fix_script(parse_script(fixed.text), LINTER, parse_script, unsafe=True)
            assert again.text == fixed.text
            assert num_serious(fixed.open_findings) <= num_serious(LINTER.lint(script)), text
    return longest


if __name__ == "__main__":
    began, count = time.process_time(), int(sys.argv[1])
    worst = check_many(seed=int(time.time()), count=count)
    spent = time.process_time() - began
    sys.stdout.write(f"{count:,} fuzzed scripts: {spent:.0f} s of CPU, the longest {worst:.2f} s\n")
