"""Scripts that nobody would write: mutations of real ones and soups of tokens, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

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
    "{% endif %}", "{#", "#}", "é", "日本", "\u2028", "\x0b", "\x1b[31m", "\ufeff", "hetjob", "# scalewright: ignore=no-time",
)  # fmt: skip


def fuzzed_scripts(seed: int, count: int) -> Iterator[str]:
    """`count` scripts; every third is a soup of tokens, the others are rendered scripts that lost some of their sense."""
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
