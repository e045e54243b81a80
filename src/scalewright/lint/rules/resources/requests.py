"""Rules about what the header asks for: time, places, memory, CPUs and GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright import units
from scalewright.lint.job_facts import GUIDE, SURVEY, runs_whole_nodes, shares_nodes, trains
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, at_header, remove_line, rule
from scalewright.lint.script import Script
from scalewright.sites.walltime import MINUTE_S, format_walltime

PADDING_FRAC = 0.2
"""Margin over a pilot that still fits backfill's gaps: the guide asks for 10 to 20 %."""
PADDED_FROM_FRAC = 1.0
"""From twice the pilot's time on we speak of padding; less may be care."""
_UNITS_GB = {"": units.MIB / units.GIB, "K": units.KIB / units.GIB, "M": units.MIB / units.GIB, "G": 1.0, "T": 1024.0}


@rule(
    id="no-time",
    severity="info",
    title="No time limit",
    why="Without --time a job gets its partition's default, often far from its need; a short limit starts earlier.",
    source=f"Slurm, sbatch(1), --time; 23.0 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def no_time(script: Script, context: Context) -> Iterator[Hit]:
    mandatory = context.site is not None and "time" in context.site.select.mandatory
    if not script.has("time") and not mandatory:
        yield at_header(
            script,
            "no time limit is asked for",
            next_step="add #SBATCH --time=HH:MM:SS, a little more than the job needs",
        )


@rule(
    id="no-account",
    severity="info",
    title="No account",
    why="Where projects are billed a job without --account is refused, or billed to the user's default project.",
    source=f"Slurm, sbatch(1), --account; 50.9 % of {SURVEY}; it may also come from SBATCH_ACCOUNT or sbatch's "
    "command line",
    before="#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --account=project1\nsrun hostname\n",
)
def no_account(script: Script, context: Context) -> Iterator[Hit]:
    if not script.has("account") and context.site is None:
        yield at_header(
            script, "no account is named", next_step="add #SBATCH --account=PROJECT where the site bills projects"
        )


@rule(
    id="no-partition",
    severity="info",
    title="Neither partition, QOS nor constraint",
    why="The default partition may have no GPUs, or limits that do not fit; naming one says what the job is meant for.",
    source=f"Slurm, sbatch(1), --partition; 22.6 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --partition=gpu\nsrun python train.py\n",
)
def no_partition(script: Script, context: Context) -> Iterator[Hit]:
    if context.site is None and not script.has("partition", "qos", "constraint", "reservation", "clusters"):
        yield at_header(script, "no partition, QOS or constraint is named", next_step="add #SBATCH --partition=NAME")


@rule(
    id="time-padded",
    severity="warning",
    title="The time limit is far above what a pilot run took",
    why="Padded limits do not fit the gaps that backfill fills, so the job starts later.",
    source=f"{GUIDE} 2.4.7: steps x seconds per step plus 10 to 20 %",
    before="#!/bin/bash\n#SBATCH --time=12:00:00\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --time=02:30:00\nsrun python train.py\n",
)
def time_padded(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("time")
    if found is None or script.time_s is None or not context.pilot_s:
        return
    if script.time_s <= context.pilot_s * (1 + PADDED_FROM_FRAC) + 10 * MINUTE_S:
        return
    wanted = -(-int(context.pilot_s * (1 + PADDING_FRAC)) // (5 * MINUTE_S)) * 5 * MINUTE_S
    text = f"--time={format_walltime(wanted)}"
    yield at(
        script,
        found,
        f"--time={found.value} is {script.time_s / context.pilot_s:.1f} times what the pilot took",
        next_step=f"ask for {text}: the pilot and {PADDING_FRAC:.0%}",
        fix=ScriptFix(
            edits=(Edit(start=found.start, end=found.end, text=text),), title=f"ask for {text}", is_safe=False
        ),
    )


@rule(
    id="time-below-pilot",
    severity="error",
    title="The time limit is shorter than the pilot run",
    why="Slurm ends the job at its limit, before the work is done.",
    source="Slurm, sbatch(1), --time",
    before="#!/bin/bash\n#SBATCH --time=01:00:00\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --time=02:30:00\nsrun python train.py\n",
)
def time_below_pilot(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("time")
    if found is None or script.time_s is None or not context.pilot_s or script.time_s >= context.pilot_s:
        return
    resumes = script.has("requeue") and script.has("signal")
    yield at(
        script,
        found,
        f"--time={found.value} is less than the pilot took",
        next_step="ask for the pilot's time and 20 %",
        severity="info" if resumes else None,
    )


@rule(
    id="gpu-job-without-cpus",
    severity="warning",
    title="GPUs are asked for, CPUs are not",
    why="A task gets one CPU by default: loaders and launch threads share it, and the GPUs wait.",
    source=f"Slurm, sbatch(1), --cpus-per-task; 14.3 % of {SURVEY}; sites with DefCpuPerGPU give more",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --time=01:00:00\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=32\n#SBATCH --time=01:00:00\nsrun python "
    "train.py\n",
)
def gpu_job_without_cpus(script: Script, context: Context) -> Iterator[Hit]:
    given = ("cpus-per-task", "cpus-per-gpu", "mincpus", "extra-node-info", "cores-per-socket", "tres-per-task")
    if not script.asks_for_gpus or script.has(*given) or runs_whole_nodes(script, context.site):
        return
    if any(launch.has("cpus-per-task", "cpus-per-gpu") for launch in script.launched("srun")):
        return
    tasks, gpus = script.tasks_per_node, script.gpus_per_node
    if tasks is None or gpus is None or tasks > gpus or script.header.num_components > 1:
        return
    share = context.site.cpus_per_gpu.value if context.site and context.site.cpus_per_gpu else None
    wanted = f"--cpus-per-task={share * gpus // tasks}" if share else "--cpus-per-task=N, such as 8 for each GPU"
    yield at_header(
        script,
        f"{gpus} GPU{'s' * (gpus > 1)} and no CPUs are asked for: each task gets one",
        next_step=f"add #SBATCH {wanted}",
        severity=None if share and shares_nodes(script, context.site) else "info",
    )


@rule(
    id="memory-fragment",
    severity="warning",
    title="More than its share of a node's memory",
    why="A job with some of a node's GPUs and all of its memory leaves GPUs that nobody can use, and waits for "
    "a whole node.",
    source=f"{GUIDE} 2.4.7, anti-patterns: requesting all node memory",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --mem=0\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --mem=64G\nsrun python train.py\n",
)
def memory_fragment(script: Script, context: Context) -> Iterator[Hit]:
    found, gpus = script.directive("mem"), script.gpus_per_node
    if found is None or gpus is None or found.value is None or runs_whole_nodes(script, context.site):
        return
    site = context.site
    on_node = site.gpus_per_node.value if site and site.gpus_per_node else None
    share_gb = site.memory_gb_per_gpu.value if site and site.memory_gb_per_gpu else None
    asked_gb = _gigabytes(found.value)
    everything = asked_gb == 0 and gpus < (on_node or 2)
    too_much = (
        share_gb is not None and on_node is not None and gpus < on_node and (asked_gb or 0) > 1.25 * share_gb * gpus
    )
    if not (everything or too_much):
        return
    advice = f"--mem={share_gb * gpus}G" if share_gb else "--mem=NNG or --mem-per-gpu=NNG, what the job needs and 20 %"
    yield at(
        script,
        found,
        f"{gpus} GPU{'s' * (gpus > 1)} with "
        + ("all memory of the node" if everything else f"{found.value}, more than {share_gb} GB for each"),
        next_step=f"ask for {advice}",
    )


def _gigabytes(value: str) -> float | None:
    match = re.fullmatch(r"(\d+)([KMGT]?)I?B?", value.upper())
    return int(match.group(1)) * _UNITS_GB[match.group(2) or "M"] if match and len(match.group(1)) < 12 else None


@rule(
    id="memory-all",
    severity="info",
    title="All memory of each node is asked for",
    why="--mem=0 is right on whole nodes; elsewhere it waits for an empty node, and some sites refuse it.",
    source=f"Slurm, sbatch(1), --mem; {GUIDE} 2.4.4; 13.2 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --mem=0\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --mem=0\n#SBATCH --exclusive\nsrun python train.py\n",
)
def memory_all(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("mem")
    if found is None or found.value is None or _gigabytes(found.value) != 0 or runs_whole_nodes(script, context.site):
        return
    site = context.site
    on_node = site.gpus_per_node.value if site and site.gpus_per_node else None
    if (on_node is not None and script.gpus_per_node == on_node) or any(
        True for _ in memory_fragment.check(script, context)
    ):
        return
    yield at(
        script,
        found,
        "--mem=0 asks for all memory of each node",
        next_step="name an amount, or add --exclusive where the job takes whole nodes",
    )


@rule(
    id="exclusive-for-one-gpu",
    severity="warning",
    title="A whole node for one GPU",
    why="--exclusive keeps all others off the node: its other GPUs idle, are billed, and the job waits for an "
    "empty node.",
    source=f"{GUIDE} 2.4.7, anti-patterns",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --exclusive\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
)
def exclusive_for_one_gpu(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("exclusive")
    if found is None or found.value not in (None, "", "exclusive") or script.gpus_per_node != 1:
        return
    site = context.site
    if site is not None and site.gpus_per_node is not None and site.gpus_per_node.value == 1:
        return
    fix = remove_line(script, found.line, title="remove --exclusive", is_safe=False)
    alone = re.fullmatch(r"#SBATCH[ \t]+--exclusive(?:=\S*)?[ \t]*(?:#.*)?", found.raw) is not None
    yield at(
        script,
        found,
        "--exclusive takes a whole node for one GPU",
        next_step="remove it, and ask for the CPUs and the memory that the job needs",
        fix=fix if alone else None,
    )


@rule(
    id="gpu-options-mixed",
    severity="warning",
    title="GPUs are asked for in two ways",
    why="--gres=gpu and --gpus-per-... are separate requests: they may add up, contradict each other or hide "
    "GPUs from tasks.",
    source=f"Slurm, sbatch(1), --gpus-per-task and --gres; 2.1 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n#SBATCH --gpus-per-task=1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
)
def gpu_options_mixed(script: Script, context: Context) -> Iterator[Hit]:
    if not re.search(r"(?:^|,)gpu(?:[:=]|$)", script.value("gres") or ""):
        return
    for name in ("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket"):
        found = script.directive(name)
        if found is not None:
            yield at(
                script,
                found,
                f"GPUs are asked for with --gres={script.value('gres')} and with --{name}={found.value}",
                next_step="keep one of them",
                severity="info" if name == "gpus-per-node" and _same(script) else None,
            )


def _same(script: Script) -> bool:
    counts = {re.sub(r"^.*[:=]", "", script.value(name) or "") for name in ("gres", "gpus-per-node")}
    return len(counts) == 1


@rule(
    id="fewer-tasks-than-nodes",
    severity="warning",
    title="Fewer tasks than nodes",
    why="Slurm cannot place one task on two nodes: it lowers the number of nodes to that of the tasks, with a warning.",
    source="Slurm 22.05.8: Warning: can't run 1 processes on 2 nodes, setting nnodes to 1",
    before="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks=1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun python train.py\n",
)
def fewer_tasks_than_nodes(script: Script, context: Context) -> Iterator[Hit]:
    found, nodes, tasks = script.directive("ntasks"), script.number("nodes"), script.number("ntasks")
    if found is None or nodes is None or tasks is None or tasks >= nodes or "-" in (script.value("nodes") or ""):
        return
    yield at(
        script,
        found,
        f"{tasks} task{'s' * (tasks > 1)} on {nodes} nodes: Slurm gives the job {tasks} node{'s' * (tasks > 1)}",
        next_step="ask with --ntasks-per-node instead",
    )


@rule(
    id="host-pinned",
    severity="warning",
    title="The job is pinned to named nodes",
    why="A job for named nodes waits for exactly these; nearly every reason is better said with a constraint.",
    source=f"{GUIDE} 2.4.7, anti-patterns; 3.1 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --nodelist=node07\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --constraint=a100\nsrun python train.py\n",
)
def host_pinned(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("nodelist")
    if found is None or script.is_placeholder("nodelist"):
        return
    alone = re.fullmatch(r"#SBATCH[ \t]+\S+(?:[ \t]+[^-#\s]\S*)?[ \t]*(?:#.*)?", found.raw) is not None
    # Without --nodes a list also says how many nodes the job gets.
    alone = alone and (script.has("nodes") or re.search(r"[\[,]", found.value or "") is None)
    yield at(
        script,
        found,
        f"the job waits for {found.value}",
        next_step="remove it, or say what the node must have: --constraint=FEATURE",
        fix=remove_line(script, found.line, title="let Slurm choose the nodes", is_safe=False) if alone else None,
    )


@rule(
    id="exclude-list",
    severity="info",
    title="A list of excluded nodes",
    why="Such lists outlive the faults they were made for, and narrow the choice of nodes for good.",
    source=f"{GUIDE} 2.4.6: --exclude for a time, and tell the operators; 6.6 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --exclude=node07,node11\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
)
def exclude_list(script: Script, context: Context) -> Iterator[Hit]:
    found = script.directive("exclude")
    if found is not None and not script.is_placeholder("exclude"):
        yield at(
            script,
            found,
            f"nodes are excluded: {(found.value or '')[:60]}",
            next_step="report them to the site and give the option on sbatch's command line while it is needed",
        )


@rule(
    id="no-output",
    severity="info",
    title="No name for the log",
    why="Logs land as slurm-JOBID.out wherever sbatch was called; a folder and the job's name make them findable.",
    source=f"Slurm, sbatch(1), --output; 33.1 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --output=logs/%x-%j.out\nsrun python train.py\n",
)
def no_output(script: Script, context: Context) -> Iterator[Hit]:
    if not script.has("output") and trains(script):
        yield at_header(script, "the log gets Slurm's default name", next_step="add #SBATCH --output=logs/%x-%j.out")


@rule(
    id="tasks-may-spread",
    severity="info",
    title="Tasks may land on several nodes, each with all these GPUs",
    why="--gres counts per node: without --nodes Slurm may spread the tasks, and the job gets a multiple of the GPUs.",
    source="Slurm, sbatch(1), --gres: on each node; --ntasks",
    before="#!/bin/bash\n#SBATCH --ntasks=4\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks=4\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
)
def tasks_may_spread(script: Script, context: Context) -> Iterator[Hit]:
    found, tasks = script.directive("ntasks"), script.number("ntasks")
    per_node = "gpu" in (script.value("gres") or "") or script.has("gpus-per-node")
    if found is None or tasks is None or tasks < 2 or not per_node or not script.asks_for_gpus:
        return
    if not script.has("nodes", "ntasks-per-node", "ntasks-per-gpu", "gpus"):
        yield at(
            script,
            found,
            f"{tasks} tasks may be spread over several nodes, with {script.value('gres') or 'GPUs'} on each",
            next_step="add #SBATCH --nodes=1, or say --ntasks-per-node",
        )
