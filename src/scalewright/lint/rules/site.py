"""Rules that compare a script with the profile of its site: required options, limits, architecture."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scalewright.lint.job_facts import (
    GIB_PER_UNIT,
    GUIDE,
    code_of,
    cpus_of_gpu,
    gpus_of_node,
    is_fill_in,
    memory_gb_of_gpu,
    partitions_of,
    runs_whole_nodes,
)
from scalewright.lint.rule import Context, Hit, at, at_header, at_span, insert_text, replace_text, rule
from scalewright.lint.script import Script
from scalewright.sites.account_pattern import account_matches
from scalewright.sites.walltime import HOUR_S, format_walltime

if TYPE_CHECKING:
    from scalewright.sites.types import Qos, Site, SitePartition

_PROFILE = "the site's profile, with its sources: scalewright site show"
_GPU = "#!/bin/bash\n#SBATCH --account=project_465000123\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\n"


def _qos(script: Script, site: Site) -> Qos | None:
    return site.find_qos(script.value("qos") or "")


@rule(
    id="site-option-missing",
    severity="error",
    title="An option that the site requires is missing",
    why="The site refuses jobs without it, or runs them on the wrong nodes.",
    source=_PROFILE,
    before="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\nsrun python train.py\n",
)
def site_option_missing(script: Script, context: Context) -> Iterator[Hit]:
    site = context.site
    if site is None:
        return
    required = list(site.select.mandatory)
    if site.account.required and "account" not in required:
        required.append("account")
    for name in required:
        if script.has(name) or (name in ("nodes",) and script.has("ntasks", "gpus")):
            continue
        if name in ("qos", "partition") and script.has("reservation"):
            continue  # the reservation brings them
        default = {
            "partition": site.select.partition,
            "qos": site.select.qos,
            "constraint": site.select.constraint,
        }.get(name)
        value = default if default and "{" not in default else {"time": "HH:MM:SS", "nodes": "N"}.get(name, "NAME")
        yield at_header(
            script,
            f"{site.name} requires --{name}",
            next_step=f"add #SBATCH --{name}={value}, or pass your sbatch options to lint with --sbatch",
        )


@rule(
    id="site-option-forbidden",
    severity="error",
    title="An option that the site refuses or warns about",
    why="The site's scheduler refuses the option, or its documentation says that jobs with it go wrong.",
    source=_PROFILE,
    before=_GPU
    + "#SBATCH --partition=standard-g\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpu-bind=single:1\nsrun python "
    "train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\n#SBATCH --ntasks-per-node=8\nsrun python train.py\n",
)
def site_option_forbidden(script: Script, context: Context) -> Iterator[Hit]:
    if context.site is None:
        return
    for forbidden in context.site.forbidden:
        name = forbidden.flag.removeprefix("--")
        directive = script.directive(name)
        if directive is not None and not _is_harmless(script, name, directive.value):
            yield at(
                script,
                directive,
                f"do not use --{name} on {context.site.name}: {forbidden.why}",
                next_step=f"remove --{name}",
            )
        for launch in script.launched("srun"):
            option = launch.option(name)
            if option is not None and name not in ("partition", "mem") and not _is_harmless(script, name, option.value):
                message = f"do not use --{name} on {context.site.name}: {forbidden.why}"
                yield at(script, option, message, next_step=f"remove --{name}")


def _is_harmless(script: Script, name: str, value: str | None) -> bool:
    """Whether the option binds nothing: the only task of a node gets all devices."""
    if name == "gpus-per-task":
        return script.tasks_per_node == 1
    return name == "gpu-bind" and (value == "none" or (value == "closest" and script.tasks_per_node == 1))


@rule(
    id="partition-unknown",
    severity="warning",
    title="The partition is not in the site's profile",
    why="sbatch refuses a partition that does not exist. A GPU job in a partition without GPUs waits forever.",
    source=_PROFILE,
    before=_GPU + "#SBATCH --partition=standardg\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\nsrun python train.py\n",
)
def partition_unknown(script: Script, context: Context) -> Iterator[Hit]:
    site, directive = context.site, script.directive("partition")
    if (
        site is None
        or directive is None
        or not site.partitions
        or not directive.value
        or script.is_placeholder("partition")
    ):
        return
    partitions = [partition.name for partition in site.partitions]
    for name in (part.strip() for part in directive.value.split(",")):
        if name in partitions or not script.asks_for_gpus:
            continue
        near = difflib.get_close_matches(name, partitions, n=1, cutoff=0.75)
        yield at(
            script,
            directive,
            f"the profile of {site.name} has no partition {name}; it has {', '.join(partitions)}",
            next_step=f"write {near[0]}" if near else "check it with sinfo",
        )


@rule(
    id="account-form",
    severity="info",
    title="The account does not look like one of this site",
    why="sbatch refuses a wrong account. New projects may have other names, so this is only a hint.",
    source=_PROFILE,
    before="#!/bin/bash\n#SBATCH --account=myproject\n#SBATCH --partition=standard-g\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --account=project_465000123\n#SBATCH --partition=standard-g\nsrun hostname\n",
)
def account_form(script: Script, context: Context) -> Iterator[Hit]:
    site, directive = context.site, script.directive("account")
    if (
        site is None
        or directive is None
        or not site.account.pattern
        or not directive.value
        or is_fill_in(directive.value)
    ):
        return
    if script.is_placeholder("account") or account_matches(site.account.pattern, directive.value, ignore_case=True):
        return
    # Accept projects of the same family as the profile's, and sites that add an ending themselves.
    if (
        any(directive.value[:4] == word[:4] for word in re.findall(r"[A-Za-z]{4,}", site.account.form))
        or site.id == "perlmutter"
    ):
        return
    yield at(
        script,
        directive,
        f"accounts of {site.name} look like {site.account.form}",
        next_step="check the account with the site's tools",
    )


@rule(
    id="time-over-limit",
    severity="error",
    title="The time limit is above the site's limit",
    why="sbatch refuses the job, or it waits forever with PartitionTimeLimit.",
    source=_PROFILE,
    before=_GPU + "#SBATCH --partition=standard-g\n#SBATCH --time=3-00:00:00\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\n#SBATCH --time=2-00:00:00\nsrun python train.py\n",
)
def time_over_limit(script: Script, context: Context) -> Iterator[Hit]:
    site, directive = context.site, script.directive("time")
    if site is None or directive is None or script.time_s is None:
        return
    limits = [(p.max_time, f"partition {p.name}") for p in partitions_of(script, site) if p.max_time is not None]
    limit, of = max(limits, default=(None, ""))
    qos = _qos(script, site) or (
        None if script.has("qos", "reservation") else site.find_qos(site.select.qos or "normal")
    )
    if qos is not None and qos.max_time is not None and (limit is None or qos.max_time < limit):
        limit, of = qos.max_time, f"{'' if script.has('qos') else 'the default '}QOS {qos.name}"
    names = {p.name for p in partitions_of(script, site)}
    for size in site.size_bins:
        fits = script.num_nodes is not None and size.min_nodes <= script.num_nodes <= size.max_nodes
        if fits and (not size.partition or size.partition in names) and (limit is None or size.max_time < limit):
            limit, of = size.max_time, f"a job of {script.num_nodes} node{'s' * (script.num_nodes != 1)}"
    if limit is not None and script.time_s > limit:
        text = f"--time={format_walltime(limit)}"

        yield at(
            script,
            directive,
            f"--time={directive.value} is above the limit of {of} on {site.name}, {format_walltime(limit)}",
            next_step=f"write {text} and resume in a second job, or choose another partition or QOS",
            fix=replace_text(directive, text, title=f"write {text}", is_safe=False),
        )


@rule(
    id="nodes-over-limit",
    severity="error",
    title="The number of nodes is outside the site's limits",
    why="sbatch refuses the job, or it waits forever with PartitionNodeLimit.",
    source=_PROFILE,
    before=_GPU.replace("--nodes=1", "--nodes=8") + "#SBATCH --partition=small-g\nsrun python train.py\n",
    after=_GPU.replace("--nodes=1", "--nodes=8") + "#SBATCH --partition=standard-g\nsrun python train.py\n",
)
def nodes_over_limit(script: Script, context: Context) -> Iterator[Hit]:
    site, nodes = context.site, script.num_nodes
    directive = script.directive("nodes") or script.directive("ntasks")
    if site is None or nodes is None or directive is None:
        return
    places: list[SitePartition | Qos] = [*partitions_of(script, site)]
    qos = _qos(script, site)
    refusing = [p for p in places if (p.max_nodes is not None and nodes > p.max_nodes) or nodes < p.min_nodes]
    if places and len(refusing) == len(places):
        place: SitePartition | Qos = refusing[0]
    elif qos is not None and ((qos.max_nodes is not None and nodes > qos.max_nodes) or nodes < qos.min_nodes):
        place = qos
    else:
        return
    bounds = f"{place.min_nodes} to {place.max_nodes}" if place.max_nodes is not None else f"{place.min_nodes} or more"
    yield at(
        script,
        directive,
        f"{place.name} of {site.name} allows {bounds} nodes, and the job requests {nodes}",
        next_step="choose another partition or QOS",
    )


@rule(
    id="gpus-over-node",
    severity="error",
    title="More GPUs than a node has",
    why="No node has that many, so sbatch refuses the job.",
    source=_PROFILE,
    before=_GPU.replace("--gpus-per-node=8", "--gpus-per-node=16")
    + "#SBATCH --partition=standard-g\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\nsrun python train.py\n",
)
def gpus_over_node(script: Script, context: Context) -> Iterator[Hit]:
    site, gpus = context.site, script.gpus_per_node
    on_node = gpus_of_node(site)
    directive = next(
        (d for n in ("gpus-per-node", "gres", "gpus", "gpus-per-task") if (d := script.directive(n))), None
    )
    if site is None or gpus is None or on_node is None or directive is None or gpus <= on_node:
        return
    if re.search(r"\dg\.\d+gb|mig", script.value("gres") or "", re.IGNORECASE):
        return  # slices of a GPU count separately
    nodes = -(-gpus * (script.num_nodes or 1) // on_node)
    yield at(
        script,
        directive,
        f"the job requests {gpus} GPUs per node, and a node of {site.name} has {on_node}",
        next_step=f"request {nodes} nodes with {on_node} GPUs each",
    )


@rule(
    id="cpus-over-share",
    severity="warning",
    title="More CPUs than the share of the GPUs",
    why="CPUs beyond the share of the job's GPUs make other GPUs of the node unusable, and are billed like them.",
    source=_PROFILE + f"; {GUIDE} 2.4.7: no odd combinations",
    before="#!/bin/bash\n#SBATCH --partition=small-g\n#SBATCH --gpus-per-node=1\n#SBATCH --cpus-per-task=56\n"
    "srun python train.py\n",
    after="#!/bin/bash\n#SBATCH --partition=small-g\n#SBATCH --gpus-per-node=1\n#SBATCH --cpus-per-task=7\nsrun "
    "python train.py\n",
)
def cpus_over_share(script: Script, context: Context) -> Iterator[Hit]:
    site, gpus, tasks = context.site, script.gpus_per_node, script.tasks_per_node
    share = cpus_of_gpu(site)
    on_node = gpus_of_node(site)
    directive = script.directive("cpus-per-task")
    if site is None or share is None or on_node is None or directive is None or gpus is None or tasks is None:
        return
    cpus = (script.number("cpus-per-task") or 0) * tasks
    if cpus <= share * gpus:
        return
    is_impossible = cpus > 2 * share * on_node
    if not is_impossible and (runs_whole_nodes(script, site) or gpus >= on_node):
        return
    message = f"the job requests {cpus} CPUs for {gpus} GPU{'s' * (gpus > 1)}; on {site.name} a GPU has {share}"
    yield at(
        script,
        directive,
        f"{cpus} CPUs per node are more than a node of {site.name} has" if is_impossible else message,
        next_step=f"write --cpus-per-task={max(1, share * min(gpus, on_node) // tasks)}",
        severity="error" if is_impossible else None,
    )


@rule(
    id="part-of-whole-node",
    severity="warning",
    title="Some GPUs of a node that is allocated whole",
    why="The partition allocates and bills whole nodes. GPUs that the job does not request idle.",
    source=_PROFILE,
    before="#!/bin/bash\n#SBATCH --partition=standard-g\n#SBATCH --gpus-per-node=1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --partition=small-g\n#SBATCH --gpus-per-node=1\nsrun python train.py\n",
)
def part_of_whole_node(script: Script, context: Context) -> Iterator[Hit]:
    site, gpus, directive = context.site, script.gpus_per_node, script.directive("partition")
    on_node = gpus_of_node(site)
    if site is None or gpus is None or on_node is None or directive is None or gpus >= on_node:
        return
    partition = site.partition(directive.value or "")
    if partition is None or not partition.whole_node or partition.source.confidence == "low":
        return
    shared = [p.name for p in site.partitions if not p.whole_node and p.has_gpus]
    if shared:
        yield at(
            script,
            directive,
            f"{partition.name} of {site.name} allocates whole nodes: {on_node - gpus} of {on_node} GPUs idle",
            next_step=f"use all {on_node} GPUs, or a partition that shares nodes: {', '.join(shared)}",
        )


@rule(
    id="memory-over-node",
    severity="error",
    title="More memory than a node has",
    why="No node has that much, so sbatch refuses the job or it waits forever.",
    source=_PROFILE,
    before=_GPU + "#SBATCH --partition=standard-g\n#SBATCH --mem=900G\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\n#SBATCH --mem=480G\nsrun python train.py\n",
)
def memory_over_node(script: Script, context: Context) -> Iterator[Hit]:
    site, directive = context.site, script.directive("mem")
    share = memory_gb_of_gpu(site)
    on_node = gpus_of_node(site)
    match = re.fullmatch(r"(\d{1,9})([KMGT]?)B?", (directive.value or "").upper()) if directive else None
    if site is None or directive is None or match is None or share is None or on_node is None:
        return
    requested_gb = int(match.group(1)) * GIB_PER_UNIT[match.group(2)]
    # Sites round the shares down, so a node may have a fifth more.
    if requested_gb > 1.2 * share * on_node:
        yield at(
            script,
            directive,
            f"--mem={directive.value} is more than a node of {site.name} has (about {share * on_node} GB)",
            next_step=f"write --mem={share * on_node}G, or use more nodes",
        )


@rule(
    id="login-shell-missing",
    severity="error",
    title="The site needs a login shell",
    why="Without -l the command module is not defined on this site, and the script continues without its software.",
    source=_PROFILE,
    before="#!/bin/bash\n#SBATCH --account=f2026001g\n#SBATCH --partition=normal-a100-40\nmodule load "
    "CUDA/12.6.0\nsrun python train.py\n",
    after="#!/bin/bash -l\n#SBATCH --account=f2026001g\n#SBATCH --partition=normal-a100-40\nmodule load "
    "CUDA/12.6.0\nsrun python train.py\n",
)
def login_shell_missing(script: Script, context: Context) -> Iterator[Hit]:
    site = context.site
    if site is None or site.login_shell is None or not site.login_shell.value or not script.called("module", "ml"):
        return
    if re.search(r"\s-\w*l|--login", script.shebang) or re.search(
        r"/etc/profile|lmod[^\n]{0,100}init", code_of(script)
    ):
        return
    end = len(script.shebang)
    is_plain = script.shebang in ("#!/bin/bash", "#!/usr/bin/bash")
    yield Hit(
        line=1,
        message=f"the command module is not defined on {site.name} without a login shell",
        next_step="begin with #!/bin/bash -l",
        fix=insert_text(end, " -l", title="use a login shell", is_safe=False) if is_plain else None,
    )


@rule(
    id="wrong-architecture",
    severity="error",
    title="Software for another processor",
    why="Programs and images for x86_64 do not run on ARM nodes, and vice versa.",
    source=_PROFILE,
    before="#!/bin/bash\n#SBATCH --account=jureap59\n#SBATCH --gres=gpu:4\nsource "
    "/opt/miniforge-x86_64/bin/activate\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --account=jureap59\n#SBATCH --gres=gpu:4\nsource "
    "/opt/miniforge-aarch64/bin/activate\nsrun python train.py\n",
)
def wrong_architecture(script: Script, context: Context) -> Iterator[Hit]:
    site = context.site
    if site is None or site.arch is None:
        return
    other = r"x86_64|amd64" if site.arch.value == "aarch64" else r"aarch64|arm64"
    code = code_of(script)
    if re.search(r"uname -m|\barch\b", code):
        return
    for match in re.finditer(rf"[\w./$-]{{0,200}}(?:{other})[\w./-]{{0,200}}", code):
        yield at_span(
            script,
            match.start(),
            match.end(),
            f"{match.group()[:60]} does not run on the processors of {site.name}, {site.arch.value}",
            next_step=f"use software for {site.arch.value}",
        )
        return


def _loses_much(script: Script) -> bool:
    """Whether a long job would start from the beginning: nothing in it saves or resumes. Many sites requeue jobs."""
    is_long = script.time_s is None or script.time_s > 4 * HOUR_S
    return is_long and re.search(r"resum|checkpoint|ckpt|restart|latest|--load\b", script.text, re.IGNORECASE) is None


@rule(
    id="preemptible-unprepared",
    severity="warning",
    title="A preemptible queue, and a job that is not prepared for it",
    why="Slurm may end jobs there at any time. Without a requeue and a signal, work is lost each time.",
    source=f"{GUIDE} 2.4.7: choose preemptible QOS only when ready",
    before="#!/bin/bash\n#SBATCH --partition=preempt\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --partition=preempt\n#SBATCH --gres=gpu:1\n#SBATCH --requeue\nsrun python "
    "train.py --resume auto\n",
)
def preemptible_unprepared(script: Script, context: Context) -> Iterator[Hit]:
    if script.has("requeue", "no-requeue", "signal"):
        return
    for name in ("partition", "qos"):
        directive = script.directive(name)
        value = (directive.value or "") if directive is not None else ""
        partition = context.site.partition(value) if context.site is not None and name == "partition" else None
        is_documented = partition is not None and partition.preempts
        # `nopreempt` and the like mean the opposite.
        is_by_name = (
            re.search(r"(?<!no)(?<!no-)(?<!no_)(?<!non)(?<!non-)(preempt|scaveng|spot\b)", value, re.IGNORECASE)
            is not None
        )
        if directive is not None and (is_documented or is_by_name):
            yield at(
                script,
                directive,
                f"jobs in {value} may be preempted, and this one has no --requeue and no --signal",
                next_step="add #SBATCH --requeue and --signal, and resume from the last checkpoint",
                severity=None if script.asks_for_gpus and (is_documented or _loses_much(script)) else "info",
            )
            return
