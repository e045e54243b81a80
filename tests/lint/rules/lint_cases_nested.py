"""Cases of the rules about nested launchers, components of a job, lists of arrays and data loader workers."""

from __future__ import annotations

from lint_cases import LUMI, Cases, job, shell

ONE = "--nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32"
EACH = "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8"
PARTS = "--nodes=1 --ntasks=1\nhetjob\n--nodes=2 --gpus-per-node=4"
USR1 = "--gres=gpu:4\n--signal=USR1@120"
TO_SHELL = "--gres=gpu:4\n--signal=B:USR1@120"
TORCHRUN = "torchrun --standalone --nproc_per_node=4 train.py"
BEHIND = f"{TORCHRUN} &\npid=$!\nwait $pid"
ARRAY = "--gres=gpu:1 --array="

CASES = {
    "launcher-in-launcher": Cases(
        fires=(
            job(ONE, "accelerate launch torchrun --nproc_per_node=4 train.py"),
            job(EACH, "srun bash -c 'srun python train.py'"),
            shell("torchrun --nproc_per_node=4 --no-python mpirun -np 4 python train.py"),
            job(ONE, "deepspeed --num_gpus 4 srun python train.py"),
        ),
        silent=(
            job(ONE, "srun torchrun --nnodes=2 --nproc_per_node=4 train.py"),
            job(ONE, "srun -N1 -n1 bash -c 'srun python train.py'"),
            job(EACH, "srun bash -c 'srun --overlap -n1 nvidia-smi'"),
            job(ONE, "mpirun -np 2 --npernode 1 torchrun --nproc_per_node=4 train.py"),
            job(ONE, "srun hostname\nsrun python train.py"),
            job(ONE, "torchrun --nproc_per_node=4 train.py --launcher srun"),
        ),
    ),
    "hetjob-part-unused": Cases(
        fires=(
            job(PARTS, "python serve.py"),
            job(PARTS, "srun --het-group=0 python serve.py"),
            job(f"{PARTS}\nhetjob\n--nodes=1", "srun --het-group=0 a.sh : --het-group=1 b.sh"),
        ),
        silent=(
            job(PARTS, "srun --het-group=0 a.sh : --het-group=1 b.sh"),
            job(PARTS, "srun --het-group=0-1 a.sh"),
            job(PARTS, 'for g in 0 1; do srun --het-group="$g" a.sh & done; wait'),
            job(PARTS, "mpirun python train.py"),
            job(ONE, "srun python train.py"),
        ),
    ),
    "hetjob-part-unknown": Cases(
        fires=(
            job(PARTS, "srun --het-group=2 a.sh"),
            job(ONE, "srun --het-group=0 a.sh\nsrun --het-group=1 b.sh"),
        ),
        silent=(
            job(PARTS, "srun --het-group=0 a.sh\nsrun --het-group=1 b.sh"),
            job(PARTS, "srun --het-group=$g a.sh"),
            job(ONE, "srun python train.py --het-group=7"),
        ),
    ),
    "signal-ends-launcher": Cases(
        fires=(
            job(USR1, "srun accelerate launch --num_processes 4 train.py"),
            job(USR1, f"srun bash -c '{TORCHRUN}'"),
            job(TO_SHELL, f"trap 'kill -USR1 $pid; wait $pid' USR1\n{BEHIND}"),
            job(TO_SHELL, f"save() {{\n  kill -s SIGUSR1 $pid\n  wait $pid\n}}\ntrap save USR1\n{BEHIND}"),
        ),
        silent=(
            job(USR1, "srun python train.py"),
            job("--gres=gpu:4\n--signal=TERM@120", f"srun {TORCHRUN}"),
            job(TO_SHELL, f"trap 'kill -TERM $pid; wait $pid' USR1\n{BEHIND}"),
            job(TO_SHELL, f"trap 'pkill -USR1 -f train.py; wait $pid' USR1\n{BEHIND}"),
            job(TO_SHELL, f"trap 'touch stop; wait $pid' USR1\n{BEHIND}"),
            job(USR1, "srun torchrun --signals-to-handle=SIGTERM,SIGUSR1 --nproc_per_node=4 train.py"),
            job(USR1, f"export TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGUSR1\nsrun {TORCHRUN}"),
        ),
    ),
    "array-beyond-list": Cases(
        fires=(
            job(f"{ARRAY}0-3", "seeds=(1 2 3)\npython train.py --seed ${seeds[SLURM_ARRAY_TASK_ID]}"),
            job(f"{ARRAY}1-4%2", 'M=("a b" c d e)\ni=$((SLURM_ARRAY_TASK_ID + 0))\npython train.py "${M[$i]}"'),
            job(f"{ARRAY}0-9", 'f=$(sed -n "${SLURM_ARRAY_TASK_ID}p" files.txt)\npython train.py $f'),
            job(f"{ARRAY}0,5", "M=(a b)\npython train.py ${M[$SLURM_ARRAY_TASK_ID]}"),
        ),
        silent=(
            job(f"{ARRAY}0-2", "seeds=(1 2 3)\npython train.py --seed ${seeds[$SLURM_ARRAY_TASK_ID]}"),
            job(f"{ARRAY}1-3", "s=(1 2 3)\npython train.py --seed ${s[$((SLURM_ARRAY_TASK_ID - 1))]}"),
            job(f"{ARRAY}0-8", "s=(1 2 3)\npython train.py --seed ${s[$((SLURM_ARRAY_TASK_ID % 3))]}"),
            job(f"{ARRAY}0-8", "s=(data/*.txt)\npython train.py ${s[$SLURM_ARRAY_TASK_ID]}"),
            job(f"{ARRAY}0-8", "s=(1 2)\ns+=(3 4 5 6 7 8 9)\npython train.py ${s[$SLURM_ARRAY_TASK_ID]}"),
            job(f"{ARRAY}0-8", "s=($(ls))\npython train.py ${s[$SLURM_ARRAY_TASK_ID]}"),
            job(f"{ARRAY}0-8", "s=({1..9})\npython train.py ${s[$SLURM_ARRAY_TASK_ID]}"),
            job(f"{ARRAY}1-9", 'f=$(sed -n "${SLURM_ARRAY_TASK_ID}p" files.txt)\npython train.py $f'),
            job(f"{ARRAY}0-9", 'f=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" files.txt)\npython train.py $f'),
        ),
    ),
    "workers-over-cpus": Cases(
        fires=(
            job("--gres=gpu:1 --cpus-per-task=4", "python train.py --num-workers=16"),
            job("--gres=gpu:1 --cpus-per-task=8", "W=12\nsrun python train.py data.num_workers=$W"),
            job(ONE, "srun torchrun --nnodes=2 --nproc_per_node=4 train.py --dataloader_num_workers 16"),
            job(
                "--gres=gpu:4 --cpus-per-task=32",
                "torchrun --standalone --nproc_per_node=4 train.py --num_workers $SLURM_CPUS_PER_TASK",
            ),
            job("--gres=gpu:2 --cpus-per-gpu=4", "srun python train.py \\\n  --num_workers \\\n  12"),
        ),
        silent=(
            job("--gres=gpu:1 --cpus-per-task=16", "python train.py --num_workers 16"),
            job("--gres=gpu:1", "python train.py --num_workers 16"),
            job("--gres=gpu:1 --cpus-per-task=4 --exclusive", "python train.py --num_workers 16"),
            job("--cpus-per-task=4", "python train.py --num_workers 16"),
            job("--gres=gpu:1 --cpus-per-task=4", "python train.py --preprocessing_num_workers 16"),
            job("--gres=gpu:1 --cpus-per-task=4", "python train.py --num_workers $N"),
            job("--gres=gpu:1 --cpus-per-task=4", "# python train.py --num_workers 16\npython train.py"),
            (job("--partition=standard-g --cpus-per-task=7", "python train.py --num_workers 16"), LUMI),
        ),
    ),
    "nodes-train-apart": Cases(
        fires=(
            job(ONE, "srun torchrun --nproc_per_node=4 train.py"),
            job(ONE, "export RANK=$SLURM_PROCID\nsrun deepspeed --num_gpus=4 train.py"),
            job(ONE, "srun bash -c 'accelerate launch --num_processes 4 train.py'"),
        ),
        silent=(
            job(ONE, "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=$HEAD:$PORT train.py"),
            job(ONE, "srun -N1 -n1 torchrun --nproc_per_node=4 train.py"),
            job(ONE, "torchrun --nproc_per_node=4 train.py"),
            job(ONE, "srun bash -c 'torchrun --standalone --nproc_per_node=4 infer.py --shard $SLURM_NODEID'"),
            job(ONE, "srun accelerate launch --config_file multi.yaml train.py"),
            job(ONE, "srun torchrun $DISTRIBUTED_ARGS train.py"),
            job(ONE, "export PET_NNODES=2\nsrun torchrun --nproc_per_node=4 train.py"),
        ),
    ),
    "trap-without-signal": Cases(
        fires=(
            job("--gres=gpu:1", "trap 'scontrol requeue $SLURM_JOB_ID' USR1\npython train.py &\nwait"),
            job("--gres=gpu:1", "save() {\n  kill -USR1 $pid\n}\ntrap save SIGUSR2\npython train.py &\npid=$!\nwait"),
        ),
        silent=(
            job(TO_SHELL, f"trap 'kill -TERM $pid' USR1\n{BEHIND}"),
            job("--gres=gpu:1", "trap 'rm -rf $scratch' EXIT TERM\npython train.py"),
            job("--gres=gpu:1", "trap 'touch stop' USR1\n(sleep 3600; kill -USR1 $$) &\npython train.py &\nwait $!"),
            job("--gres=gpu:1", "srun bash -c 'trap \"touch stop\" USR1; python train.py'"),
        ),
    ),
}
