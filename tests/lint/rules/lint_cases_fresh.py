"""Cases that scripts outside of these tests have shown: new rules, and more cases of others."""

from __future__ import annotations

from lint_cases import LUMI, PERLMUTTER, Cases, job, shell

GPU = "--gres=gpu:4 --time=12:00:00 --cpus-per-task=8"
TWO = "--nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32"
EACH = "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8"
RAY = "srun ray start --head --block &\nuntil ray status; do sleep 5; done\n"
WRITES = "sbatch <<EOF\n#!/bin/bash\n#SBATCH --gres=gpu:1\n"
MEET = "--nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:$PORT"

CASES = {
    "script-folder": Cases(
        fires=(
            job(GPU, "cd $(dirname $0)\npython train.py"),
            job(GPU, 'HERE="$( cd "$(dirname "${BASH_SOURCE[0]}")" && pwd )"\npython $HERE/train.py'),
            job(GPU, 'source $(dirname "$(readlink -f "$0")")/env.sh\npython train.py'),
        ),
        silent=(
            job(GPU, 'cd "$SLURM_SUBMIT_DIR"\npython train.py'),
            shell('cd "$(dirname "$0")"\npython train.py'),
            job(GPU, 'cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}"\npython train.py'),
            job(GPU, 'echo "see $(dirname "$0")/report.sh"\npython train.py'),
            job(GPU, 'if [ -z "$SLURM_JOB_ID" ]; then cd $(dirname "$0"); fi\npython train.py'),
        ),
    ),
    "staged-on-first-node": Cases(
        fires=(
            job(TWO, "rsync -a data/ /tmp/data\nsrun python train.py --data /tmp/data"),
            job(TWO, "tar xf data.tar -C $SLURM_TMPDIR\nsrun python train.py --data $SLURM_TMPDIR/data"),
            job(TWO, "D=/dev/shm/set\ncp -r $WORK/set $D\nsrun python train.py --data $D"),
        ),
        silent=(
            job(TWO, "srun --ntasks-per-node=1 cp -r data /tmp/data\nsrun python train.py --data /tmp/data"),
            job("--nodes=1 --gres=gpu:4", "cp -r data /tmp/data\nsrun python train.py --data /tmp/data"),
            job(TWO, "cp -r data $WORK/data\nsrun python train.py --data $WORK/data"),
            job(TWO, "srun python train.py --data /tmp/data\ncp -r out /tmp/out"),
        ),
    ),
    "time-zero": Cases(
        fires=(job("--time=0"), job("--time=00:00:00 --gres=gpu:1")),
        silent=(job("--time=10"), job("--time=0-01:00:00")),
    ),
    "slurm-variable-unset": Cases(
        fires=(
            job("--gres=gpu:4", "torchrun --nproc_per_node=$SLURM_GPUS train.py"),
            job(
                "--nodes=2 --gres=gpu:4", "export WORLD_SIZE=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))\nsrun python a.py"
            ),
            job("--nodes=1 --ntasks=4", "export N=${SLURM_NTASKS_PER_NODE}\nsrun python a.py"),
            job("--gres=gpu:1", "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun python a.py"),
        ),
        silent=(
            job("--gpus=4", "torchrun --nproc_per_node=$SLURM_GPUS train.py"),
            job("--gres=gpu:4", "torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE train.py"),
            job("--gres=gpu:1", "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}\nsrun python a.py"),
            shell("torchrun --nproc_per_node=$SLURM_GPUS train.py"),
            job("--gres=gpu:1", "SLURM_GPUS=1\ntorchrun --nproc_per_node=$SLURM_GPUS train.py"),
        ),
    ),
    "self-assignment": Cases(
        fires=(
            job(TWO, "master_addr=$(hostname)\nexport MASTER_ADDR=$MASTER_ADDR\nsrun python train.py"),
            shell("port=4711\nexport PORT=${PORT}\npython train.py"),
        ),
        silent=(
            job(TWO, "master_addr=$(hostname)\nexport MASTER_ADDR=$master_addr\nsrun python train.py"),
            shell("export WANDB_API_KEY=$WANDB_API_KEY\npython train.py"),
            shell("MASTER_ADDR=$(hostname)\nexport MASTER_ADDR=$MASTER_ADDR\npython train.py"),
        ),
    ),
    "set-is-no-assignment": Cases(
        fires=(job(GPU, "set DATA=./data\npython train.py"), shell("set CUDA_VISIBLE_DEVICES=0\npython train.py")),
        silent=(
            shell("set -e\npython train.py"),
            shell('set -- "A=1" "B=2"\npython train.py'),
            shell("export DATA=./data\npython train.py"),
        ),
    ),
    "heredoc-expands-early": Cases(
        fires=(
            shell(WRITES + "python train.py --id ${SLURM_JOB_ID}\nEOF"),
            shell("cat > j.sbatch <<EOF\n#!/bin/bash\n#SBATCH -N2\nsrun echo $SLURM_NNODES\nEOF\nsbatch j.sbatch"),
        ),
        silent=(
            shell(WRITES + "python train.py --id \\$SLURM_JOB_ID\nEOF"),
            shell(WRITES.replace("EOF", "'EOF'") + "python train.py --id $SLURM_JOB_ID\nEOF"),
            shell("cat <<EOF\n$SLURM_JOB_ID\nEOF"),
        ),
    ),
    "wait-for-ray": Cases(
        fires=(
            job(TWO, RAY + "python driver.py\nwait"),
            job(TWO, "srun /opt/bin/ray start --head --block &\nsleep 30\npython -u driver.py\nwait"),
        ),
        silent=(
            job(TWO, RAY + "python driver.py\nray stop\nwait"),
            job(TWO, RAY + "wait"),
            job(TWO, RAY + "python driver.py &\npid=$!\nwait $pid"),
        ),
    ),
    "gpus-only-on-srun": Cases(
        fires=(
            job("--nodes=1 --ntasks=4 --mem=8G", "srun --gpus-per-task=1 python train.py"),
            job("--nodes=1", "srun --gres=gpu:4 python train.py"),
        ),
        silent=(
            job("--nodes=1 --gpus-per-node=4", "srun --gpus-per-task=1 python train.py"),
            job("--nodes=1", "srun --gres=nvme:1 python train.py"),
            job("--nodes=1 --exclusive", "srun --gpus-per-task=1 python train.py"),
            shell("srun --gres=gpu:1 python train.py"),
        ),
    ),
    "step-over-nodes": Cases(
        fires=(
            job("--nodes=1 --gres=gpu:4", "srun -N 2 python train.py"),
            job("--nodes=2 --gres=gpu:4", "N=4\nsrun --nodes=$N python train.py"),
        ),
        silent=(
            job("--nodes=2 --gres=gpu:4", "srun -N 2 python train.py"),
            job("--nodes=1-4 --gres=gpu:4", "srun -N 2 python train.py"),
            job("--nodes=1", "srun -N $N python train.py"),
        ),
    ),
    "random-port": Cases(
        fires=(
            job(TWO, "export MASTER_PORT=$RANDOM\nsrun python train.py"),
            job(TWO, "MASTER_PORT=${RANDOM}\nsrun torchrun --master_port=$MASTER_PORT train.py"),
            job(GPU, "torchrun --nproc_per_node 4 --master_port $RANDOM train.py"),
        ),
        silent=(
            job(TWO, "export MASTER_PORT=$((20000 + RANDOM % 10000))\nsrun python train.py"),
            job(TWO, "SEED=$RANDOM\nsrun python train.py --seed $SEED"),
        ),
    ),
    "step-fewer-cpus": Cases(
        fires=(job(EACH, "srun -c 2 python train.py"), job(TWO, "srun --cpus-per-task=8 python train.py")),
        silent=(
            job(EACH, "srun -c 8 python train.py"),
            job(EACH, "srun -c $SLURM_CPUS_PER_TASK python train.py"),
            job(TWO, "srun --ntasks-per-node=4 --cpus-per-task=8 python train.py"),
            job(EACH, "srun python train.py"),
        ),
    ),
    "one-cpu-per-gpu": Cases(
        fires=(
            job("--gres=gpu:1 -c 1", "python train.py"),
            job("--nodes=1 -n4 -c1 --gres=gpu:4", "srun python train.py"),
        ),
        silent=(
            job("--gres=gpu:1 -c 4", "python train.py"),
            job("--gres=gpu:1 -c 1 --exclusive", "python train.py"),
            job("--ntasks=16 -c 1 --nodes=1 --gres=gpu:1", "srun python train.py"),
            job("-c 1", "python train.py"),
        ),
    ),
    "array-count-off": Cases(
        fires=(
            job("--array=0-10", "python a.py --shard $SLURM_ARRAY_TASK_ID --num-shards 10"),
            job("--array=0-9%2", "python a.py --id $SLURM_ARRAY_TASK_ID --num_chunks=$SLURM_ARRAY_TASK_MAX"),
            job("--array=0-8", "NUM_SPLITS=8\npython a.py $SLURM_ARRAY_TASK_ID $NUM_SPLITS"),
        ),
        silent=(
            job("--array=0-9", "python a.py --shard $SLURM_ARRAY_TASK_ID --num-shards 10"),
            job("--array=1-10", "python a.py --shard $SLURM_ARRAY_TASK_ID --num-shards $SLURM_ARRAY_TASK_MAX"),
            job("--array=0-9", "python a.py --shard $SLURM_ARRAY_TASK_ID --num-shards $SLURM_ARRAY_TASK_COUNT"),
            job("--array=0-4", "python a.py --seed $SLURM_ARRAY_TASK_ID --num_workers 4"),
        ),
    ),
    "exit-status-hidden": Cases(
        fires=(
            job(GPU, "module load cuda\nsrun python train.py --lr 1\necho Done at $(date)"),
            job(GPU, "torchrun --standalone --nproc_per_node=4 train.py\nconda deactivate\ndate"),
            job(GPU, "uv run scripts/train.py --lr 1\necho done"),
            job(GPU, "nnUNetv2_train 101 2d 0\necho done"),
            job(GPU, "wandb agent me/sweep/abc\necho done"),
            job("--mem=8G --time=2:00:00", "cd $D\nif [ $? -ne 0 ]; then exit 1; fi\npython a.py\nrsync -a out/ $W"),
        ),
        silent=(
            job(GPU, "set -e\nsrun python train.py\necho done"),
            job(GPU, "srun python train.py"),
            job(GPU, "srun python train.py\nstatus=$?\necho done\nexit $status"),
            job(GPU, "srun python train.py && echo done"),
            job(GPU, "srun python train.py\npython evaluate.py"),
            job(GPU, "cd $RUN\nif [ $? -ne 0 ]; then exit 1; fi\nsrun python train.py"),
        ),
    ),
    "save-interval-long": Cases(
        fires=(
            job(GPU, "srun python train.py --train-iters 5000 --save-interval 5000"),
            job(GPU, "N=1000\nsrun python train.py --max_steps=$N --save_steps=800"),
            job(GPU, "srun python train.py trainer.max_epochs=10 --save_every_n_epochs 10"),
        ),
        silent=(
            job(GPU, "srun python train.py --train-iters 5000 --save-interval 500"),
            job("--gres=gpu:1 --time=00:30:00", "srun python train.py --train-iters 5000 --save-interval 5000"),
            job(GPU, "srun python train.py --save-interval 5000"),
        ),
    ),
}
"""Rules that came with these cases."""

MORE = {
    "directive-malformed": Cases(
        fires=(job("--nodes=1", "#sbatch --time=01:00:00\nsrun hostname"),),
        silent=(
            job("--nodes=1", "#   sbatch --gres=gpu:4 scripts/train.sh ID\nsrun hostname"),
            job("--nodes=1", "# Usage: sbatch --time=1:00:00 job.sh\nsrun hostname"),
            job("--nodes=1", "#sbatch --array=0-3 job.sh\nsrun hostname"),
        ),
    ),
    "no-rendezvous": Cases(
        fires=(job(TWO, 'L="$(which torchrun) --nnodes 2 --nproc_per_node 4"\nsrun $L train.py'),),
        silent=(
            job(
                TWO,
                'srun bash -c "torchrun --nnodes 2 --nproc_per_node 4 --node_rank '
                '\\$(((SLURM_NODEID)) && echo 1 || echo 0) --rdzv_backend c10d --rdzv_endpoint \\$A:\\$B train.py"',
            ),
        ),
    ),
    "launcher-per-task": Cases(
        fires=(
            job(EACH, "srun $(which torchrun) --nnodes=2 --nproc_per_node=4 train.py"),
            job(EACH, "srun $ENV/bin/python -m torch.distributed.run --nnodes=2 --nproc_per_node=4 train.py"),
        ),
        silent=(job(TWO, "srun $(which torchrun) --nnodes=2 --nproc_per_node=4 train.py"),),
    ),
    "site-option-missing": Cases(
        fires=(),
        silent=((job("--account=m1 --constraint=gpu --nodes=1 --time=10 --reservation=r1 --gpus=4"), PERLMUTTER),),
    ),
    "nccl-transport-off": Cases(
        fires=(),
        silent=(job(TWO, "export FI_PROVIDER=efa\nexport NCCL_IB_DISABLE=1\nsrun python train.py"),),
    ),
    "sleep-for-ray": Cases(
        fires=(job(TWO, "srun -N1 /opt/bin/ray start --head --block &\nsleep 20\npython driver.py"),),
        silent=(
            job(
                TWO,
                "srun ray start --head --block &\nsleep 10\nwhile :; do\n  n=$(\n    ray status | grep -c node_\n  )\n"
                "  if [ $n -ge 2 ]; then break; fi\n  sleep 5\ndone\npython driver.py",
            ),
        ),
    ),
    "fixed-port": Cases(
        fires=(),
        silent=(job(TWO, "srun torchrun --standalone --nproc_per_node=4 train.py"),),
    ),
    "container-without-gpu": Cases(
        fires=(job(GPU, "srun apptainer exec image.sif python train.py"),),
        silent=(
            job("--gpus-per-node=8 --partition=small-g", "srun singularity exec image.sif python train.py"),
            job("--gpus-per-node=8 --account=project_465000123", "srun singularity exec image.sif python train.py"),
            (job("--gpus-per-node=8"), LUMI),
        ),
    ),
    "directive-stray-word": Cases(
        fires=(),
        silent=(job("<SLURM OPTIONS> --nodes=2"), job("-p { partition }\n-A { account }")),
    ),
    "exclusive-for-one-gpu": Cases(fires=(), silent=(job("--gres=gpu:your_gpus_per_node --exclusive"),)),
    "install-in-job": Cases(fires=(), silent=(job("--nodes=1", "srun sudo apt-get update\npip install torch"),)),
    "one-cpu-per-gpu": Cases(
        fires=(job("--gpus=1 -c1", "singularity exec --nv -B $A,$PWD $IMAGE python train.py"),), silent=()
    ),
    "output-overwritten": Cases(
        fires=(job("--gres=gpu:1 --output=a.out --error=a.err"),),
        silent=(job("--output=/path/to/logs/a.out"), job("--output=<folder>/a.out")),
    ),
    "value-invalid": Cases(
        fires=(job("--time="), job("--nodes= --gres=gpu:1")),
        silent=(job("--time=01:00:00 --comment="), job("--time=__WALLTIME__ --mem=__MEM__")),
    ),
    "tasks-without-srun": Cases(
        fires=(job("--nodes=1 --ntasks-per-node=4 --gres=gpu:4", "python train.py"),),
        silent=(job("--nodes=1 --ntasks-per-node=4 --gres=gpu:4", "srun python train.py"),),
    ),
}
"""More cases of earlier rules."""
