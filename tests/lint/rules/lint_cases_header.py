"""Cases of the rules about the header, its values and its requests."""

from __future__ import annotations

from lint_cases import KAROLINA, LEONARDO, LUMI, PERLMUTTER, PILOT, Cases, job, shell

CASES = {
    "directive-after-command": Cases(
        fires=(
            "#!/bin/bash\nset -e\n#SBATCH --time=01:00:00\n#SBATCH --nodes=2\nsrun hostname\n",
            "#!/bin/bash\n#SBATCH --nodes=1\nexport A=1 # set\n#SBATCH -t 10\n",
        ),
        silent=(
            "#!/bin/bash\n#SBATCH --nodes=1\ncat >other.sh <<EOF\n#SBATCH --time=01:00:00\nEOF\n",
            "#!/bin/bash\n\n# a comment\n#SBATCH --nodes=1\nsrun hostname\n##SBATCH --time=01:00:00\n",
        ),
    ),
    "directive-malformed": Cases(
        fires=(
            "#!/bin/bash\n#SBATCH --nodes=1\n#SBTACH --time=01:00:00\nsrun hostname\n",
            "#!/bin/bash\n#SBATCH --nodes=1\n # SBATCH --time=01:00:00\nsrun hostname\n",
            "#!/bin/bash\n#SBATCH --nodes=1\n### SBATCH --time=01:00:00\nsrun hostname\n",
        ),
        silent=(
            "#!/bin/bash\n#SBATCH --nodes=1\n##SBATCH --time=01:00:00\nsrun hostname\n",
            "#!/bin/bash\n#SBATCH --time=02:00:00\n# SBATCH --time=01:00:00\nsrun hostname\n",
            "#!/bin/bash\n#SBATCH --nodes=1\n# #SBATCH --gres=gpu:8\nsrun hostname\n",
            shell("sbatch --dependency=singleton train.sbatch"),
        ),
    ),
    "directive-unknown": Cases(
        fires=(job("--gpu=1"), job("--ntask=4"), job("--mem-per-gpus=4G")),
        silent=(
            job("--tasks-per-node=4"),
            job("--container-image=/images/a.sqsh\n--license=scratch"),
            job("--kill-on-bad-exit=1"),
        ),
    ),
    "step-option-in-header": Cases(
        fires=(job("--cpu-bind=cores"), job("--mpi=pmix"), job("-K")),
        silent=(job("--gpu-bind=none\n--mem-bind=local"), job("--nodes=2", "srun --cpu-bind=cores hostname")),
    ),
    "directive-duplicate": Cases(
        fires=(job("--nodes=1\n-N 2"), job("-p gpu\n--partition=cpu\n--time=10")),
        silent=(
            job("--account=a\n-A a"),
            job("--mail-type=END\n--mail-type=FAIL\n--mail-type=ALL"),
            "#!/bin/bash\n#SBATCH --partition=cpu\n#SBATCH hetjob\n#SBATCH --partition=gpu\nsrun hostname\n",
        ),
    ),
    "variable-in-directive": Cases(
        fires=(
            job("--output=$HOME/logs/%j.out"),
            job("--job-name=$(basename x)"),
            job("--nodes=$NODES"),
            job("--output=~/logs/%j.out"),
        ),
        silent=(
            job("--output=/logs/%u/%x-%j.out"),
            job("--comment='costs 5 $'"),
            "#!/bin/bash\n#SBATCH --nodes={{ nodes }}\nsrun hostname\n",
        ),
    ),
    "directive-stray-word": Cases(
        fires=(job("--time 01:00:00 ten minutes"), job("--nodes=2 tasks")),
        silent=(job("--time 01:00:00  # ten minutes"), job("--account=<your account>"), job("-N 2 -n 4")),
    ),
    "directive-unreadable": Cases(
        fires=(job("--nodes=2\n--comment='first"), job("--requeue=yes")),
        silent=(job("--comment='first run'"), job('--comment="it\'s"')),
    ),
    "no-shebang": Cases(
        fires=("\n#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n", "# job\n#SBATCH --nodes=2\nsrun hostname\n"),
        silent=("#!/usr/bin/env bash\n#SBATCH --nodes=2\n", "srun hostname\n"),
    ),
    "byte-order-mark": Cases(
        fires=("\ufeff" + job("--nodes=2"), "\ufeff" + shell("srun hostname")),
        silent=(job("--nodes=2"), job("--nodes=2", "echo '\ufeff'")),
    ),
    "dos-line-ends": Cases(
        fires=(
            "#!/bin/bash\n#SBATCH --nodes=2\r\nsrun hostname\r\n",
            "#!/bin/bash\r\n#SBATCH -N1\r\n",
            "#!/bin/bash\r#SBATCH -N1\rsrun hostname\r",
        ),
        silent=(job("--nodes=2"), job("--nodes=2", "printf 'a\\r\\n'")),
    ),
    "value-invalid": Cases(
        fires=(
            job("--time=2d"),
            job("--mem=1.5G"),
            job("--nodes=two"),
            job("--signal=B:FOO@1"),
            job("--array=1..10"),
            job("--cpus-per-task=2.5"),
        ),
        silent=(
            job("--time=1-00"),
            job("--mem=64GB"),
            job("--nodes=2-4"),
            job("--signal=SIGUSR1@120"),
            job("--array=1-9:2,12%3"),
            job("--time=<time>"),
        ),
    ),
    "time-in-minutes": Cases(
        fires=(job("--time=24:00"), job("-t 72:00")),
        silent=(job("--time=30:00"), job("--time=24:00:00"), job("--time=1-12:00")),
    ),
    "memory-options-mixed": Cases(
        fires=(job("--mem=4G --mem-per-gpu=4G"), job("--mem-per-cpu=1G --mem-per-gpu=4G")),
        silent=(job("--mem=4G"), job("--mem=4G", "srun --mem-per-cpu=1G hostname")),
    ),
    "cpus-options-mixed": Cases(
        fires=(job("--gpus=2 --cpus-per-gpu=8 -c 8"), job("--gpus=1 --cpus-per-gpu=4 --cpus-per-task=4")),
        silent=(job("--gpus=2 --cpus-per-gpu=8"), job("--gpus=2 --cpus-per-task=8")),
    ),
    "no-time": Cases(
        fires=(job("--gres=gpu:1"), job("-N 4 -n 8")),
        silent=(job("-t 10"), shell("python train.py")),
    ),
    "no-account": Cases(
        fires=(job("--time=10"), job("--qos=normal")),
        silent=(job("-A project"), (job("--time=10"), LUMI)),
    ),
    "no-partition": Cases(
        fires=(job("--time=10"), job("--account=a --gres=gpu:1")),
        silent=(job("-q normal"), job("-C gpu"), (job("--time=10"), LUMI)),
    ),
    "time-padded": Cases(
        context=PILOT,
        fires=(job("--time=06:00:00"), job("--time=1-00:00:00")),
        silent=(job("--time=02:20:00"), job("--time=04:00:00"), job("--nodes=1")),
    ),
    "time-below-pilot": Cases(
        context=PILOT,
        fires=(job("--time=30"), job("--time=01:59:00")),
        silent=(job("--time=02:00:00"), job("--time=12:00:00"), job("--nodes=1")),
    ),
    "gpu-job-without-cpus": Cases(
        fires=(job("--gpus=2"), (job("--partition=boost_usr_prod --gres=gpu:4"), LEONARDO)),
        silent=(
            job("--gres=gpu:1 -c 8"),
            job("--gres=gpu:1 --exclusive"),
            job("--gres=gpu:1 --cpus-per-gpu=8"),
            job("--gres=gpu:2", "srun -c 8 python train.py"),
            job("--nodes=1"),
            (job("--partition=standard-g --gpus-per-node=8"), LUMI),
        ),
    ),
    "memory-fragment": Cases(
        fires=(
            job("--gpus-per-node=1 --mem=0"),
            (job("--partition=small-g --gpus-per-node=1 --mem=480G"), LUMI),
            (job("--partition=boost_usr_prod --gres=gpu:1 --mem=400G"), LEONARDO),
        ),
        silent=(
            job("--gpus-per-node=8 --mem=0"),
            job("--gres=gpu:1 --mem=0 --exclusive"),
            (job("--partition=small-g --gpus-per-node=8 --mem=480G"), LUMI),
            (job("--partition=boost_usr_prod --gres=gpu:1 --mem=120G"), LEONARDO),
        ),
    ),
    "memory-all": Cases(
        fires=(job("--gpus-per-node=8 --mem=0"), job("--nodes=2 --mem=0")),
        silent=(
            job("--gres=gpu:1 --mem=0"),
            job("--gres=gpu:8 --mem=100G"),
            (job("--partition=small-g --gpus-per-node=8 --mem=0"), LUMI),
        ),
    ),
    "exclusive-for-one-gpu": Cases(
        fires=(job("--gpus=1 --exclusive"), job("--nodes=2 --gpus-per-node=1 --exclusive")),
        silent=(job("--gpus-per-node=4 --exclusive"), job("--gres=gpu:1 --exclusive=user"), job("--exclusive")),
    ),
    "gpu-options-mixed": Cases(
        fires=(job("--gres=gpu:4 --gpus-per-node=2"), job("--gres=gpu:2 --gpus=2")),
        silent=(job("--gres=gpu:4"), job("--gres=gpumem:24G --gpus=2"), job("--gpus-per-node=4 --gpus-per-task=1")),
    ),
    "fewer-tasks-than-nodes": Cases(
        fires=(job("-N 4 -n 2"), job("--nodes=2 --ntasks=1")),
        silent=(job("-N 2 -n 2"), job("-N 1-4 -n 2"), job("-N 2 --ntasks-per-node=1")),
    ),
    "tasks-may-spread": Cases(
        fires=(job("-n 2 --gres=gpu:2"), job("--ntasks=8 --gpus-per-node=4")),
        silent=(job("-n 1 --gres=gpu:2"), job("-n 8 --gpus=8"), job("-N 1 -n 4 --gres=gpu:4"), job("-n 64")),
    ),
    "host-pinned": Cases(
        fires=(job("-w node[01-04]"), job("--nodelist gpu7")),
        silent=(job("--exclude=node1"), job("--nodelist=<node>"), job("-N 2", 'srun -w "$head" hostname')),
    ),
    "exclude-list": Cases(
        fires=(job("-x lrdn0001,lrdn0002"), job("--exclude=node1")),
        silent=(job("--nodelist=node1"), job("--exclude={{ bad }}")),
    ),
    "no-output": Cases(
        fires=(job("--gpus=1"), job("--gres=gpu:2 --error=%j.err")),
        silent=(job("--gpus=1 -o %j.out"), job("--nodes=1", "srun ./solver")),
    ),
    "preemptible-unprepared": Cases(
        fires=(
            job("--qos=preemptible --gpus=1"),
            job("-p scavenge_gpu --gpus=1"),
            (job("--partition=qgpu_preempt --gpus=1"), KAROLINA),
        ),
        silent=(
            job("--qos=nopreempt --gpus=1"),
            job("-p scavenge --gpus=1 --requeue"),
            (job("-q preempt --gpus=1 --signal=USR1@60"), PERLMUTTER),
        ),
    ),
}
