"""Scripts that a script calls, and job scripts that it writes, are linted with it."""

from __future__ import annotations

from pathlib import Path

from scalewright.lint.engine import Linter, LintFinding
from scalewright.lint.rule import Context
from scalewright.lint.script import parse_script
from scalewright.lint.settings import LintSettings

HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
RANKS = "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:$PORT train.py\n"


def serious(text: str, folder: Path | None = None) -> list[LintFinding]:
    findings = Linter(settings=LintSettings(), context=Context()).lint(parse_script(text, folder=folder))
    return [finding for finding in findings if finding.severity == "error"]


def test_a_script_that_a_step_calls_is_followed(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\nexport OMP_NUM_THREADS=8\n{RANKS}")
    for call in ("srun ./run.sh", "srun bash run.sh", "S=run.sh\nsrun bash $S --lr 1"):
        (finding,) = serious(f"{HEAD}{call}\n", tmp_path)
        assert finding.rule == "launcher-per-task"
        assert "(in " in finding.message
        assert "run.sh:3)" in finding.message
        assert finding.fix is None


def test_a_script_that_calls_itself_or_is_missing_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("bash run.sh\nsource run.sh\n./run.sh\n")
    assert serious(f"{HEAD}srun ./run.sh\nsrun ./missing.sh\n", tmp_path) == []


def test_a_job_script_in_a_heredoc_is_linted_at_its_lines() -> None:
    job = f"{HEAD}#SBATCH --job-name=run_$lr\nsrun {RANKS}"
    text = f"#!/bin/bash\nNODES=2\nfor lr in 1 2; do\nsbatch <<EOF\n{job}EOF\ndone\n"
    (finding,) = serious(text)
    assert (finding.rule, finding.line) == ("launcher-per-task", 10)
    assert "written here" in finding.message
    assert finding.fix is None


def test_known_values_of_the_outer_script_count_in_the_inner_one() -> None:
    text = "#!/bin/bash\nN=8\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --gres=gpu:4\ntorchrun --nproc_per_node=$N a.py\nEOF\n"
    assert [finding.rule for finding in serious(text)] == ["nproc-over-gpus"]
    assert serious(text.replace("N=8", "N=$1")) == []
    assert serious(text.replace("gpu:4", "gpu:$G")) == []
    assert serious(text.replace("gpu:4", "gpu:$((G * 2))")) == []
