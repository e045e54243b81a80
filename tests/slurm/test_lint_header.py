"""The header of a script as we read it, held against the sbatch of a real cluster: the same options, or both refuse."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from scalewright.lab.cluster import Lab
from scalewright.lint.script import Script, parse_script

pytestmark = pytest.mark.slurm

OPTIONS = (
    "--job-name=abc", "--job-name abc", "-J abc", "-Jabc", "--comment='two words'", '--comment="two words"',
    "--comment=a#b", "--comment=a\\ b", "-N1", "-N 1", "--nodes=1", "--nodes 1", "--ntasks=2", "-n2", "-n 2",
    "--time=10", "-t 00:10:00", "--time 0-00:10", "--exclusive", "--exclusive=user", "--exclusive user", "-H", "-HN1",
    "--requeue", "--requeue=1", "--no-requeue", "--output=x-%j.out", "-o x.out", "--erro=y.err", "--part=batch",
    "--tasks-per-node=1", "--foo=3", "--node=1", "-- -J abc", "stray", "\\", '""', "# comment", "--mem=100M",
    "-p batch", "--job-name=", "--job-name", "hetjob", "--licens=x", "--workdir=/tmp", "–nodes=1", "-c1",
    "--signal=USR1@60",
)  # fmt: skip
PREFIXES = ("#SBATCH ",) * 8 + ("#SBATCH\t", "#SBATCH", "#SLURM ", "##SBATCH ", "# SBATCH ", "#sbatch ", " #SBATCH ")
BETWEEN = ("", "", "", "", "# a comment\n", "\n", "   # another\n", "hostname\n")
SHOWN = re.compile(r"^sbatch: ([a-z0-9-]+)\s+: (.*)$", re.M)
COMPARED = ("job-name", "comment", "nodes", "ntasks", "exclusive", "hold", "requeue", "no-requeue", "output", "error",
            "partition", "ntasks-per-node", "licenses", "cpus-per-task")  # fmt: skip


SHOWN_OTHERWISE = {"requeue", "no-requeue", "exclusive", "ntasks"}


def script_of(chance: random.Random) -> str:
    lines = ["#!/bin/bash\n"]
    for _ in range(chance.randint(1, 5)):
        words = " ".join(chance.choices(OPTIONS, k=chance.randint(1, 2)))
        lines += [chance.choice(PREFIXES) + words + "\n", chance.choice(BETWEEN)]
    return "".join(lines) + "hostname\n"


def said_by_sbatch(lab: Lab, path: Path) -> tuple[bool, dict[str, str], str]:
    """Whether sbatch could read the header, the options that it took from it, and all that it said."""
    done = subprocess.run(
        ["sbatch", "-v", "--test-only", str(path)], env=lab.env, capture_output=True, text=True, check=False
    )
    first_part = done.stderr.partition("end of defined options")[0]
    shown = {name: value.removeprefix(f"{Path.cwd()}/") for name, value in SHOWN.findall(first_part)}
    return "end of defined options" in done.stderr, shown, done.stderr


def is_refused(script: Script) -> bool:
    read = [d for d in script.directives if d.ignored in ("", "overridden")]
    return bool(script.header.errors or script.header.stray or any(d.problem for d in read))


def our_options(script: Script) -> dict[str, str]:
    return {
        d.name: "set" if d.value is None else d.value for d in script.directives if d.is_effective and d.component == 0
    }


@pytest.mark.parametrize("seed", range(4))
def test_headers_are_read_as_sbatch_reads_them(slurm: Lab, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "job.sh"
    num_read = num_refused = 0
    for _ in range(60):
        text = script_of(chance)
        path.write_text(text, encoding="utf-8")
        is_read, theirs, message = said_by_sbatch(slurm, path)
        script = parse_script(text)
        if "hetjob" in text:
            continue
        if is_refused(script):
            assert not is_read, f"we refuse what sbatch reads:\n{text}\n{script.header}"
            num_refused += 1
        elif not is_read:
            assert re.search(r"Invalid --|is not a valid|invalid|Requested", message), (
                f"sbatch refuses:\n{text}\n{message}"
            )
        else:
            ours = {name: value for name, value in our_options(script).items() if name in COMPARED}
            for name in sorted(
                {*ours, *(theirs.keys() & set(COMPARED))} - {"requeue", "no-requeue", "exclusive", "ntasks"}
            ):
                assert ours.get(name) == theirs.get(name), f"{name} in\n{text}\n{message}"
            num_read += 1
    assert num_read > 10
    assert num_refused > 5
