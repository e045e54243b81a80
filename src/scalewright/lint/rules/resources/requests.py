"""Rules about the requests in the header: time, account, partition, memory, CPUs, GPUs, nodes and log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import (
    GIB_PER_UNIT,
    GUIDE,
    SURVEY,
    cpus_of_gpu,
    gpus_of_node,
    memory_gb_of_gpu,
    runs_whole_nodes,
    shares_nodes,
    trains,
)
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, at_header, remove_line, rule
from scalewright.lint.script import Script
from scalewright.sites.walltime import HOUR_S, MINUTE_S, format_walltime

PADDING_FRAC = 0.2
"""Margin over the time of a pilot run; the guide recommends 10 to 20 %."""
PADDED_FROM_FRAC = 1.0
"""Margin above which a limit counts as padded, here twice the pilot's time; less may be caution."""


@rule(
    id="no-time",
    severity="info",
    title="No time limit",
    why="Without --time a job gets the default of its partition, which is often far from what it needs. A job "
    "with a short limit starts earlier.",
    source=f"Slurm, sbatch(1), --time; 23.0 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time=01:00:00\nsrun hostname\n",
)
def no_time(script: Script, context: Context) -> Iterator[Hit]:
    mandatory = context.site is not None and "time" in context.site.select.mandatory
    if not script.has("time") and not mandatory:
        yield at_header(
            script,
            "the job has no time limit of its own",
            next_step="add #SBATCH --time=HH:MM:SS with a little more than the job needs",
        )


@rule(
    id="no-account",
    severity="info",
    title="No account",
    why="Where projects are billed, sbatch refuses a job without --account or bills it to the user's default project.",
    source=f"Slurm, sbatch(1), --account; 50.9 % of {SURVEY}; it may also come from SBATCH_ACCOUNT or sbatch's "
    "command line",
    before="#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --account=project1\nsrun hostname\n",
)
def no_account(script: Script, context: Context) -> Iterator[Hit]:
    if not script.has("account") and context.site is None:
        yield at_header(
            script, "the job names no account", next_step="add #SBATCH --account=PROJECT if the site bills projects"
        )


@rule(
    id="no-partition",
    severity="info",
    title="No partition, QOS or constraint",
    why="The default partition may have no GPUs, or limits that do not fit the job.",
    source=f"Slurm, sbatch(1), --partition; 22.6 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --partition=gpu\nsrun python train.py\n",
)
def no_partition(script: Script, context: Context) -> Iterator[Hit]:
    if context.site is None and not script.has("partition", "qos", "constraint", "reservation", "clusters"):
        yield at_header(
            script, "the job names no partition, QOS or constraint", next_step="add #SBATCH --partition=NAME"
        )


@rule(
    id="time-padded",
    severity="warning",
    title="The time limit is far above the time of a pilot run",
    why="Backfill starts short jobs in the gaps of the schedule. A job with a much too long limit does not fit "
    "there, so it starts later.",
    source=f"{GUIDE} 2.4.7: steps x seconds per step plus 10 to 20 %",
    before="#!/bin/bash\n#SBATCH --time=12:00:00\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --time=02:30:00\nsrun python train.py\n",
)
def time_padded(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("time")
    if directive is None or script.time_s is None or not context.pilot_s:
        return
    if script.time_s <= context.pilot_s * (1 + PADDED_FROM_FRAC) + 10 * MINUTE_S:
        return
    recommended_s = -(-int(context.pilot_s * (1 + PADDING_FRAC)) // (5 * MINUTE_S)) * 5 * MINUTE_S
    text = f"--time={format_walltime(recommended_s)}"
    yield at(
        script,
        directive,
        f"--time={directive.value} is {script.time_s / context.pilot_s:.1f} times as long as the pilot run",
        next_step=f"write {text}: the pilot's time plus {PADDING_FRAC:.0%}",
        fix=ScriptFix(
            edits=(Edit(start=directive.start, end=directive.end, text=text),), title=f"ask for {text}", is_safe=False
        ),
    )


@rule(
    id="time-below-pilot",
    severity="error",
    title="The time limit is shorter than the pilot run",
    why="Slurm ends the job at its time limit, before the work is done.",
    source="Slurm, sbatch(1), --time",
    before="#!/bin/bash\n#SBATCH --time=01:00:00\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --time=02:30:00\nsrun python train.py\n",
)
def time_below_pilot(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("time")
    if directive is None or script.time_s is None or not context.pilot_s or script.time_s >= context.pilot_s:
        return
    resumes = script.has("requeue") and script.has("signal")
    yield at(
        script,
        directive,
        f"--time={directive.value} is shorter than the pilot run",
        next_step="request the pilot's time plus 20 %",
        severity="info" if resumes else None,
    )


@rule(
    id="gpu-job-without-cpus",
    severity="warning",
    title="GPUs are requested, CPUs are not",
    why="By default a task gets one CPU. Data loaders and launch threads share it, and the GPUs wait.",
    source=f"Slurm, sbatch(1), --cpus-per-task; 14.3 % of {SURVEY}; sites with DefCpuPerGPU give more",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --time=01:00:00\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=32\n#SBATCH --time=01:00:00\nsrun python "
    "train.py\n",
)
def gpu_job_without_cpus(script: Script, context: Context) -> Iterator[Hit]:
    options = ("cpus-per-task", "cpus-per-gpu", "mincpus", "extra-node-info", "cores-per-socket", "tres-per-task")
    if not script.asks_for_gpus or script.has(*options) or runs_whole_nodes(script, context.site):
        return
    if any(launch.has("cpus-per-task", "cpus-per-gpu") for launch in script.launched("srun")):
        return
    tasks, gpus = script.tasks_per_node, script.gpus_per_node
    if tasks is None or gpus is None or tasks > gpus or script.header.num_components > 1:
        return
    share = cpus_of_gpu(context.site)
    advice = f"--cpus-per-task={share * gpus // tasks}" if share else "--cpus-per-task=N, such as 8 for each GPU"
    yield at_header(
        script,
        f"the job requests {gpus} GPU{'s' * (gpus > 1)} and no CPUs: each task gets one, unless the site gives more",
        next_step=f"add #SBATCH {advice}",
        severity=None if _is_starved(script, context) else "info",
    )


def _is_starved(script: Script, context: Context) -> bool:
    """Whether the GPUs wait for few CPUs: on an unknown site, or on one that shares nodes. Short jobs are tests."""
    if context.site is not None:
        return cpus_of_gpu(context.site) is not None and shares_nodes(script, context.site)
    return script.time_s is None or script.time_s > HOUR_S


@rule(
    id="memory-fragment",
    severity="warning",
    title="More memory than the job's share of a node",
    why="A job with some of a node's GPUs and all of its memory makes the other GPUs unusable for everybody. It "
    "also waits for an empty node.",
    source=f"{GUIDE} 2.4.7, anti-patterns: requesting all node memory",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --mem=0\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --mem=64G\nsrun python train.py\n",
)
def memory_fragment(script: Script, context: Context) -> Iterator[Hit]:
    directive, gpus = script.directive("mem"), script.gpus_per_node
    if directive is None or gpus is None or directive.value is None or runs_whole_nodes(script, context.site):
        return
    site = context.site
    on_node = gpus_of_node(site)
    share_gb = memory_gb_of_gpu(site)
    requested_gb = _gigabytes(directive.value)
    is_all = requested_gb == 0 and gpus < (on_node or 2)
    is_part_of_node = on_node is not None and gpus < on_node
    is_too_much = is_part_of_node and share_gb is not None and (requested_gb or 0) > 1.25 * share_gb * gpus
    if not (is_all or is_too_much):
        return
    memory = "all memory of the node" if is_all else f"{directive.value} of memory, over {share_gb} GB per GPU"
    advice = f"--mem={share_gb * gpus}G" if share_gb else "--mem=NNG or --mem-per-gpu=NNG: what the job needs plus 20 %"
    yield at(
        script,
        directive,
        f"the job requests {gpus} GPU{'s' * (gpus > 1)} with {memory}",
        next_step=f"write {advice}",
    )


def _gigabytes(value: str) -> float | None:
    match = re.fullmatch(r"(\d+)([KMGT]?)I?B?", value.upper())
    return int(match.group(1)) * GIB_PER_UNIT[match.group(2)] if match and len(match.group(1)) < 12 else None


@rule(
    id="memory-all",
    severity="info",
    title="The job requests all memory of each node",
    why="--mem=0 is right for whole nodes. Otherwise the job waits for an empty node, and some sites refuse it.",
    source=f"Slurm, sbatch(1), --mem; {GUIDE} 2.4.4; 13.2 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --mem=0\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --mem=0\n#SBATCH --exclusive\nsrun python train.py\n",
)
def memory_all(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("mem")
    if (
        directive is None
        or directive.value is None
        or _gigabytes(directive.value) != 0
        or runs_whole_nodes(script, context.site)
    ):
        return
    site = context.site
    on_node = gpus_of_node(site)
    if (on_node is not None and script.gpus_per_node == on_node) or any(
        True for _ in memory_fragment.check(script, context)
    ):
        return
    yield at(
        script,
        directive,
        "--mem=0 requests all memory of each node",
        next_step="name an amount, or add --exclusive if the job needs whole nodes",
    )


@rule(
    id="exclusive-for-one-gpu",
    severity="warning",
    title="A whole node for one GPU",
    why="--exclusive keeps all other jobs off the node. The other GPUs idle and are billed, and the job waits for "
    "an empty node.",
    source=f"{GUIDE} 2.4.7, anti-patterns",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --exclusive\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
)
def exclusive_for_one_gpu(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("exclusive")
    if directive is None or directive.value not in (None, "", "exclusive") or script.gpus_per_node != 1:
        return
    site = context.site
    if site is not None and site.gpus_per_node is not None and site.gpus_per_node.value == 1:
        return
    fix = remove_line(script, directive.line, title="remove --exclusive", is_safe=False)
    alone = re.fullmatch(r"#SBATCH[ \t]+--exclusive(?:=\S*)?[ \t]*(?:#.*)?", directive.raw) is not None
    yield at(
        script,
        directive,
        "--exclusive takes a whole node for one GPU",
        next_step="remove it, and request the CPUs and the memory that the job needs",
        fix=fix if alone else None,
    )


@rule(
    id="gpu-options-mixed",
    severity="warning",
    title="GPUs are requested in two ways",
    why="--gres=gpu and --gpus-per-... are separate requests. They may add up, contradict each other, or hide "
    "GPUs from tasks.",
    source=f"Slurm, sbatch(1), --gpus-per-task and --gres; 2.1 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n#SBATCH --gpus-per-task=1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
)
def gpu_options_mixed(script: Script, context: Context) -> Iterator[Hit]:
    if not re.search(r"(?:^|,)gpu(?:[:=]|$)", script.value("gres") or ""):
        return
    for name in ("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket"):
        directive = script.directive(name)
        if directive is not None:
            yield at(
                script,
                directive,
                f"the job requests GPUs with --gres={script.value('gres')} and with --{name}={directive.value}",
                next_step="keep one of the two",
                severity="info" if name == "gpus-per-node" and _has_equal_counts(script) else None,
            )


def _has_equal_counts(script: Script) -> bool:
    counts = {re.sub(r"^.*[:=]", "", script.value(name) or "") for name in ("gres", "gpus-per-node")}
    return len(counts) == 1


@rule(
    id="fewer-tasks-than-nodes",
    severity="warning",
    title="Fewer tasks than nodes",
    why="Slurm cannot run one task on two nodes. It reduces the number of nodes to the number of tasks and prints "
    "only a warning.",
    source="Slurm 22.05.8: Warning: can't run 1 processes on 2 nodes, setting nnodes to 1",
    before="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks=1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun python train.py\n",
)
def fewer_tasks_than_nodes(script: Script, context: Context) -> Iterator[Hit]:
    directive, nodes, tasks = script.directive("ntasks"), script.number("nodes"), script.number("ntasks")
    if directive is None or nodes is None or tasks is None or tasks >= nodes or "-" in (script.value("nodes") or ""):
        return
    yield at(
        script,
        directive,
        f"{tasks} task{'s' * (tasks > 1)} on {nodes} nodes: the job gets only {tasks} node{'s' * (tasks > 1)}",
        next_step="use --ntasks-per-node instead of --ntasks",
    )


@rule(
    id="host-pinned",
    severity="warning",
    title="The job is tied to named nodes",
    why="The job waits for exactly these nodes. A constraint says what the job needs, and lets it start on any "
    "node that has it.",
    source=f"{GUIDE} 2.4.7, anti-patterns; 3.1 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --nodelist=node07\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --constraint=a100\nsrun python train.py\n",
)
def host_pinned(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("nodelist")
    if directive is None or script.is_placeholder("nodelist"):
        return
    alone = re.fullmatch(r"#SBATCH[ \t]+\S+(?:[ \t]+[^-#\s]\S*)?[ \t]*(?:#.*)?", directive.raw) is not None
    # Without --nodes the list also sets the number of nodes.
    alone = alone and (script.has("nodes") or re.search(r"[\[,]", directive.value or "") is None)
    yield at(
        script,
        directive,
        f"the job only runs on {directive.value}",
        next_step="remove it, or name a feature of the nodes: --constraint=FEATURE",
        fix=remove_line(script, directive.line, title="let Slurm choose the nodes", is_safe=False) if alone else None,
    )


@rule(
    id="exclude-list",
    severity="info",
    title="The job excludes named nodes",
    why="Such a list outlives the faults that it was made for, and leaves the job fewer nodes to start on.",
    source=f"{GUIDE} 2.4.6: --exclude for a time, and tell the operators; 6.6 % of {SURVEY}",
    before="#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --exclude=node07,node11\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
)
def exclude_list(script: Script, context: Context) -> Iterator[Hit]:
    directive = script.directive("exclude")
    if directive is not None and not script.is_placeholder("exclude"):
        yield at(
            script,
            directive,
            f"the job excludes {(directive.value or '')[:60]}",
            next_step="report the nodes to the site, and set the option on the sbatch command line while it is needed",
        )


@rule(
    id="no-output",
    severity="info",
    title="No name for the log",
    why="The log becomes slurm-JOBID.out in the folder where sbatch was called. A log folder and the job name "
    "make it easier to find.",
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
    title="Tasks may spread over several nodes, each with all these GPUs",
    why="--gres counts per node. Without --nodes Slurm may spread the tasks over several nodes, and the job gets "
    "and pays for a multiple of the GPUs.",
    source="Slurm, sbatch(1), --gres: on each node; --ntasks",
    before="#!/bin/bash\n#SBATCH --ntasks=4\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks=4\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
)
def tasks_may_spread(script: Script, context: Context) -> Iterator[Hit]:
    directive, tasks = script.directive("ntasks"), script.number("ntasks")
    per_node = "gpu" in (script.value("gres") or "") or script.has("gpus-per-node")
    if directive is None or tasks is None or tasks < 2 or not per_node or not script.asks_for_gpus:
        return
    if not script.has("nodes", "ntasks-per-node", "ntasks-per-gpu", "gpus"):
        yield at(
            script,
            directive,
            f"{tasks} tasks may spread over several nodes, with {script.value('gres') or 'GPUs'} on each",
            next_step="add #SBATCH --nodes=1, or use --ntasks-per-node",
        )
