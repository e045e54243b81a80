"""Scripts run with stand-ins before and after their fixes: a safe fix leaves everything that runs as it was."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from scalewright.lint.engine import Linter
from scalewright.lint.fixes import fix_script
from scalewright.lint.rule import Context
from scalewright.lint.rules import all_rules
from scalewright.lint.script import parse_script
from scalewright.lint.settings import LintSettings

sys.path.insert(0, str(Path(__file__).parent))  # how cases are written
from lint_cases import job
from test_lint_rules import CASES

PROGRAMS = """srun sbatch scontrol scancel squeue sacct python python3 torchrun deepspeed accelerate mpirun apptainer
singularity podman docker module ml conda pip uv git ray rm cp mv rsync tar wget curl wandb sleep nvidia-smi hostname
mkdir cat"""
RECORD = """#!/bin/bash
{ printf '%s' "${0##*/}"; printf ' <%s>' "$@"; printf ' | %s %s\\n' "$MASTER_ADDR" "$MASTER_PORT"; } >> "$RECORD"
case ${0##*/} in
    scontrol|hostname) echo node1 ;;
    srun) while [[ $1 == -* ]]; do shift; done; [[ $1 == bash ]] && "$@" ;;
esac
exit 0
"""
BROKEN = {
    "no-shebang": "sbatch refuses the script as it is",
    "byte-order-mark": "sbatch refuses the script as it is",
    "dos-line-ends": "sbatch refuses the script as it is",
    "value-invalid": "sbatch refuses the script as it is",
}
"""Rules about scripts that never run as they are."""
GPU = "--nodes=2 --gres=gpu:4 --ntasks-per-node=1 --output=%x-%j.out"
JOINED = "--nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD"


@dataclass(frozen=True, slots=True)
class Fixed:
    """A script before and after the safe fixes of a rule."""

    rule: str
    before: str
    after: str


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bin")
    for name in PROGRAMS.split():
        (folder / name).write_text(RECORD)
        (folder / name).chmod(0o755)
    return folder


def what_runs(text: str, stand_ins: Path, folder: Path) -> list[str]:
    """The commands that the script runs, with their arguments and where ranks meet; ports by a common name."""
    folder.mkdir()
    record = folder / "record.txt"
    record.touch()
    (folder / "job.sh").write_text(text)
    environment = {
        "PATH": f"{stand_ins}:/usr/bin:/bin", "RECORD": str(record), "HOME": str(folder), "SLURM_JOB_ID": "4711",
        "SLURM_NNODES": "2", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "node1",
        "HEAD": "node1",
        "SLURM_CPUS_PER_TASK": "8", "SLURM_ARRAY_TASK_ID": "1", "SLURM_SUBMIT_DIR": str(folder), "TMPDIR": str(folder),
    }  # fmt: skip
    bash = ["bash", "--norc", "--noprofile", "job.sh"]
    subprocess.run(bash, cwd=folder, env=environment, capture_output=True, timeout=20, check=False)
    port = str(20000 + 4711 % 10000)
    return [line.replace(port, "PORT") for line in record.read_text().splitlines()]


def safe_fixes() -> list[object]:
    """Every case of a rule that a safe fix changes."""
    changed = []
    for rule, cases in CASES.items():
        for number, case in enumerate((all_rules()[rule].before, *cases.fires)):
            text, context = case if isinstance(case, tuple) else (case, cases.context)
            linter = Linter(settings=LintSettings(select=(rule,)), context=context)
            after = fix_script(parse_script(text), linter, parse_script, unsafe=False).text
            if after != text:
                changed.append(pytest.param(Fixed(rule, text, after), id=f"{rule}-{number}"))
    return changed


@pytest.mark.parametrize("fixed", safe_fixes())
def test_a_safe_fix_leaves_what_runs(fixed: Fixed, stand_ins: Path, tmp_path: Path) -> None:
    if fixed.rule in BROKEN:
        assert fixed.before != fixed.after
        return
    before = what_runs(fixed.before, stand_ins, tmp_path / "before")
    after = what_runs(fixed.after, stand_ins, tmp_path / "after")
    ports = sorted(set(re.findall(r"\b\d{4,5}\b", fixed.before)), key=len, reverse=True)
    for port in ports if fixed.rule == "fixed-port" else ():
        before = [re.sub(rf"\b{port}\b", "PORT", line) for line in before]
    assert after == before


def safely_fixed(text: str) -> str:
    linter = Linter(settings=LintSettings(), context=Context())
    return fix_script(parse_script(text), linter, parse_script, unsafe=False).text


@pytest.mark.parametrize(
    "body",
    [
        "port=6379\nsrun ray start --head --port=$port --block &\nsrun ray start --address=$HEAD:6379 --block &\nwait",
        "RAY_PORT=6379\nsrun ray start --head --port=$RAY_PORT --block &\npython driver.py",
        f"export MASTER_PORT=29500\nsrun torchrun {JOINED}:29500 train.py",
        "export MASTER_PORT=29500\nsrun ./run_rank.sh\nssh $HEAD python peer.py 29500",
        "export MASTER_PORT=29500\nsource settings.sh\nsrun python train.py",
        "if true; then\n  export MASTER_PORT=29500\nfi\nsrun python train.py",
    ],
)
def test_a_port_that_others_may_know_is_not_changed_safely(body: str) -> None:
    text = job(GPU, body)
    assert safely_fixed(text) == text


@pytest.mark.parametrize(
    "body",
    [
        "export MASTER_PORT=29500\nsrun python train.py",
        f"MASTER_PORT=29500\nsrun torchrun {JOINED}:$MASTER_PORT train.py",
        f"srun torchrun {JOINED}:29500 train.py",
    ],
)
def test_a_port_that_all_users_derive_is_changed_safely(body: str, stand_ins: Path, tmp_path: Path) -> None:
    text = job(GPU, body)
    fixed = safely_fixed(text)
    assert "29500" not in fixed
    before = [line.replace("29500", "PORT") for line in what_runs(text, stand_ins, tmp_path / "before")]
    assert what_runs(fixed, stand_ins, tmp_path / "after") == before


def test_a_port_that_is_not_the_endpoint_stays() -> None:
    fixed = safely_fixed(job(GPU, f"export MASTER_PORT=29500\nsrun torchrun {JOINED}:29600 train.py"))
    assert "export MASTER_PORT=29500" in fixed


@pytest.mark.parametrize("unsafe", [False, True], ids=["safe", "unsafe"])
def test_no_fix_forbids_to_requeue(unsafe: bool) -> None:
    for options in ("--gres=gpu:1", "--gres=gpu:1 --partition=preempt"):
        text = job(options, "srun python train.py")
        linter = Linter(settings=LintSettings(), context=Context())
        assert "--no-requeue" not in fix_script(parse_script(text), linter, parse_script, unsafe=unsafe).text


KEEPS_PROGRAMS = sorted(set(all_rules()) - set(BROKEN))


@pytest.mark.parametrize("rule", KEEPS_PROGRAMS)
def test_no_fix_drops_a_program(rule: str, stand_ins: Path, tmp_path: Path) -> None:
    """An unsafe fix may add options or repair a broken line. Every program that ran still runs with its own files."""
    cases = CASES[rule]
    linter = Linter(settings=LintSettings(select=(rule,)), context=cases.context)
    text = all_rules()[rule].before
    after = fix_script(parse_script(text), linter, parse_script, unsafe=True).text
    if after == text:
        return
    files = re.compile(r"<([\w./-]+\.(?:py|sh|pt|sbatch))>")

    def programs(script: str, name: str) -> list[str]:
        lines = what_runs(script, stand_ins, tmp_path / name)
        return sorted(match for line in lines for match in files.findall(line))

    kept = programs(after, "after")
    assert [name for name in programs(text, "before") if name not in kept] == []
