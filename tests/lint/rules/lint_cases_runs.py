"""Cases of the rules about the end of a job, its network, Ray, containers and the scheduler."""

from __future__ import annotations

from lint_cases import FRONTIER, JUPITER, LEONARDO, LUMI, MARENOSTRUM, Cases, job, shell

GPU = "--gres=gpu:4 --time=12:00:00"
NOTICE = GPU + " --signal=B:USR1@120"
TRAP = "trap 'kill -USR1 $pid; wait $pid' USR1\n"
ONE = "--nodes=1 --gres=gpu:2"
TWO = "--nodes=2 --gpus-per-node=4"

CASES = {
    "no-signal": Cases(
        fires=(job("--gpus=1"), job(GPU, "torchrun train.py")),
        silent=(job(GPU + " --signal=USR1@60"), job("--gpus=1 --time=30"), job("--nodes=1", "srun ./solver")),
    ),
    "signal-without-trap": Cases(
        fires=(job(NOTICE), job(GPU + " --signal=B:SIGUSR2@60", "trap 'echo' EXIT\nsrun python train.py")),
        silent=(
            job(NOTICE, TRAP + "srun python train.py & pid=$!\nwait"),
            job(GPU + " --signal=USR1@60"),
            job(NOTICE, "requeue_job func_trap USR1\nsrun python train.py & wait"),
            job(NOTICE, "exec python train.py"),
        ),
    ),
    "signal-reaches-nobody": Cases(
        fires=(
            job(GPU + " --signal=USR1@60", "python train.py"),
            job(GPU + " --signal=SIGTERM@60", "torchrun train.py"),
        ),
        silent=(
            job(GPU + " --signal=USR1@60", "srun python train.py"),
            job(NOTICE, "python train.py"),
            job(GPU + " --signal=USR1@60", "bash run.sh"),
        ),
    ),
    "trap-blocked-by-srun": Cases(
        fires=(
            job(NOTICE, TRAP + "python train.py"),
            job(NOTICE, "save() { echo; }\ntrap save SIGUSR1\nsrun torchrun train.py --resume"),
        ),
        silent=(
            job(NOTICE, TRAP + "srun python train.py & pid=$!\nwait $pid"),
            job(GPU + " --signal=USR1@60", TRAP + "srun python train.py"),
            job(NOTICE, TRAP + "srun hostname\nsrun python train.py & pid=$!\nwait $pid"),
            job(NOTICE, TRAP + "exec python train.py"),
        ),
    ),
    "trap-replaced": Cases(
        fires=(
            shell("trap 'rm -f a' EXIT TERM\ntrap 'rm -f b' EXIT"),
            shell("clean() { rm -f a; }\ntrap clean EXIT\ntrap 'date' 0"),
        ),
        silent=(
            shell("trap 'rm -f a' EXIT\ntrap - EXIT\ntrap 'rm -f b' EXIT"),
            shell("trap 'rm -f a' EXIT\ntrap 'rm -f b' TERM"),
            shell("trap 'rm -f a' EXIT\ntrap 'rm -f a; rm -f b' EXIT"),
            shell("f() { trap 'rm -f a' EXIT; }\ntrap 'rm -f b' EXIT"),
        ),
    ),
    "no-requeue": Cases(
        fires=(job("--gpus=1"), job(GPU, "torchrun train.py --resume")),
        silent=(job("--gpus=1 --requeue"), job("--gpus=1 --no-requeue"), job("--nodes=1", "./solver")),
    ),
    "requeue-without-resume": Cases(
        fires=(
            job(GPU + " --requeue"),
            job(NOTICE, "trap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python train.py & wait"),
        ),
        silent=(
            job(GPU + " --requeue", "srun python train.py --ckpt_path last"),
            job(GPU + " --requeue", "# the program resumes by itself\nsrun python train.py"),
            job("--requeue --nodes=1", "srun ./solver"),
        ),
    ),
    "requeue-truncates-log": Cases(
        fires=(job(GPU + " --requeue"), job(GPU, "scontrol requeue $SLURM_JOB_ID")),
        silent=(job(GPU + " --requeue --open-mode=append"), job(GPU + " --no-requeue"), job(GPU)),
    ),
    "background-without-wait": Cases(
        fires=(job(GPU, "python train.py &"), job(GPU, "srun python train.py > log 2>&1 &\necho started")),
        silent=(
            job(GPU, "python serve.py &\npython client.py"),
            job(GPU, "python train.py &\npid=$!\nwait $pid"),
            job(GPU, "for i in 1 2; do\n  python train.py $i &\ndone\nwait"),
            job(GPU, "python train.py &\nwhile kill -0 $!; do sleep 5; done"),
        ),
    ),
    "exit-status-lost": Cases(
        fires=(
            job(GPU, "python train.py 2>&1 | tee log.txt"),
            job(GPU, "torchrun train.py \\\n  --lr 1 \\\n  | tee log.txt"),
        ),
        silent=(
            job(GPU, "set -euo pipefail\npython train.py | tee log.txt"),
            job(GPU, "python train.py > log.txt"),
            job(GPU, "python train.py | tee log.txt\nexit ${PIPESTATUS[0]}"),
            job(GPU, "x=$(python info.py | head -1)"),
        ),
    ),
    "no-errexit": Cases(
        fires=(job(GPU, "cd run\npython train.py"), job(GPU, "module load a\nsrun ./solver\necho done")),
        silent=(
            job(GPU, "set -e\ncd run\npython train.py"),
            "#!/bin/bash -e\n#SBATCH --gpus=1\ncd run\npython train.py\n",
            job(GPU, "python train.py"),
        ),
    ),
    "fixed-port": Cases(
        fires=(
            job(ONE, "torchrun --master_port=29501 train.py"),
            job(TWO, "srun torchrun --rdzv_backend=c10d --rdzv_endpoint=$HEAD:29400 train.py"),
            job(ONE, "PORT=6000\ntorchrun --master_port $PORT train.py"),
            job(ONE, "export MASTER_PORT=${MASTER_PORT:-29500}\nsrun python train.py"),
        ),
        silent=(
            job(ONE, "export MASTER_PORT=$((10000 + RANDOM % 20000))\nsrun python train.py"),
            job(ONE, "torchrun --standalone train.py"),
            job(ONE, "export MASTER_PORT=15000\ntorchrun --standalone --nproc_per_node=gpu train.py"),
            job(
                ONE,
                "MASTER_PORT=9000\nwhile nc -z localhost $MASTER_PORT; do ((MASTER_PORT++)); done\nsrun python t.py",
            ),
            job(ONE, "PORT=8000\npython -m vllm.entrypoints.openai.api_server --port $PORT"),
            job(ONE, "export MASTER_PORT=$(comm -23 a b | head -1)\nsrun python train.py"),
        ),
    ),
    "default-port": Cases(
        fires=(job(ONE, "torchrun --nproc_per_node=2 train.py"), job(ONE, "srun python -m torch.distributed.run a.py")),
        silent=(
            job(ONE, "torchrun --standalone train.py"),
            job(ONE + " --exclusive", "torchrun train.py"),
            job(ONE, "torchrun --master_port=$PORT train.py"),
        ),
    ),
    "master-addr-local": Cases(
        fires=(
            job(TWO, "MASTER_ADDR=127.0.0.1\nexport MASTER_ADDR\nsrun python train.py"),
            job(TWO, "srun torchrun --rdzv_backend=c10d --rdzv_endpoint=localhost:$PORT train.py"),
        ),
        silent=(
            job(ONE, "export MASTER_ADDR=localhost\nsrun python train.py"),
            job(TWO, "export MASTER_ADDR=$(hostname)\nsrun python train.py"),
        ),
    ),
    "master-addr-per-task": Cases(
        fires=(
            job(TWO, "srun bash -c 'export MASTER_ADDR=$(hostname -s); python train.py'"),
            job(TWO, "srun sh -c 'MASTER_ADDR=$SLURMD_NODENAME python train.py'"),
        ),
        silent=(
            job(TWO, 'srun bash -c "export MASTER_ADDR=$(hostname -s); python train.py"'),
            job(ONE, "srun bash -c 'export MASTER_ADDR=$(hostname -s); python train.py'"),
        ),
    ),
    "master-addr-literal": Cases(
        fires=(
            job(TWO, "export MASTER_ADDR=gpu07\nsrun python train.py"),
            job(TWO, "MASTER_ADDR=192.168.1.4 srun python train.py\nMASTER_ADDR=192.168.1.4"),
        ),
        silent=(
            job(TWO, "export MASTER_ADDR=${hosts[0]}\nsrun python train.py"),
            job(ONE, "export MASTER_ADDR=localhost\nsrun python train.py"),
        ),
    ),
    "nccl-transport-off": Cases(
        fires=(
            job(ONE, "export NCCL_P2P_DISABLE=1\npython train.py"),
            job(TWO, "export NCCL_NET=Socket\nsrun python train.py"),
            (job(TWO, "export NCCL_IB_DISABLE=1\nsrun python train.py"), LEONARDO),
        ),
        silent=(
            job(ONE, "export NCCL_IB_DISABLE=1\npython train.py"),
            (job(TWO, "export NCCL_IB_DISABLE=1\nsrun python train.py"), LUMI),
            job(TWO, "export NCCL_IB_DISABLE=0\nsrun python train.py"),
        ),
    ),
    "nccl-wrong-interface": Cases(
        context=LUMI,
        fires=(
            (job(TWO, "export NCCL_SOCKET_IFNAME=hsn0\nsrun python train.py"), LEONARDO),
            (job(TWO, "export NCCL_SOCKET_IFNAME=eno1\nsrun python train.py"), MARENOSTRUM),
        ),
        silent=(
            job(TWO, "export NCCL_SOCKET_IFNAME=hsn\nsrun python train.py"),
            (job(TWO, "export NCCL_SOCKET_IFNAME=ib0\nsrun python train.py"), JUPITER),
            job(TWO, "export NCCL_SOCKET_IFNAME=^lo,docker\nsrun python train.py"),
        ),
    ),
    "nccl-debug-left": Cases(
        fires=(
            job(ONE, "export NCCL_DEBUG=TRACE\npython train.py"),
            job(ONE, "export SINGULARITYENV_NCCL_DEBUG=INFO\npython train.py"),
        ),
        silent=(
            job(ONE, "export NCCL_DEBUG=WARN\npython train.py"),
            job(ONE, "export NCCL_DEBUG=${NCCL_DEBUG:-WARN}\npython train.py"),
        ),
    ),
    "debug-mode-left": Cases(
        fires=(
            job(ONE, "CUDA_LAUNCH_BLOCKING=1 python train.py"),
            job(ONE, "export TORCH_DISTRIBUTED_DEBUG=DETAIL\npython train.py"),
        ),
        silent=(
            job(ONE, "export CUDA_LAUNCH_BLOCKING=0\npython train.py"),
            job(ONE, 'if [ "$DEBUG" = 1 ]; then\n  export CUDA_LAUNCH_BLOCKING=1\nfi\npython train.py'),
        ),
    ),
    "nccl-name-outdated": Cases(
        fires=(
            job(ONE, "export NCCL_BLOCKING_WAIT=0\npython train.py"),
            job(ONE, "export NCCL_ASYNC_ERROR_HANDLING=1\npython train.py"),
        ),
        silent=(
            job(ONE, "export NCCL_DEBUG=WARN\npython train.py"),
            job(ONE, "export NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1\npython train.py"),
        ),
    ),
    "ray-step-ends": Cases(
        fires=(
            job(TWO, "srun bash -c 'ray start --head --port=6379'\npython driver.py"),
            job(TWO, "srun -N1 -n1 ray start --head --port=6379 &\npython driver.py"),
        ),
        silent=(
            job(TWO, "srun bash -c 'ray start --head --block' &\npython driver.py"),
            job(ONE, "ray start --head\npython driver.py"),
            job(TWO, "srun bash -c 'ray start --head; sleep infinity' &\npython driver.py"),
        ),
    ),
    "sleep-for-ray": Cases(
        fires=(
            job(TWO, "srun -N1 ray start --head --block &\nsleep 10\npython driver.py"),
            job(TWO, "srun -N1 bash -c 'ray start --head --block' &\nsleep 30s\npython driver.py\nsleep 5"),
        ),
        silent=(
            job(TWO, "srun ray start --head --block &\nuntil ray status; do sleep 2; done\npython driver.py"),
            job(TWO, "sleep 10\nsrun python train.py"),
            job(TWO, "srun ray start --head --block &\nfor i in 1 2 3; do\n  ray status && break\n  sleep 5\ndone"),
        ),
    ),
    "container-without-gpu": Cases(
        fires=(
            job(ONE, "singularity exec -B /data image.sif python train.py"),
            job(ONE, "srun apptainer run image.sif torchrun train.py"),
            (job("--gpus-per-node=8", "srun apptainer exec image.sif python train.py"), FRONTIER),
        ),
        silent=(
            job(ONE, "singularity exec --rocm image.sif python train.py"),
            job(ONE, "export APPTAINER_NV=1\napptainer exec image.sif python train.py"),
            (job("--gpus-per-node=8", "srun singularity exec image.sif python train.py"), LUMI),
            job("--gpus-per-node=0", "apptainer exec image.sif python etl.py"),
            job(ONE, "apptainer exec $FLAGS image.sif python train.py"),
            job(ONE, "apptainer exec image.sif tar xf data.tar"),
        ),
    ),
    "container-by-tag": Cases(
        fires=(
            job(ONE, "srun --container-image=nvcr.io#nvidia/pytorch:24.08-py3 python train.py"),
            job(ONE + " --container-image=nvcr.io#nvidia/nemo:24.07"),
            job(ONE + " --image=nersc/pytorch:latest", "srun shifter python train.py"),
            job(ONE, "podman-hpc run --rm --gpu docker.io/org/image python train.py"),
        ),
        silent=(
            job(ONE, "srun --container-image=/images/torch.sqsh python train.py"),
            job(ONE + " --image=nersc/pytorch:25.02.01", "srun shifter python train.py"),
            job(ONE, "apptainer exec --nv docker://a/b@sha256:0123 python train.py"),
        ),
    ),
    "sbatch-in-loop": Cases(
        fires=(
            shell("while read -r line; do\n  sbatch job.sh $line\ndone <list"),
            shell("for a in 1 2; do for b in 1 2; do sbatch j.sh $a $b; done; done"),
        ),
        silent=(
            shell("for seed in 1 2 3; do sbatch job.sh $seed; done"),
            shell("for i in $(seq 9); do id=$(sbatch --parsable -d afterok:$id j.sh); done"),
            shell("sbatch --array=0-99%20 job.sh"),
        ),
    ),
    "sbatch-in-job": Cases(
        fires=(job(GPU, 'sbatch "$0"'), job(GPU, "srun python train.py && sbatch next.sh")),
        silent=(
            job(GPU, 'if [[ -z "$SLURM_JOB_ID" ]]; then\n  sbatch "$0"\n  exit\nfi\nsrun python train.py'),
            shell("sbatch job.sh"),
        ),
    ),
    "squeue-tight-loop": Cases(
        fires=(
            shell('until [ -z "$(squeue -h -j $id)" ]; do sleep 2; done'),
            shell("while true; do sacct -j $id; done"),
            shell("watch squeue -u $USER"),
        ),
        silent=(
            shell('until [ -z "$(squeue -h -j $id)" ]; do sleep 2m; done'),
            shell("squeue -u $USER"),
            shell('for n in a b; do scontrol show hostnames "$n"; done'),
        ),
    ),
    "dependency-never-ends": Cases(
        fires=(shell("sbatch --dependency=afterok:$a eval.sh"), shell("b=$(sbatch -d afterok:$a eval.sh)")),
        silent=(
            shell("sbatch --dependency=afterany:$a clean.sh"),
            shell("sbatch --kill-on-invalid-dep=yes --dependency=afterok:$a eval.sh"),
            job("--dependency=singleton"),
        ),
    ),
    "dependency-written-down": Cases(
        fires=(job("-d afterok:123456"), job("--dependency=afterany:77:78")),
        silent=(job("--dependency=singleton"), job("--dependency=afterok:{{ job }}")),
    ),
}
