"""The severity of a finding depends on the rest of the script; fixes that cannot be right are not offered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scalewright.lint.engine import Linter, LintFinding
from scalewright.lint.rule import Context
from scalewright.lint.script import parse_script
from scalewright.lint.settings import LintSettings

sys.path.insert(0, str(Path(__file__).parent))  # how cases are written
from lint_cases import job

GPU = "--gres=gpu:4 --time=12:00:00 --cpus-per-task=8"
TWO = "--nodes=2 --ntasks-per-node=1 --gpus-per-node=4"
EARLY = "$LAUNCH --nnodes=2 --node_rank=$SLURM_PROCID train.py"
REQUEUE = f"{GPU} --requeue --signal=B:USR1@120"
BEHIND = "srun python train.py &\npid=$!\nwait $pid"


def findings_of(rule: str, text: str, folder: Path = Path()) -> list[LintFinding]:
    context = Context(folder=folder)
    return Linter(settings=LintSettings(select=(rule,)), context=context).lint(parse_script(text))


@pytest.mark.parametrize(
    ("rule", "text", "severity"),
    [
        ("directive-malformed", job(GPU, "# SBATCH --exclusive\nsrun hostname"), "info"),
        ("directive-malformed", job("--nodes=1", "# SBATCH --time=01:00:00\nsrun hostname"), "warning"),
        ("directive-malformed", job(GPU, "#SBTACH --exclusive\nsrun hostname"), "error"),
        ("rank-expanded-early", job(TWO, f'srun bash -c "{EARLY} --rdzv_backend c10d"'), "info"),
        ("fixed-port", job("--gres=gpu:8", "export MASTER_PORT=29500\nsrun python train.py"), "info"),
        ("fixed-port", job("--gres=gpu:4 --mem=0", "export MASTER_PORT=29500\nsrun python train.py"), "info"),
        ("fixed-port", job("--nodes=4 --gres=gpu:4", "export MASTER_PORT=29500\nsrun python train.py"), "info"),
        ("fixed-port", job("--nodes=2 --gres=gpu:2", "export MASTER_PORT=29500\nsrun python train.py"), "warning"),
        ("gpu-job-without-cpus", job("--gres=gpu:8", "python train.py"), "warning"),
        ("gpu-job-without-cpus", job("--gres=gpu:1 --time=00:30:00", "python train.py"), "info"),
        ("visible-devices-set", job(GPU, "CUDA_VISIBLE_DEVICES=0,1,2,3 python train.py"), "info"),
        ("preemptible-unprepared", job("--gres=gpu:1 --time=3-0 --partition=scavenger", "python a.py"), "warning"),
        ("preemptible-unprepared", job("--gres=gpu:1 --time=1:00:00 --partition=scavenger", "python a.py"), "info"),
        ("gpus-only-on-srun", job("--nodes=1", "srun --gpus-per-task=1 python train.py"), "info"),
        ("gpus-only-on-srun", job("--nodes=1 --mem=8G", "srun --gpus-per-task=1 python train.py"), "warning"),
        ("tasks-without-srun", job("--nodes=1 --ntasks=4 --gres=gpu:4", "python train.py"), "warning"),
        ("tasks-without-srun", job("--nodes=1 --ntasks=4 --gres=gpu:1", "python train.py"), "info"),
        ("slurm-variable-unset", job("--gres=gpu:4", "echo $SLURM_GPUS\nsrun python train.py"), "info"),
        ("nodes-idle", job("--nodes=2", "torchrun --nproc_per_node=4 train.py"), "warning"),
        ("nodes-idle", job("--nodes=2", "torchrun --nnodes=2 --nproc_per_node=4 train.py"), "error"),
        ("requeue-without-resume", job(REQUEUE, BEHIND), "warning"),
        ("requeue-without-resume", job(REQUEUE, f"trap 'kill -USR1 $pid' USR1\n{BEHIND}"), "info"),
        ("requeue-without-resume", job(REQUEUE, 'srun app train "$@"'), "info"),
        ("requeue-without-resume", job(REQUEUE, "srun python train.py --fold $1"), "warning"),
        ("visible-devices-set", job(GPU, "export CUDA_VISIBLE_DEVICES=0,1,2,3\npython train.py"), "info"),
        ("visible-devices-set", job(GPU, "export CUDA_VISIBLE_DEVICES=0,1\npython train.py"), "warning"),
        ("workers-over-cpus", job(GPU, "srun python train.py --num_workers 12"), "warning"),
        ("workers-over-cpus", job(GPU, "torchrun --nproc_per_node=4 train.py --num_workers 4"), "info"),
    ],
)
def test_what_else_the_script_says_decides_how_grave_it_is(rule: str, text: str, severity: str) -> None:
    assert [finding.severity for finding in findings_of(rule, text)] == [severity]


def test_one_port_is_told_of_once_where_it_is_set() -> None:
    text = job(GPU, "MASTER_PORT=6000\nsrun torchrun --master_addr=$HEAD --master_port=$MASTER_PORT train.py")
    assert [finding.line for finding in findings_of("fixed-port", text)] == [3]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("host-pinned", job("--nodelist=node[01-02]", "srun hostname")),
        ("directive-malformed", job("--nodes=1", "# SBATCH --time=01:00:00\nsrun hostname")),
        ("no-requeue", job("--gres=gpu:1 --account=FILL ACCOUNT")),
    ],
)
def test_a_rewrite_that_may_be_wrong_is_not_offered(rule: str, text: str) -> None:
    (finding,) = findings_of(rule, text)
    assert finding.fix is None


def test_saving_alone_does_not_make_a_job_one_to_queue_again() -> None:
    (saves,) = findings_of("no-requeue", job(GPU, "srun python train.py --save checkpoints"))
    (resumes,) = findings_of("no-requeue", job(GPU, "srun python train.py --save checkpoints --resume"))
    assert "--no-requeue" in saves.next_step
    assert "--no-requeue" not in resumes.next_step


def test_a_new_directive_goes_into_the_first_part_of_a_job() -> None:
    (finding,) = findings_of(
        "no-requeue", job("--nodes=1 --gpus=1\nhetjob\n--nodes=2 --gpus=4", "srun python a.py --resume")
    )
    assert finding.fix is not None
    assert finding.line == 2


def test_lines_of_a_list_are_counted_where_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "runs.txt").write_text("a\nb\nc\n")
    body = 'run=$(sed -n "${SLURM_ARRAY_TASK_ID}p" runs.txt)\npython train.py "$run"'
    assert findings_of("array-beyond-list", job(f"{GPU} --array=1-3", body), tmp_path) == []
    (finding,) = findings_of("array-beyond-list", job(f"{GPU} --array=1-5%2", body), tmp_path)
    assert (finding.severity, finding.next_step) == ("error", "write --array=1-3%2")


@pytest.mark.parametrize(("made", "is_reported"), [("mkdir -p logs", False), ("mkdir -p other", True)])
def test_the_folder_that_a_writing_script_makes_is_there(made: str, is_reported: bool) -> None:
    inner = "#!/bin/bash\n#SBATCH --gres=gpu:1 --output=logs/%j.out\nmkdir -p logs\npython train.py"
    text = f"#!/bin/bash\n{made}\ncat > job.sh <<'EOF'\n{inner}\nEOF\nsbatch job.sh\n"
    assert bool(findings_of("output-folder", text)) is is_reported
