"""Whole scripts: lint finds all mistakes of published recipes, and no error or warning in correct scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scalewright.launch.script.render import render
from scalewright.lint.engine import Linter, LintFinding
from scalewright.lint.rule import Context
from scalewright.lint.script import parse_script
from scalewright.lint.settings import LintSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch"))  # scripts that we render ourselves
import script_cases

HEADER = """#!/usr/bin/env bash
#SBATCH -J train
#SBATCH -A <account>
#SBATCH -p <partition>
#SBATCH --qos=<qos>
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --mem-per-gpu=64G          # prefer explicit mem
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --output=logs/%x-%j.out
#SBATCH --array=0-199%20
# Alternative for sites without --gpus-per-task:
# #SBATCH --gres=gpu:8

set -euo pipefail
module purge
"""
RENDEZVOUS = """export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
export MASTER_PORT=${MASTER_PORT:-29500}
sleep $((RANDOM%15))
"""
SAVE = "trap 'python -m app.checkpoint --quick || true; scontrol requeue $SLURM_JOB_ID; exit 0' USR1 TERM\n"
CLEAN = "trap 'rm -rf \"${SLURM_TMPDIR:?}\"/* || true' EXIT\n"
TORCHRUN = (
    "singularity exec --nv myenv.sif torchrun --nproc_per_node=$SLURM_NTASKS_PER_NODE --nnodes=$SLURM_NNODES "
    "--rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT train.py\n"
)
RAY = (
    """#!/usr/bin/env bash
#SBATCH -A <account>
#SBATCH -p <partition>
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1           # one Ray worker per node
#SBATCH --gpus-per-task=8
#SBATCH --cpus-per-task=8
#SBATCH --time=06:00:00
#SBATCH --output=logs/%x-%j.out

set -euo pipefail
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
export GCS_PORT=${GCS_PORT:-6379}
srun bash -c '
if [[ "$SLURM_PROCID" -eq 0 ]]; then
  ray start --head --port="$GCS_PORT"
else
  ray start --address="$MASTER_ADDR:$GCS_PORT"
fi
'
singularity exec --nv myenv.sif \\ """
    + """
  python train_with_ray.py --address "ray://$MASTER_ADDR:10001"
"""
)
HEREDOC = "srun python - <<'PY'\nimport json, os\n{}\nPY\n"

SLIPS = {
    "launcher-per-task": HEADER + RENDEZVOUS + f"srun --gpu-bind=single:1 {TORCHRUN}",
    "trap-blocked-by-srun": HEADER + SAVE + CLEAN + RENDEZVOUS + "srun --gpu-bind=single:1 python train.py\n",
    "trap-replaced": HEADER + CLEAN + "trap 'EXIT_STATUS=$?; on_exit' EXIT\nsrun python train.py &\nwait\n",
    "local-rank-path": HEADER + HEREDOC.format("log = open(f\"rank-{os.getenv('LOCAL_RANK','0')}.jsonl\", 'a')"),
    "shards-off-by-one": HEADER + HEREDOC.format("M = int(os.environ.get('WORLD_SIZE', '1'))+1"),
    "checkpoint-not-atomic": HEADER + HEREDOC.format("json.dump({}, open('checkpoint_manifest.json', 'w'))"),
    "ray-step-ends": RAY,
    "backslash-space": RAY,
    "rank-unset": HEADER + HEREDOC.format("print(int(os.environ['RANK']))"),
}
FIXED = {
    "one rank per task": HEADER
    + SAVE
    + CLEAN
    + RENDEZVOUS
    + "srun --gpu-bind=single:1 --cpu-bind=cores python train.py --master-addr $MASTER_ADDR &\nwait $!\n",
    "torchrun": HEADER.replace("--ntasks-per-node=8", "--ntasks-per-node=1").replace(
        "--gpus-per-task=1", "--gpus-per-task=8"
    )
    + SAVE
    + CLEAN
    + RENDEZVOUS
    + f"srun {TORCHRUN.replace('$SLURM_NTASKS_PER_NODE', '8').rstrip()} &\nwait $!\n",
    "ray": RAY.replace("\\ \n", "\\\n").replace("ray start", "ray start --block").replace("fi\n'\n", "fi\n' &\n"),
    "array": "#!/bin/bash\n#SBATCH --array=0-999%20\n#SBATCH --time=01:00:00\nsleep $((RANDOM%15))\n"
    'ITEM=$(sed -n "$((SLURM_ARRAY_TASK_ID+1))p" inputs.txt)\npython stage.py --input "$ITEM"\n',
    "chain": "#!/bin/bash\njid=$(sbatch prep.sbatch | awk '{print $NF}')\n"
    "sbatch --dependency=afterok:${jid} train.sbatch\nsbatch --dependency=singleton cleanup.sbatch\n",
}


def lint(text: str, context: Context) -> list[LintFinding]:
    return Linter(settings=LintSettings(), context=context).lint(parse_script(text))


def grave(findings: list[LintFinding]) -> list[tuple[str, int, str]]:
    return [(f.rule, f.line, f.message) for f in findings if f.severity != "info"]


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_of_a_published_recipe_is_found(slip: str) -> None:
    assert slip in {finding.rule for finding in lint(SLIPS[slip], Context())}


@pytest.mark.parametrize("name", FIXED)
def test_a_recipe_without_its_slips_is_right(name: str) -> None:
    assert grave(lint(FIXED[name], Context())) == []


@pytest.mark.parametrize("name", script_cases.cases())
@pytest.mark.parametrize("is_known", [True, False], ids=["for its site", "for no site"])
def test_rendered_scripts_are_right(name: str, is_known: bool) -> None:
    site, request = script_cases.cases()[name]
    assert grave(lint(render(request, site).text, Context(site=site if is_known else None))) == []
