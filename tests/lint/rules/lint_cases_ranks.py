"""Cases of the rules about ranks, steps and arrays."""

from __future__ import annotations

from lint_cases import DEUCALION, LUMI, OLD_SLURM, Cases, job, shell

EACH = "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8"
ONE = "--nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32"
NODE = "--nodes=1 --gres=gpu:4 --cpus-per-task=32"

CASES = {
    "launcher-per-task": Cases(
        fires=(
            job(EACH, "srun bash -c 'torchrun --nproc_per_node=4 train.py'"),
            job(EACH, "srun apptainer exec --nv a.sif torchrun --nproc_per_node=$SLURM_NTASKS_PER_NODE train.py"),
            job(ONE, "srun --ntasks-per-node=4 accelerate launch --num_processes=8 --num_machines=2 train.py"),
            job(ONE, "srun deepspeed --hostfile=hosts.$SLURM_JOB_ID train.py"),
        ),
        silent=(
            job(EACH, "torchrun --nproc_per_node=4 train.py"),
            job(ONE, "srun deepspeed --hostfile=hosts.$SLURM_JOB_ID --no_ssh --node_rank=$SLURM_NODEID train.py"),
            job(ONE, "srun -N1 -n1 deepspeed --hostfile=hosts.$SLURM_JOB_ID train.py"),
            job(EACH, "srun --ntasks-per-node=1 torchrun --nproc_per_node=4 train.py"),
            job(EACH, "srun torchrun --nproc_per_node=1 train.py"),
            job(EACH, "srun $FLAGS torchrun --nproc_per_node=4 train.py"),
        ),
    ),
    "nproc-over-gpus": Cases(
        fires=(job(NODE, "torchrun --nproc-per-node 8 train.py"), job(NODE, "N=6\ndeepspeed --num_gpus=$N train.py")),
        silent=(
            job(NODE, "torchrun --nproc_per_node=4 train.py"),
            job(NODE, "torchrun --nproc_per_node=gpu train.py"),
            job("--nodes=1", "torchrun --nproc_per_node=8 train.py"),
        ),
    ),
    "nproc-under-gpus": Cases(
        fires=(
            job(NODE, "torchrun --nproc_per_node=1 train.py"),
            job(NODE, "accelerate launch --num_processes=2 a.py"),
        ),
        silent=(
            job(NODE, "torchrun --nproc_per_node=2 a.py &\ntorchrun --nproc_per_node=2 b.py &\nwait"),
            job(NODE, "accelerate launch --num_processes=1 eval.py"),
            job(NODE, "torchrun --nproc_per_node=$N train.py"),
        ),
    ),
    "nnodes-mismatch": Cases(
        fires=(
            job(ONE, "srun torchrun --nnodes=3 --nproc_per_node=4 train.py"),
            job(EACH, "srun torchrun --nnodes=2 --nproc_per_node=1 train.py"),
            job(ONE, "srun accelerate launch --num_machines 4 --num_processes 16 train.py"),
        ),
        silent=(
            job(ONE, "srun torchrun --nnodes=2 train.py"),
            job(EACH, "srun torchrun --nnodes=$SLURM_NTASKS --nproc_per_node=1 train.py"),
            job(ONE, "srun -N1 -n1 torchrun --nnodes=1 eval.py"),
            job("--nodes=1-2", "srun torchrun --nnodes=2 train.py"),
        ),
    ),
    "nodes-idle": Cases(
        fires=(
            job(ONE, "python train.py"),
            job(ONE, "source activate train\npython train.py"),
            job("-N 4 --gres=gpu:8", "accelerate launch train.py"),
            job(EACH, "torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 --rdzv_endpoint=$HEAD:$PORT train.py"),
        ),
        silent=(
            job(ONE, "srun python train.py"),
            job(ONE, "bash launch.sh"),
            job(NODE, "python train.py"),
            job(ONE, "deepspeed --hostfile=hosts train.py"),
            job("--nodes=8", "source venv/bin/activate\npython cli.py --worker"),
        ),
    ),
    "tasks-without-srun": Cases(
        fires=(
            job("--ntasks=4 --gres=gpu:4", "python train.py"),
            job("--nodes=1 --ntasks-per-node=2 --gpus=2", "python -u main.py"),
        ),
        silent=(
            job("--ntasks=4 --gres=gpu:4", "srun python train.py"),
            job("--ntasks=4 --gres=gpu:4", "mpirun python train.py"),
            job("--ntasks=4", "python etl.py"),
        ),
    ),
    "one-process-many-gpus": Cases(
        fires=(job("--gres=gpu:8", "python train.py"), job(NODE, "srun python -u main.py --lr 1e-3")),
        silent=(
            job(NODE, "python train.py --devices 4"),
            job("--gres=gpu:1", "python train.py"),
            job(NODE, "python -m vllm.entrypoints.openai.api_server"),
        ),
    ),
    "ranks-per-gpu": Cases(
        fires=(
            job("--ntasks-per-node=8 --gpus-per-node=4", "srun python train.py"),
            job("--gres=gpu:1", "srun -n 4 python train.py"),
        ),
        silent=(
            job(EACH, "srun python train.py"),
            job("--ntasks-per-node=8 --gpus-per-node=4", "srun ./cpu_solver"),
            job("--ntasks-per-node=8 --gpus-per-task=1", "srun python train.py"),
        ),
    ),
    "mpirun-in-srun": Cases(
        fires=(job(EACH, "srun mpiexec -n 8 ./solver"), shell("srun -n 4 mpirun ./solver")),
        silent=(job(EACH, "mpirun -np 8 ./solver"), job(EACH, "srun ./solver")),
    ),
    "rank-expanded-early": Cases(
        fires=(
            job(ONE, 'srun bash -c "torchrun --node_rank=$SLURM_PROCID --master_addr=$HEAD train.py"'),
            job(EACH, "srun python train.py --rank $SLURM_PROCID"),
            job(ONE, "srun accelerate launch --machine_rank ${SLURM_NODEID} train.py"),
            job(EACH, "srun bash <<EOF\npython train.py --rank $SLURM_PROCID\nEOF"),
            job(ONE, "NODE_RANK=$SLURM_NODEID\nsrun torchrun --node_rank=$NODE_RANK --master_addr=$HEAD train.py"),
            job(EACH, "export RANK=$SLURM_PROCID\nsrun python train.py"),
        ),
        silent=(
            job(ONE, 'srun bash -c "torchrun --node_rank=\\$SLURM_PROCID --master_addr=$HEAD train.py"'),
            job(ONE, "srun torchrun --node_rank=$SLURM_NODEID --rdzv_backend=c10d --rdzv_endpoint=$H:$P train.py"),
            job(NODE, "srun -n1 python train.py --rank $SLURM_PROCID"),
            job(ONE, "export RANK=$SLURM_PROCID\nsrun torchrun --rdzv_backend=c10d --rdzv_endpoint=$H:$P train.py"),
            job(EACH, "srun bash <<'EOF'\npython train.py --rank $SLURM_PROCID\nEOF"),
        ),
    ),
    "rank-unset": Cases(
        fires=(
            job(EACH, 'echo "rank $RANK of $WORLD_SIZE"\nsrun python train.py'),
            job(EACH, "srun python - <<'PY'\nimport os\nprint(int(os.environ['LOCAL_RANK']))\nPY"),
        ),
        silent=(
            job(EACH, "srun bash -c 'export RANK=$SLURM_PROCID; echo \"$RANK\"; python train.py'"),
            job(ONE, "srun torchrun train.py --rank $RANK"),
            job(EACH, "srun python - <<'PY'\nimport os\nprint(os.environ.get('RANK', '0'))\nPY"),
            job(EACH, 'source setup.sh\necho "$RANK"'),
        ),
    ),
    "visible-devices-set": Cases(
        fires=(
            job("--gres=gpu:2", "export HIP_VISIBLE_DEVICES=0,1\npython train.py"),
            job("--gres=gpu:4", "CUDA_VISIBLE_DEVICES=0,1 python train.py"),
        ),
        silent=(
            job("--gres=gpu:2", 'export CUDA_VISIBLE_DEVICES=""\npython train.py'),
            job("--gres=gpu:8", "export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID\npython train.py"),
            job("--gres=gpu:2", "CUDA_VISIBLE_DEVICES=0 python a.py &\nCUDA_VISIBLE_DEVICES=1 python b.py &\nwait"),
            job("--gres=gpu:4", "export CUDA_VISIBLE_DEVICES=3,2,1,0\nsrun python train.py"),
        ),
    ),
    "no-kill-on-bad-exit": Cases(
        fires=(job(ONE, "srun torchrun train.py"), job("-N 8 -n 64", "srun ./solver")),
        silent=(
            job(ONE, "srun -K torchrun train.py"),
            job(NODE, "srun python train.py"),
            job(ONE, "export SLURM_KILL_BAD_EXIT=1\nsrun python train.py"),
            job(ONE, "srun nvidia-smi"),
            job(ONE, "srun $FLAGS python train.py"),
        ),
    ),
    "cpus-not-inherited": Cases(
        context=OLD_SLURM,
        fires=(job("-c 8 --gpus=1"), job("--cpus-per-task=16 --nodes=2", "srun torchrun train.py")),
        silent=(
            job("-c 8 --gpus=1", "srun -c 8 python train.py"),
            job("-c 8 --gpus=1", "export SRUN_CPUS_PER_TASK=8\nsrun python train.py"),
            job("-c 1 --gpus=1"),
        ),
    ),
    "no-cpu-bind": Cases(
        fires=(job(EACH), job("-N 1 -n 4 -c 4 --gpus=4", "srun python train.py")),
        silent=(
            job(EACH, "srun --cpu-bind=none python train.py"),
            job(EACH, "export SLURM_CPU_BIND=cores\nsrun python train.py"),
            job(ONE, "srun torchrun train.py"),
            job(EACH, "srun numactl -l python train.py"),
        ),
    ),
    "numa-memory-unbound": Cases(
        fires=(job(EACH, "srun --cpu-bind=cores python train.py"), job(EACH, "srun --cpu-bind=sockets ./app")),
        silent=(
            job(EACH, "srun --cpu-bind=none python train.py"),
            job(EACH + " --mem-bind=local", "srun --cpu-bind=cores python train.py"),
            job(EACH, "srun --cpu-bind=cores numactl --localalloc python train.py"),
        ),
    ),
    "no-gpu-bind": Cases(
        fires=(job(EACH), job("-N 1 -n 2 --gres=gpu:2", "srun python train.py")),
        silent=(
            job(EACH, "srun --gpus-per-task=1 python train.py"),
            job(EACH, "srun bash -c 'LOCAL_RANK=$SLURM_LOCALID python train.py'"),
            (job(EACH), LUMI),
            job(ONE, "srun torchrun train.py"),
        ),
    ),
    "no-omp-threads": Cases(
        fires=(job(EACH), job("-N 1 -n 2 --gres=gpu:2", "srun python -u train.py")),
        silent=(
            job(EACH, "export OMP_NUM_THREADS=8\nsrun python train.py"),
            job(ONE, "srun torchrun train.py"),
            job("-n 64", "srun ./solver"),
        ),
    ),
    "no-rendezvous": Cases(
        fires=(
            job(ONE, "srun torchrun --nnodes=$SLURM_NNODES --rdzv_backend=c10d train.py"),
            job(ONE, "srun accelerate launch --num_machines=2 --num_processes=8 train.py"),
            job(ONE, "srun torchrun --nnodes=2 --rdzv_backend=c10d --master_addr=$HEAD train.py"),
        ),
        silent=(
            job(ONE, "srun torchrun --nnodes=2 --master_addr=$HEAD train.py"),
            job(ONE, "srun -N1 -n1 torchrun --nnodes=1 train.py"),
            job(ONE, "srun accelerate launch --config_file a.yaml --num_machines=2 train.py"),
            job(ONE, "srun torchrun --nnodes=2 $ARGS train.py"),
        ),
    ),
    "lightning-mismatch": Cases(
        fires=(
            job(ONE, "srun python train.py trainer.devices=4"),
            job(EACH, "srun python main.py fit --trainer.num_nodes=1"),
        ),
        silent=(
            job(EACH, "srun python train.py trainer.devices=4 trainer.num_nodes=2"),
            job(ONE, "python train.py trainer.devices=4"),
            job(ONE, "srun python train.py trainer.devices=auto"),
        ),
    ),
    "launcher-outdated": Cases(
        fires=(
            job(NODE, "python -m torch.distributed.launch train.py"),
            job(NODE, "srun python -u -m torch.distributed.launch --use_env train.py"),
        ),
        silent=(job(NODE, "python -m torch.distributed.run train.py"), job(NODE, "torchrun train.py")),
    ),
    "export-none-in-steps": Cases(
        fires=(
            job("--export=NONE", "export A=1\nsrun python train.py"),
            job("--export=NIL -N 2", "export A=1\nsrun torchrun train.py"),
        ),
        silent=(
            job("--export=NONE", "export A=1\nunset SLURM_EXPORT_ENV\nsrun python train.py"),
            job("--export=NONE", "srun python train.py"),
            job("--export=ALL", "export A=1\nsrun python train.py"),
        ),
    ),
    "array-uncapped": Cases(
        fires=(job("--array=1-1000"), job("-a 0-40,50-90")),
        silent=(job("--array=1-1000%10"), job("--array=0-7"), job("--array=0-99:10")),
    ),
    "array-no-jitter": Cases(
        fires=(job("--array=1-1000%50"), job("--array=0-99")),
        silent=(
            job("--array=1-1000%50", "sleep $((RANDOM % 30))\nsrun python train.py"),
            job("--array=1-1000%4"),
            job("--array=0-7"),
        ),
    ),
    "array-output-collides": Cases(
        fires=(job("--array=0-7 --output=log.txt"), job("--array=0-7 -o %x.out -e %A_%a.err")),
        silent=(
            job("--array=0-7 --output=%j.txt"),
            job("--array=0-7 --output=/dev/null"),
            job("--array=0-7"),
            job("--output=log.txt"),
        ),
    ),
    "array-index-unused": Cases(
        fires=(job("--array=0-7", "python train.py"), job("--array=1,2,3", "srun ./solver")),
        silent=(
            job("--array=0-7%1", "python train.py --resume"),
            job("--array=0-7", "python train.py ${SLURM_ARRAY_TASK_ID}"),
            job("--array=0-7", "source task.sh"),
        ),
    ),
    "array-too-large": Cases(
        context=DEUCALION,
        fires=(job("--array=0-10000%5"), job("--array=5,20000")),
        silent=(job("--array=0-9999%5"), (job("--array=0-90000%5"), LUMI)),
    ),
}
