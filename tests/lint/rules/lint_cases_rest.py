"""Cases of the rules about the environment, files, shell text, sites and models."""

from __future__ import annotations

from lint_cases import (
    DEUCALION,
    FEWEST,
    FRONTIER,
    GENERIC,
    JUPITER,
    KAROLINA,
    LEONARDO,
    LUMI,
    MARENOSTRUM,
    PERLMUTTER,
    PLAN,
    Cases,
    job,
    shell,
)

GPU = "--gres=gpu:1 --cpus-per-task=8"
TWO = "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4"
HEX = "0123456789abcdef0123456789abcdef01234567"
LUMI_G = "--account=project_465000123 --partition=standard-g --gpus-per-node=8"

CASES = {
    "secret-in-script": Cases(
        fires=(
            shell(f"wandb login {HEX}"),
            shell("export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789"),
            shell("python train.py --token hf_abcdefghijklmnopqrstuvwxyz0123456789"),
            shell("DB_PASSWORD='s3cretPassw0rd'"),
            shell(f"# export WANDB_API_KEY={HEX}"),
        ),
        silent=(
            shell("export HF_TOKEN=$(cat ~/.hf)"),
            shell("export WANDB_API_KEY=<your key>"),
            shell("export WANDB_API_KEY=your_api_key_here1"),
            shell("MAX_TOKENS=4096\nTOKENIZER=gpt2-tokenizer-v1\nBOS_TOKEN=128000a9x"),
            shell("export OPENAI_API_KEY=$KEY"),
        ),
    ),
    "install-in-job": Cases(
        fires=(
            job(GPU, "conda env create -f env.yml\npython train.py"),
            job(GPU, "python -m pip install torch\nsrun python train.py"),
        ),
        silent=(
            job(GPU, "pip list\npython train.py"),
            job("--time=10", "pip install -r requirements.txt"),
            job(GPU, "# pip install torch\npython train.py"),
        ),
    ),
    "online-on-compute-node": Cases(
        context=LEONARDO,
        fires=(
            job(GPU, "huggingface-cli download org/model\npython train.py"),
            job(GPU, "export WANDB_MODE=online\npython train.py"),
            (job(GPU, "wget https://example.org/data.tar\npython train.py"), MARENOSTRUM),
        ),
        silent=(
            job(GPU, "export WANDB_MODE=offline\npython train.py"),
            job(GPU, "curl http://localhost:8000/health\npython train.py"),
            job(GPU, "export https_proxy=http://login01:3128\npip install a\npython train.py"),
            (job(GPU, "git clone https://example.org/a\npython train.py"), DEUCALION),
        ),
    ),
    "module-unversioned": Cases(
        fires=(job(GPU, "module load gcc/13 python\npython train.py"), job(GPU, "ml CUDA\npython train.py")),
        silent=(
            job(GPU, "module load cuda/12.4\npython train.py"),
            job(GPU, "module load LUMI nano\npython train.py"),
            job(GPU, "module purge\npython train.py"),
        ),
    ),
    "module-no-purge": Cases(
        fires=(job(GPU, "ml CUDA/12\npython train.py"), job(GPU, "module load a/1\nmodule load b/2\npython t.py")),
        silent=(
            job(GPU, "module --force purge\nmodule load cuda/12.4\npython train.py"),
            (job(GPU, "module load cuda/12.4\npython train.py"), DEUCALION),
            job(GPU, "python train.py"),
        ),
    ),
    "conda-without-hook": Cases(
        fires=(
            job(GPU, "conda init\nconda activate a\npython train.py"),
            job(GPU, "module load cuda/12.4\nmamba activate a\npython train.py"),
        ),
        silent=(
            job(GPU, "source ~/miniconda3/etc/profile.d/conda.sh\nconda activate a\npython train.py"),
            job(GPU, "module load anaconda3\nconda activate a\npython train.py"),
            "#!/bin/bash -l\n#SBATCH --gpus=1\nconda activate a\npython train.py\n",
            job(GPU, "source activate a\npython train.py"),
        ),
    ),
    "python-buffered": Cases(
        fires=(job(GPU, "python train.py"), job(GPU, "srun apptainer exec --nv a.sif python3 main.py")),
        silent=(
            job(GPU, "export PYTHONUNBUFFERED=1\npython train.py"),
            job(GPU, "srun -u python train.py"),
            job("--nodes=1", "python etl.py"),
        ),
    ),
    "output-overwritten": Cases(
        fires=(job("-o out.txt"), job("--array=0-3 --output=run_%a.log"), job("--output=%x.out --error=%j.err")),
        silent=(
            job("-o %j.txt"),
            job("-o out.txt --open-mode=append"),
            job("--array=0-3 --output=%A_%a.log"),
            job("-o run_2025-01-31.log"),
            job("-o /dev/null"),
        ),
    ),
    "output-folder": Cases(
        fires=(
            job("-o slurm/%j.out", "mkdir -p ./slurm\npython train.py"),
            job("-o /no/such/logs/%j.out", 'd=/no/such/logs\nmkdir -p "$d"\npython train.py'),
        ),
        silent=(
            job("-o logs/%j.out"),
            job("-o %j.out", "mkdir -p logs"),
            job("-o logs/%x/%j.out", "mkdir -p logs/a"),
        ),
    ),
    "path-without-job-id": Cases(
        fires=(
            job(TWO, 'for n in $nodes; do echo "$n slots=4" >> hostfile; done\ndeepspeed --hostfile hostfile a.py'),
            job(GPU, "python train.py > train.log 2>&1"),
            job(GPU + " --array=0-3", "LOG=server.log\npython train.py --fold $SLURM_ARRAY_TASK_ID > $LOG"),
        ),
        silent=(
            job(GPU + " --array=0-3", "python train.py > fold_$SLURM_ARRAY_TASK_ID.log"),
            job(GPU + " --array=0-3", "cd run_$SLURM_ARRAY_TASK_ID\npython train.py > train.log"),
            job(GPU, "python train.py > train-$SLURM_JOB_ID.log"),
            job(GPU, "python train.py > /dev/null"),
            job(GPU, "python train.py >> $LOG"),
            job(GPU, "echo a > notes.txt"),
        ),
    ),
    "local-rank-path": Cases(
        fires=(
            job(TWO, "srun bash -c 'python train.py --log-file=run.$LOCAL_RANK.log'"),
            job(TWO, "srun python - <<'PY'\nimport os\nlog = open(f\"r{os.environ['LOCAL_RANK']}.txt\", 'a')\nPY"),
        ),
        silent=(
            job(TWO, "srun bash -c 'python train.py > run.$SLURM_NODEID.$SLURM_LOCALID.log'"),
            job("--nodes=1 --gpus=4", "srun bash -c 'python train.py > run.$SLURM_LOCALID.log'"),
            job(TWO, "srun bash -c 'export DEVICE=$SLURM_LOCALID; python train.py'"),
        ),
    ),
    "shards-off-by-one": Cases(
        fires=(
            shell("parts=$((WORLD_SIZE + 1))"),
            shell("python - <<PY\nimport os\nm = int(os.environ['SLURM_NTASKS']) + 1\nPY"),
        ),
        silent=(
            shell("parts=$((WORLD_SIZE))\nnext=$((RANK + 1))"),
            shell("python - <<PY\nimport os\nm = int(os.environ['SLURM_ARRAY_TASK_MAX']) + 1\nPY"),
        ),
    ),
    "checkpoint-not-atomic": Cases(
        fires=(
            shell('echo "$step" > checkpoints/latest'),
            shell("python - <<PY\nimport json\njson.dump({}, open('checkpoint_manifest.json', 'w'))\nPY"),
            shell("python - <<PY\nimport torch\ntorch.save(m, 'ckpt.pt')\nPY"),
        ),
        silent=(
            shell('echo "$step" > checkpoints/latest.tmp && mv checkpoints/latest.tmp checkpoints/latest'),
            shell("python - <<PY\nimport os, torch\ntorch.save(m, 'ckpt.tmp')\nos.replace('ckpt.tmp', 'ckpt.pt')\nPY"),
            shell("cp config.yaml checkpoints/"),
            shell("python train.py > checkpoint.log"),
        ),
    ),
    "checkpoint-on-node": Cases(
        fires=(
            job(GPU, "python train.py --output_dir /tmp/run"),
            job(GPU, "python train.py --save-dir=$TMPDIR/ckpt"),
        ),
        silent=(
            job(GPU, "python train.py --output_dir /tmp/run\ncp -r /tmp/run $WORK/"),
            job(GPU, "trap 'rsync -a $TMPDIR/ $WORK/' EXIT\npython train.py --save-dir=$TMPDIR/ckpt"),
            job(GPU, "python train.py --cache_dir /tmp/cache --output_dir $WORK"),
        ),
    ),
    "remove-unset-path": Cases(
        fires=(shell('rm -rf "$SCRATCH_DIR"/*'), shell("rm -fr ${JOB_TMP}/")),
        silent=(
            shell('rm -rf "${SCRATCH_DIR:?}"/*'),
            shell("set -u\nrm -rf $SCRATCH_DIR/*"),
            shell("d=/tmp/x\nrm -rf $d/*"),
            shell("rm -f $SCRATCH_DIR/a.txt"),
        ),
    ),
    "node-folder-shared": Cases(
        fires=(job(GPU, "mkdir /tmp/data\npython train.py"), job(GPU, "d=/dev/shm/images\nmkdir -p $d\npython t.py")),
        silent=(
            job(GPU, "mkdir /tmp/$SLURM_JOB_ID\npython train.py"),
            job(GPU, "mkdir -p /tmp/$USER/data\npython train.py"),
            job(GPU, "mkdir -p $TMPDIR/data\npython train.py"),
        ),
    ),
    "backslash-space": Cases(
        fires=(shell("python train.py \\\t\n  --lr 1"), shell("srun \\  \n  python train.py")),
        silent=(
            shell("python train.py \\\n  --lr 1"),
            shell("cat <<EOF\na \\ \nb\nEOF"),
            shell("# a comment \\ \npython train.py"),
        ),
    ),
    "comment-breaks-command": Cases(
        fires=(
            shell("python train.py \\\n  # --lr 1 \\\n  --epochs 2"),
            shell("srun \\\n# --exclusive\n  --ntasks=1 python train.py"),
        ),
        silent=(
            shell("python train.py \\\n  --lr 1 # last\necho done"),
            shell("args=(\n  --a 1\n  # --b 2\n  --c 3\n)"),
            shell("python train.py \\\n  --lr 1 \\\n# --epochs 2\necho done"),
        ),
    ),
    "assignment-with-spaces": Cases(
        fires=(shell("LR = 3"), shell('NAME = "run one" x')),
        silent=(shell("LR=3"), shell('[ "$a" = b ]'), shell('test "$a" = b')),
    ),
    "site-option-missing": Cases(
        context=LUMI,
        fires=(
            job("--account=project_465000123"),
            (job("--account=ehpc1 --time=10"), MARENOSTRUM),
            (job("--qos=regular -A m1_g"), PERLMUTTER),
        ),
        silent=(
            job(LUMI_G),
            (job("-A m1_g -C gpu -q regular"), PERLMUTTER),
            (job("--nodes=1"), GENERIC),
        ),
    ),
    "site-option-forbidden": Cases(
        context=LUMI,
        fires=(
            job("--ntasks-per-node=8 --gpus-per-task=1"),
            job(LUMI_G + " --ntasks-per-node=8", "srun --gpu-bind=closest python train.py"),
            (job("--mem=100G"), MARENOSTRUM),
            (job("--partition=gpu"), PERLMUTTER),
        ),
        silent=(
            job("--ntasks-per-node=1 --gpus-per-task=8"),
            job(LUMI_G + " --gpu-bind=none"),
            (job("--mem=100G"), LEONARDO),
        ),
    ),
    "partition-unknown": Cases(
        context=LUMI,
        fires=(job("-p gpu --gpus=1"), (job("-p boost_usr --gres=gpu:1"), LEONARDO)),
        silent=(job("-p small-g,dev-g --gpus=1"), job("-p small"), job("-p {{ partition }} --gpus=1")),
    ),
    "account-form": Cases(
        context=LUMI,
        fires=(job("-A 465000123"), (job("-A other"), LEONARDO)),
        silent=(
            (job("-A m1234"), PERLMUTTER),
            (job("-A IscrC_X"), LEONARDO),
            job("-A project_465000123"),
            job("-A <project>"),
            (job("-A abc123"), FRONTIER),
        ),
    ),
    "time-over-limit": Cases(
        context=LUMI,
        fires=(
            job("-p dev-g -t 04:00:00"),
            (job("--qos=acc_debug -t 03:00:00"), MARENOSTRUM),
            (job("-p batch -N 4 -t 06:00:00"), FRONTIER),
            (job("-p boost_usr_prod -t 2-00:00:00"), LEONARDO),
            (job("-p boost_usr_prod --qos=boost_qos_dbg -t 01:00:00"), LEONARDO),
        ),
        silent=(
            (job("-p boost_usr_prod --qos=boost_qos_lprod -t 2-00:00:00"), LEONARDO),
            (job("-p boost_usr_prod -t 1-00:00:00"), LEONARDO),
            job("-p small-g -t 3-00:00:00"),
            job("-p dev-g,small-g -t 04:00:00"),
            (job("-p batch -N 100 -t 06:00:00"), FRONTIER),
            job("-p unknown -t 9-00:00:00"),
        ),
    ),
    "nodes-over-limit": Cases(
        context=LUMI,
        fires=(job("-p small-g -N 5"), job("-p dev-g -N 64")),
        silent=(job("-p small-g -N 4"), job("-p small-g,standard-g -N 64"), job("-p small-g")),
    ),
    "gpus-over-node": Cases(
        context=LUMI,
        fires=(job("--gres=gpu:12"), (job("--gpus-per-node=8"), LEONARDO)),
        silent=(job("-N 2 --gpus=16"), (job("--gres=gpu:4"), LEONARDO), (job("--gres=gpu:1g.10gb:7"), LEONARDO)),
    ),
    "cpus-over-share": Cases(
        context=LUMI,
        fires=(
            (job("-p boost_usr_prod --gres=gpu:1 -c 32"), LEONARDO),
            job("-p standard-g --gpus-per-node=8 -c 200"),
        ),
        silent=(
            (job("-p boost_usr_prod --gres=gpu:4 -c 32"), LEONARDO),
            job("-p standard-g --gpus-per-node=8 -c 56"),
            job("-p small-g --gpus-per-node=2 --ntasks-per-node=2 -c 7"),
        ),
    ),
    "part-of-whole-node": Cases(
        context=LUMI,
        fires=(job("-p standard-g --gpus=4"), job("-p standard-g --gres=gpu:2 --nodes=4")),
        silent=(job("-p standard-g --gpus-per-node=8"), job("-p dev-g --gpus=1"), (job("--gpus=1"), KAROLINA)),
    ),
    "memory-over-node": Cases(
        context=LUMI,
        fires=(job("--mem=1T"), (job("--mem=800000"), LEONARDO)),
        silent=(job("--mem=480G"), (job("--mem=494000"), LEONARDO), job("--mem=0")),
    ),
    "login-shell-missing": Cases(
        context=DEUCALION,
        fires=(
            "#!/usr/bin/bash\n#SBATCH -A ag\nml CUDA\nsrun python train.py\n",
            "#!/bin/sh\n#SBATCH -A ag\nmodule load CUDA\nsrun python train.py\n",
        ),
        silent=(
            "#!/bin/bash --login\n#SBATCH -A ag\nmodule load CUDA\n",
            job("-A ag", "python train.py"),
            (job("-A ag", "module load CUDA"), LUMI),
        ),
    ),
    "wrong-architecture": Cases(
        context=JUPITER,
        fires=(
            job("--gres=gpu:4", "apptainer exec --nv torch-amd64.sif python train.py"),
            (job(LUMI_G, "bash Miniforge3-Linux-aarch64.sh"), LUMI),
        ),
        silent=(
            job("--gres=gpu:4", "apptainer exec --nv torch-arm64.sif python train.py"),
            job("--gres=gpu:4", "source /opt/$(uname -m)/x86_64-or-not/activate"),
            (job(LUMI_G, "export PATH=/opt/x86_64/bin:$PATH"), LUMI),
        ),
    ),
    "tensor-parallel-spans-nodes": Cases(
        fires=(
            job(TWO, "TP=8\nsrun python pretrain_gpt.py --tensor-model-parallel-size $TP"),
            job("-N 2 --gres=gpu:2", "python serve.py --tensor-parallel-size=4"),
        ),
        silent=(
            job(TWO, "srun python pretrain_gpt.py --tensor-model-parallel-size 4"),
            job("-N 1 --gres=gpu:2", "python serve.py --tensor-parallel-size=4"),
            job(TWO, "srun python pretrain_gpt.py --tensor-model-parallel-size $TP"),
        ),
    ),
    "world-size-indivisible": Cases(
        fires=(
            job(TWO, "srun python pretrain_gpt.py --tensor-model-parallel-size 3"),
            job(TWO, "PP=5\nsrun python train.py --pipeline-model-parallel-size ${PP}"),
        ),
        silent=(
            job(TWO, "srun python pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4"),
            job(TWO, "srun python pretrain_gpt.py --tensor-model-parallel-size 3 --context-parallel-size $CP"),
            job("--nodes=2", "srun python pretrain_gpt.py --tensor-model-parallel-size 3"),
        ),
    ),
    "model-does-not-fit": Cases(
        context=FEWEST,
        fires=(job("--nodes=4 --gpus-per-node=4"), (job("--gpus=1"), PLAN)),
        silent=(job("--nodes=8 --gpus-per-node=4"), job("--nodes=1"), job("--nodes=16 --gpus-per-node=4")),
    ),
    "named-model-too-large": Cases(
        context=LEONARDO,
        fires=(
            job("--gres=gpu:2", "accelerate launch sft.py --model Qwen/Qwen2.5-32B-Instruct"),
            job("--nodes=2 --gres=gpu:4", "MODEL=meta-llama/Llama-3.1-405B\nsrun python train.py"),
        ),
        silent=(
            job("--nodes=32 --gres=gpu:4", "srun torchrun train.py --model_name_or_path meta-llama/Llama-3.1-70B"),
            job("--gres=gpu:1", "python train.py --model meta-llama/Llama-3.1-70B --lora_rank 8"),
            job("--gres=gpu:1", "python train.py --model some/unknown-70B"),
            (job("--gres=gpu:1", "python train.py --model meta-llama/Llama-3.1-70B"), GENERIC),
        ),
    ),
    "plan-not-followed": Cases(
        context=PLAN,
        fires=(
            job("--nodes=16 --gpus-per-node=4"),
            job("--nodes=8 --gpus-per-node=4", "srun python a.py --pipeline-model-parallel-size 2"),
        ),
        silent=(
            job("--nodes=8 --gpus-per-node=4", "srun python a.py --tensor-model-parallel-size 4"),
            (job("--nodes=16 --gpus-per-node=4"), FEWEST),
        ),
    ),
    "host-memory-too-small": Cases(
        context=PLAN,
        fires=(job("--mem=100G"), job("--mem=1000")),
        silent=(job("--mem=400G"), job("--mem=0"), (job("--mem=1G"), FEWEST)),
    ),
    "cpus-unused": Cases(
        fires=(
            job("--gres=gpu:1 -c 96", "python train.py --num-workers=8"),
            job("--gres=gpu:2 -c 128", "python train.py --workers 4"),
        ),
        silent=(
            job("--gres=gpu:1 -c 16", "python train.py --num-workers=8"),
            job("--gres=gpu:4 -c 64", "python train.py --num_workers 4"),
            job("--gres=gpu:1 -c 96", "python train.py"),
        ),
    ),
}
