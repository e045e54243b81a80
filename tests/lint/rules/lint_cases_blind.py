"""Cases of rules that scripts judged blind have shown to be missing."""

from __future__ import annotations

from lint_cases import Cases, job, shell

GPU = "--gres=gpu:4 --time=12:00:00 --cpus-per-task=8"
TWO = "--nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --time=12:00:00"
NODES = 'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")'
RAY = "srun -N1 -n1 ray start --head --block &\nuntil ray status; do sleep 5; done\n"

CASES = {
    "step-over-cpus": Cases(
        fires=(
            job("--ntasks=1 --cpus-per-task=20 --gres=gpu:8", "srun --cpus-per-task=80 python train.py"),
            job("--ntasks-per-node=2 --nodes=1 --cpus-per-task=4", "srun -n 4 -c 4 python train.py"),
        ),
        silent=(
            job("--ntasks=1 --cpus-per-task=20", "srun --cpus-per-task=20 python train.py"),
            job("--ntasks=4 --nodes=1 --cpus-per-task=4", "srun -n 1 -c 16 python train.py"),
            job("--ntasks=1 --cpus-per-task=2 --exclusive", "srun -c 8 python train.py"),
            job("--ntasks=1", "srun -c 8 python train.py"),
            job("--ntasks=1 --cpus-per-task=2", "srun -c $N python train.py"),
        ),
    ),
    "step-without-effect": Cases(
        fires=(
            job(GPU, "srun conda activate train\nsrun python train.py"),
            job(GPU, 'srun bash -c "cd $WORK_DIR"\nsrun python train.py'),
            job(GPU, "srun module load cuda\nsrun python train.py"),
        ),
        silent=(
            job(GPU, 'srun bash -c "cd $WORK_DIR && python train.py"'),
            job(GPU, "srun conda run -n train python train.py"),
            job(GPU, "srun mkdir -p $WORK_DIR\nsrun python train.py"),
            job(GPU, "conda activate train\nsrun python train.py"),
        ),
    ),
    "copy-without-target": Cases(
        fires=(
            job(GPU, "rsync -a --exclude='*.out' $WORK_DIR\npython train.py"),
            job(GPU, 'srun rsync -a --exclude="*.out" /scratch0/slurm_${SLURM_JOBID}\npython train.py'),
            shell("cp data.tar"),
        ),
        silent=(
            job(GPU, "rsync -a data/ $TMPDIR\npython train.py"),
            job(GPU, "cp -t $TMPDIR data.tar\npython train.py"),
            job(GPU, "cp {a,b}.txt\npython train.py"),
            job(GPU, 'cp "$@"\npython train.py'),
            job(GPU, "rsync --list-only host:data\npython train.py"),
            job(GPU, 'rsync -a "${FILES[@]}"\npython train.py'),
        ),
    ),
    "assignment-to-value": Cases(
        fires=(job(GPU, "$TMPDIR=$2 srun python train.py"), shell("${OUT}=/scratch/me\npython train.py")),
        silent=(
            job(GPU, "TMPDIR=$2 srun python train.py"),
            job(GPU, "python train.py $KEY=$VALUE"),
            job(GPU, '"$PROGRAM" a=b'),
        ),
    ),
    "bash-in-sh": Cases(
        fires=(
            "#!/bin/sh\n#SBATCH --gres=gpu:1\nsource env/bin/activate\npython train.py\n",
            "#!/bin/sh\n#SBATCH --gres=gpu:1\nif [[ $A == b ]]; then python train.py; fi\n",
            "#!/usr/bin/env sh\n#SBATCH --gres=gpu:1\nA=(1 2)\npython train.py ${A[0]}\n",
        ),
        silent=(
            "#!/bin/sh\n#SBATCH --gres=gpu:1\n. env/bin/activate\npython train.py > log 2>&1\n",
            "#!/bin/bash\n#SBATCH --gres=gpu:1\nsource env/bin/activate\npython train.py\n",
            "#!/bin/sh\n#SBATCH --gres=gpu:1\nbash <<'EOF'\nsource env/bin/activate\nEOF\npython train.py\n",
            "#!/bin/sh\n#SBATCH --gres=gpu:1\nX=$((1 + 2))\n[ $X = 3 ] && python train.py\n",
        ),
    ),
    "shebang-option": Cases(
        fires=("#!/bin/sh \u2013l\n#SBATCH -N2\nsrun hostname\n", "#!/bin/bash \u2014login\necho a\n"),
        silent=("#!/bin/bash -l\n#SBATCH -N2\nsrun hostname\n", "#!/bin/bash\n# a \u2013 b\necho a\n"),
    ),
    "ray-blocks-step": Cases(
        fires=(job(GPU, RAY + "srun python tune.py"), job(GPU, RAY + "srun -u python -u tune.py --model $1")),
        silent=(
            job(GPU, RAY + "python tune.py"),
            job(GPU, RAY + "srun --overlap python tune.py"),
            job(GPU, RAY + "export SLURM_OVERLAP=1\nsrun python tune.py"),
            job("--nodes=2 --gres=gpu:4", RAY + "srun -n1 -w $OTHER python tune.py"),
        ),
    ),
    "time-min-alone": Cases(
        fires=(job("--time-min=01:00:00 --gres=gpu:1"), job("--time-min=30 -N2")),
        silent=(job("--time=02:00:00 --time-min=01:00:00 --gres=gpu:1"), job("--time=01:00:00")),
    ),
    "placeholder-value": Cases(
        fires=(job("--account=<your_project>"), job("--partition=YOUR_PARTITION"), job("--account=--")),
        silent=(job("--account=project_42"), job("--account={{ account }}"), job("--constraint=a100|h100")),
    ),
    "pty-in-batch": Cases(
        fires=(
            job(GPU, "srun --pty python train.py"),
            job(GPU, "srun --gres=gpu:4 --pty apptainer exec a.sif python a.py"),
        ),
        silent=(job(GPU, "srun python train.py"), job(GPU, "srun --pty bash"), shell("srun --pty python train.py")),
    ),
    "manual-variable-unset": Cases(
        fires=(
            job(GPU, "torchrun --standalone --rdzv_endpoint=$HOST_NODE_ADDR train.py"),
            shell("torchrun --nproc_per_node=$NUM_TRAINERS train.py"),
        ),
        silent=(
            job(GPU, "export HOST_NODE_ADDR=a:1\ntorchrun --rdzv_endpoint=$HOST_NODE_ADDR train.py"),
            job(GPU, "torchrun --nproc_per_node=4 train.py"),
        ),
    ),
    "mpirun-over-tasks": Cases(
        fires=(
            job("-N 2 --gpus-per-node=4", "mpirun -n 8 python train.py"),
            job("--ntasks=2 --gres=gpu:2", "mpirun -np 4 python train.py"),
        ),
        silent=(
            job("--ntasks=8 --gres=gpu:4", "mpirun -np 8 python train.py"),
            job("-N 2", "mpirun --oversubscribe -np 8 python train.py"),
            job("-N 2", "mpirun -np 8 --hostfile hosts python train.py"),
            job("-N 2", "mpirun -np $N python train.py"),
            job("--ntasks=$N", "mpirun -np 8 python train.py"),
        ),
    ),
    "results-on-node": Cases(
        fires=(
            job(GPU, "mkdir -p $TMPDIR/results\npython train.py"),
            job(GPU, "cd $TMPDIR\nmkdir results\ncd $OLDPWD\nsrun python train.py"),
            job(GPU, 'OUT="$SLURM_TMPDIR/output"\nmkdir $OUT\npython train.py --to $OUT'),
        ),
        silent=(
            job(GPU, "mkdir -p $TMPDIR/results\npython train.py\nrsync -a $TMPDIR/results $WORK/"),
            job(GPU, "mkdir -p $TMPDIR/data\npython train.py"),
            job(GPU, "mkdir -p $WORK/results\npython train.py"),
            job(GPU, "save() { cp -r $TMPDIR/results $WORK; }\ntrap save EXIT\nmkdir $TMPDIR/results\npython train.py"),
        ),
    ),
}

CASES |= {
    "bracket-glued": Cases(
        fires=(
            job(GPU, '[ -z "$5"] && TP=False || TP=$5\npython train.py --tp $TP'),
            job(GPU, "if [ $# -lt 2]; then\n  exit 1\nfi\npython train.py"),
            shell('while [ ! -f "$DONE"]; do\n  sleep 1\ndone'),
        ),
        silent=(
            job(GPU, '[ -z "$5" ] && TP=False\npython train.py'),
            job(GPU, "if [[ $A == [a-z] ]]; then\n  exit 1\nfi\npython train.py"),
            job(GPU, "ls file[ 0-9]\npython train.py --mesh [ 1,2]"),
            shell("case $1 in\n  [ab]) echo x ;;\nesac\necho [ x]"),
            shell('if [ "${A[0]}" = "${B[1]}" ]; then\n  exit 1\nfi'),
        ),
    ),
    "quotes-in-default": Cases(
        fires=(
            shell("MODEL=\"${1:-'Qwen/Qwen2.5-0.5B'}\"\npython train.py --model $MODEL"),
            shell("export OUT=\"$BASE/${NAME-'run'}\"\npython train.py"),
        ),
        silent=(
            shell('MODEL="${1:-Qwen/Qwen2.5-0.5B}"\npython train.py --model $MODEL'),
            shell("MODEL=${1:-'Qwen/Qwen2.5-0.5B'}\npython train.py --model $MODEL"),
            shell("CMD=\"python -c 'print(${N:-1})'\"\n$CMD"),
        ),
    ),
    "nodes-in-one-element": Cases(
        fires=(
            job(
                TWO,
                f'{NODES}\nA=("$nodes")\nfor i in 1 2; do\n  srun -N1 -n1 -w "${{A[$i]}}" python a.py &\ndone\nwait',
            ),
            job(TWO, f'{NODES}\nLIST=( "${{nodes}}" )\nHEAD=${{LIST[0]}}\nsrun python train.py --host $HEAD'),
        ),
        silent=(
            job(TWO, f"{NODES}\nA=($nodes)\nHEAD=${{A[0]}}\nsrun python train.py --host $HEAD"),
            job(TWO, f'{NODES}\nA=("$nodes")\nsrun python train.py --hosts "$A"'),
            job("--nodes=1 --gres=gpu:2", f'{NODES}\nA=("$nodes")\nsrun python train.py --host ${{A[0]}}'),
            job(
                TWO, 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\nA=("$head")\nsrun a.py ${A[0]}'
            ),
        ),
    ),
    "per-gpu-without-gpus": Cases(
        fires=(
            job("--nodes=3 --ntasks-per-node=8 --cpus-per-gpu=6 --exclusive", "srun python train.py"),
            job("--nodes=1 --mem-per-gpu=40G", "python train.py"),
        ),
        silent=(
            job("--gpus-per-node=4 --cpus-per-gpu=6", "srun python train.py"),
            job("--gres=gpu:1 --mem-per-gpu=40G", "python train.py"),
            job("--cpus-per-gpu=6", "srun --gpus-per-node=4 python train.py"),
        ),
    ),
    "wait-for-server": Cases(
        fires=(
            job(TWO, "srun -N1 -n1 vllm serve m &\nsrun -N1 -n1 python train.py &\nwait"),
            job(GPU, "python -m sglang.launch_server --model m &\nsleep 60\npython train.py\nwait"),
        ),
        silent=(
            job(TWO, "srun -N1 -n1 vllm serve m &\nsrun -N1 -n1 python train.py &\npid=$!\nwait $pid"),
            job(TWO, "srun -N1 -n1 vllm serve m &\nserver=$!\nsrun -N1 -n1 python train.py\nkill $server\nwait"),
            job(GPU, "vllm serve m &\nwait"),
            job(GPU, "python a.py &\npython b.py &\nwait"),
        ),
    ),
    "gpus-for-installation": Cases(
        fires=(
            job(
                "--gres=gpu:8 --exclusive", "conda create -n env python=3.11 -y\nconda activate env\npip install torch"
            ),
            job("--gpus=1", "python -m pip install -r requirements.txt"),
        ),
        silent=(
            job("--cpus-per-task=8", "pip install torch"),
            job("--gres=gpu:1", "pip install flash-attn --no-build-isolation"),
            job("--gres=gpu:1", "pip install torch\npython train.py"),
            job("--gres=gpu:1", "pip install torch\n./run_all.sh"),
        ),
    ),
}

MORE = {
    "background-without-wait": Cases(
        fires=(job(GPU, "srun -n1 python a.py &\necho started"),),
        silent=(job(GPU, 'srun ./solver &\nwhile [[ ! -e "$RESULT" ]]; do\n    sleep 5\ndone\nrm $INPUT'),),
    ),
    "variable-in-directive": Cases(fires=(job("--nodes=$1"), job("--output=${1}.out")), silent=(job("--mem=4G"),)),
    "output-folder": Cases(
        fires=(job("--output=checkpoints/%x/s%J/stdout"), job("--output=logs/%A/%a.out --array=0-3")),
        silent=(job("--output=/scratch/%u/%x-%j.out"), job("--output=%x-%j.out")),
    ),
    "checkpoint-on-node": Cases(
        fires=(job(GPU, "python train.py --output_dir /tmp/out"),),
        silent=(job(GPU, "python train.py --output_dir /tmp/out\nhuggingface-cli upload me/model /tmp/out"),),
    ),
    "sbatch-in-loop": Cases(
        fires=(shell("for i in $(seq 9); do\n  sbatch train.sh $i\ndone"),),
        silent=(
            shell(
                'for i in $(seq 9); do\n  if [ -n "$J" ]; then\n    J=$(sbatch --parsable -d afterok:$J a.sh)\n  else\n'
                "    J=$(sbatch --parsable a.sh)\n  fi\ndone"
            ),
        ),
    ),
    "one-cpu-per-gpu": Cases(
        fires=(job("--nodes=1 --ntasks-per-node=1 --gres=gpu:4 --cpus-per-task=4", "srun python train.py"),),
        silent=(job("--nodes=1 --ntasks-per-node=1 --gres=gpu:4 --cpus-per-task=5", "srun python train.py"),),
    ),
    "output-overwritten": Cases(
        fires=(
            job("--output=/ocean/cis230075p/ft.out"),
            "#!/bin/bash\n#SBATCH -p { partition }\n#SBATCH --output=out.log\na\n",
        ),
        silent=(job("--output=20240131.out"),),
    ),
    "exit-status-hidden": Cases(
        fires=(
            job(GPU, "srun python train.py\nexit 0"),
            job(GPU, "srun python train.py || echo failed"),
            job(GPU, 'cmd="$(sed -n "${SLURM_ARRAY_TASK_ID}p" list.txt)"\neval $cmd\nexit 0'),
            job(GPU, 'srun python train.py\nsrun bash -c "rm -rf $WORK_DIR"'),
            job(GPU, "for i in 1 2; do\n  srun python train.py $i\ndone\nwait"),
            job(TWO, "srun -N1 -n1 vllm serve m &\nsrun -N1 -n1 python train.py &\nwait"),
        ),
        silent=(
            job(GPU, "srun python train.py || exit 1"),
            job(GPU, "srun python train.py || { echo failed; exit 1; }"),
            job(GPU, "srun python train.py\nexit $?"),
            job(GPU, "srun python train.py &\npid=$!\nwait $pid"),
            job(GPU, "srun -n1 python train.py a &\nsrun -n1 python train.py b &\nwait"),
            job(GPU, 'srun python train.py\nsrun bash -c "python test.py"'),
        ),
    ),
    "no-rendezvous": Cases(
        fires=(
            job(
                "--nodes=2 --gres=gpu:8",
                'N=`scontrol show hostnames "$SLURM_JOB_NODELIST" | wc -l`\n'
                "srun torchrun --nnodes=$N --nproc_per_node=8 train.py",
            ),
        ),
        silent=(
            job(
                "--nodes=2 --gres=gpu:8",
                'N=`scontrol show hostnames "$SLURM_JOB_NODELIST" | wc -l`\n'
                "srun torchrun --nnodes=$N --rdzv_endpoint=$HEAD:$PORT --nproc_per_node=8 train.py",
            ),
        ),
    ),
    "one-process-many-gpus": Cases(
        fires=(
            job(GPU, 'for m in a b; do python train.py --model "$m" --multiplier 2 || echo no; done'),
            job(GPU, "python a.py\npython b.py\npython c.py"),
        ),
        silent=(job(GPU, "python train.py --tp 4"), job(GPU, "python -m vllm.entrypoints.openai.api_server")),
    ),
}
