"""Rules that hold a script against the profile of the site it is for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from scalewright import units
from scalewright.lint.job_facts import GUIDE, code_of, is_fill_in, partitions_of, runs_whole_nodes
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, at_header, rule
from scalewright.lint.script import Script
from scalewright.sites.types import Qos, Site, SitePartition
from scalewright.sites.walltime import format_walltime

_PROFILE = "the site's profile, with its sources: scalewright site show"
_GPU = "#!/bin/bash\n#SBATCH --account=project_465000123\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\n"
_GIGABYTES = {"K": units.KIB / units.GIB, "M": units.MIB / units.GIB, "G": 1.0, "T": 1024.0}


def _qos(script: Script, site: Site) -> Qos | None:
    return site.find_qos(script.value("qos") or "")


@rule(
    id="site-option-missing",
    severity="error",
    title="An option that the site demands is missing",
    why="The site refuses jobs without it, or runs them where nobody wants them.",
    source=_PROFILE,
    before="#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\nsrun python train.py\n",
)
def site_option_missing(script: Script, context: Context) -> Iterator[Hit]:
    site = context.site
    if site is None:
        return
    wanted = list(site.select.mandatory)
    if site.account.required and "account" not in wanted:
        wanted.append("account")
    for name in wanted:
        # On sites where the default is the profile's own choice a missing partition still finds nodes.
        if script.has(name) or (name in ("nodes",) and script.has("ntasks", "gpus")):
            continue
        default = {
            "partition": site.select.partition,
            "qos": site.select.qos,
            "constraint": site.select.constraint,
        }.get(name)
        value = default if default and "{" not in default else {"time": "HH:MM:SS", "nodes": "N"}.get(name, "NAME")
        yield at_header(
            script,
            f"{site.name} wants --{name}",
            next_step=f"add #SBATCH --{name}={value}, or tell lint what sbatch's command line has: --sbatch",
        )


@rule(
    id="site-option-forbidden",
    severity="error",
    title="An option that the site refuses or warns of",
    why="The site's scheduler refuses it, or its documentation says that jobs with it go wrong.",
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
        found = script.directive(name)
        if found is not None and not _is_harmless(script, name, found.value):
            yield at(
                script,
                found,
                f"{context.site.name}: no --{name}: {forbidden.why}",
                next_step=f"remove --{name}",
            )
        for launch in script.launched("srun"):
            option = launch.option(name)
            if option is not None and name not in ("partition", "mem") and not _is_harmless(script, name, option.value):
                yield at(
                    script, option, f"{context.site.name}: no --{name}: {forbidden.why}", next_step=f"remove --{name}"
                )


def _is_harmless(script: Script, name: str, value: str | None) -> bool:
    """Binding that binds nothing: all devices to the one task of a node, or none at all."""
    if name == "gpus-per-task":
        return script.tasks_per_node == 1
    return name == "gpu-bind" and (value == "none" or (value == "closest" and script.tasks_per_node == 1))


@rule(
    id="partition-unknown",
    severity="warning",
    title="The site's profile does not know the partition",
    why="sbatch refuses a partition that does not exist; a GPU job in one without GPUs waits for ever.",
    source=_PROFILE,
    before=_GPU + "#SBATCH --partition=standardg\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\nsrun python train.py\n",
)
def partition_unknown(script: Script, context: Context) -> Iterator[Hit]:
    site, found = context.site, script.directive("partition")
    if site is None or found is None or not site.partitions or not found.value or script.is_placeholder("partition"):
        return
    known = [partition.name for partition in site.partitions]
    for name in (part.strip() for part in found.value.split(",")):
        if name in known or not script.asks_for_gpus:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        yield at(
            script,
            found,
            f"partition {name} is not one of {site.name} that lint knows: {', '.join(known)}",
            next_step=f"write {near[0]}" if near else "check it with sinfo",
        )


@rule(
    id="account-form",
    severity="info",
    title="The account does not look like one of the site's",
    why="A wrong account is refused; projects are named anew, so this is only a hint.",
    source=_PROFILE,
    before="#!/bin/bash\n#SBATCH --account=myproject\n#SBATCH --partition=standard-g\nsrun hostname\n",
    after="#!/bin/bash\n#SBATCH --account=project_465000123\n#SBATCH --partition=standard-g\nsrun hostname\n",
)
def account_form(script: Script, context: Context) -> Iterator[Hit]:
    site, found = context.site, script.directive("account")
    if site is None or found is None or not site.account.pattern or not found.value or is_fill_in(found.value):
        return
    if script.is_placeholder("account") or re.fullmatch(site.account.pattern, found.value, re.IGNORECASE):
        return
    # Projects of a family that the profile knows, and those whose ending the site adds itself.
    if (
        any(found.value[:4] == word[:4] for word in re.findall(r"[A-Za-z]{4,}", site.account.form))
        or site.id == "perlmutter"
    ):
        return
    yield at(
        script,
        found,
        f"accounts of {site.name} look like {site.account.form}",
        next_step="check it with the site's tools",
    )


@rule(
    id="time-over-limit",
    severity="error",
    title="The time limit is above what the site gives",
    why="sbatch refuses the job, or it waits for ever with PartitionTimeLimit.",
    source=_PROFILE,
    before=_GPU + "#SBATCH --partition=standard-g\n#SBATCH --time=3-00:00:00\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\n#SBATCH --time=2-00:00:00\nsrun python train.py\n",
)
def time_over_limit(script: Script, context: Context) -> Iterator[Hit]:
    site, found = context.site, script.directive("time")
    if site is None or found is None or script.time_s is None:
        return
    limits = [(p.max_time, f"partition {p.name}") for p in partitions_of(script, site) if p.max_time is not None]
    limit, of = max(limits, default=(None, ""))
    qos = _qos(script, site)
    if qos is not None and qos.max_time is not None and (limit is None or qos.max_time < limit):
        limit, of = qos.max_time, f"QOS {qos.name}"
    names = {p.name for p in partitions_of(script, site)}
    for size in site.size_bins:
        fits = script.num_nodes is not None and size.min_nodes <= script.num_nodes <= size.max_nodes
        if fits and (not size.partition or size.partition in names) and (limit is None or size.max_time < limit):
            limit, of = size.max_time, f"a job of {script.num_nodes} node{'s' * (script.num_nodes != 1)}"
    if limit is not None and script.time_s > limit:
        text = f"--time={format_walltime(limit)}"
        edit = Edit(start=found.start, end=found.end, text=text)
        yield at(
            script,
            found,
            f"--time={found.value} is above the limit of {of} on {site.name}: {format_walltime(limit)}",
            next_step=f"ask for {text} and resume, or choose another partition or QOS",
            fix=ScriptFix(edits=(edit,), title=f"ask for {text}", is_safe=False),
        )


@rule(
    id="nodes-over-limit",
    severity="error",
    title="The number of nodes is outside what the site gives",
    why="sbatch refuses the job, or it waits for ever with PartitionNodeLimit.",
    source=_PROFILE,
    before=_GPU.replace("--nodes=1", "--nodes=8") + "#SBATCH --partition=small-g\nsrun python train.py\n",
    after=_GPU.replace("--nodes=1", "--nodes=8") + "#SBATCH --partition=standard-g\nsrun python train.py\n",
)
def nodes_over_limit(script: Script, context: Context) -> Iterator[Hit]:
    site, nodes = context.site, script.num_nodes
    found = script.directive("nodes") or script.directive("ntasks")
    if site is None or nodes is None or found is None:
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
        found,
        f"{place.name} of {site.name} takes {bounds} nodes, the job asks for {nodes}",
        next_step="choose another partition or QOS",
    )


@rule(
    id="gpus-over-node",
    severity="error",
    title="More GPUs than a node has",
    why="No node can give them: sbatch refuses the job.",
    source=_PROFILE,
    before=_GPU.replace("--gpus-per-node=8", "--gpus-per-node=16")
    + "#SBATCH --partition=standard-g\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\nsrun python train.py\n",
)
def gpus_over_node(script: Script, context: Context) -> Iterator[Hit]:
    site, gpus = context.site, script.gpus_per_node
    on_node = site.gpus_per_node.value if site and site.gpus_per_node else None
    found = next((d for n in ("gpus-per-node", "gres", "gpus", "gpus-per-task") if (d := script.directive(n))), None)
    if site is None or gpus is None or on_node is None or found is None or gpus <= on_node:
        return
    if re.search(r"\dg\.\d+gb|mig", script.value("gres") or "", re.IGNORECASE):
        return  # slices of GPUs count otherwise
    nodes = -(-gpus * (script.num_nodes or 1) // on_node)
    yield at(
        script,
        found,
        f"{gpus} GPUs per node are asked for, a node of {site.name} has {on_node}",
        next_step=f"ask for {nodes} nodes with {on_node} each",
    )


@rule(
    id="cpus-over-share",
    severity="warning",
    title="More CPUs than come with the GPUs",
    why="CPUs beyond the share of its GPUs leave GPUs of the node that nobody can use, and are billed like them.",
    source=_PROFILE + f"; {GUIDE} 2.4.7: no odd combinations",
    before="#!/bin/bash\n#SBATCH --partition=small-g\n#SBATCH --gpus-per-node=1\n#SBATCH --cpus-per-task=56\n"
    "srun python train.py\n",
    after="#!/bin/bash\n#SBATCH --partition=small-g\n#SBATCH --gpus-per-node=1\n#SBATCH --cpus-per-task=7\nsrun "
    "python train.py\n",
)
def cpus_over_share(script: Script, context: Context) -> Iterator[Hit]:
    site, gpus, tasks = context.site, script.gpus_per_node, script.tasks_per_node
    share = site.cpus_per_gpu.value if site and site.cpus_per_gpu else None
    on_node = site.gpus_per_node.value if site and site.gpus_per_node else None
    found = script.directive("cpus-per-task")
    if site is None or share is None or on_node is None or found is None or gpus is None or tasks is None:
        return
    asked = (script.number("cpus-per-task") or 0) * tasks
    if asked <= share * gpus:
        return
    whole = runs_whole_nodes(script, site) or gpus >= on_node
    if asked > 2 * share * on_node:
        message, severity = f"{asked} CPUs per node are more than a node of {site.name} has", "error"
    elif not whole:
        message, severity = (
            f"{asked} CPUs for {gpus} GPU{'s' * (gpus > 1)}: {share} come with each on {site.name}",
            "warning",
        )
    else:
        return
    yield at(
        script,
        found,
        message,
        next_step=f"ask for --cpus-per-task={max(1, share * min(gpus, on_node) // tasks)}",
        severity="error" if severity == "error" else None,
    )


@rule(
    id="part-of-whole-node",
    severity="warning",
    title="Some GPUs of a node that is given whole",
    why="The partition gives whole nodes and bills them: the GPUs that are not asked for idle.",
    source=_PROFILE,
    before="#!/bin/bash\n#SBATCH --partition=standard-g\n#SBATCH --gpus-per-node=1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --partition=small-g\n#SBATCH --gpus-per-node=1\nsrun python train.py\n",
)
def part_of_whole_node(script: Script, context: Context) -> Iterator[Hit]:
    site, gpus, found = context.site, script.gpus_per_node, script.directive("partition")
    on_node = site.gpus_per_node.value if site and site.gpus_per_node else None
    if site is None or gpus is None or on_node is None or found is None or gpus >= on_node:
        return
    partition = site.partition(found.value or "")
    if partition is None or not partition.whole_node or partition.source.confidence == "low":
        return
    shared = [p.name for p in site.partitions if not p.whole_node and p.has_gpus]
    if shared:
        yield at(
            script,
            found,
            f"{partition.name} of {site.name} gives whole nodes: {on_node - gpus} of {on_node} GPUs would idle",
            next_step=f"use all {on_node}, or a partition that gives parts of nodes: {', '.join(shared)}",
        )


@rule(
    id="memory-over-node",
    severity="error",
    title="More memory than a node has",
    why="No node can give it: sbatch refuses the job, or it waits for ever.",
    source=_PROFILE,
    before=_GPU + "#SBATCH --partition=standard-g\n#SBATCH --mem=900G\nsrun python train.py\n",
    after=_GPU + "#SBATCH --partition=standard-g\n#SBATCH --mem=480G\nsrun python train.py\n",
)
def memory_over_node(script: Script, context: Context) -> Iterator[Hit]:
    site, found = context.site, script.directive("mem")
    share = site.memory_gb_per_gpu.value if site and site.memory_gb_per_gpu else None
    on_node = site.gpus_per_node.value if site and site.gpus_per_node else None
    match = re.fullmatch(r"(\d{1,9})([KMGT]?)B?", (found.value or "").upper()) if found else None
    if site is None or found is None or match is None or share is None or on_node is None:
        return
    asked_gb = int(match.group(1)) * _GIGABYTES[match.group(2) or "M"]
    # Shares are rounded down by the sites; a fifth more may still exist.
    if asked_gb > 1.2 * share * on_node:
        yield at(
            script,
            found,
            f"--mem={found.value} is more than a node of {site.name} has, about {share * on_node} GB",
            next_step=f"ask for --mem={share * on_node}G, or spread over more nodes",
        )


@rule(
    id="login-shell-missing",
    severity="error",
    title="The site needs a login shell",
    why="Without -l the command module is not defined there, and the script goes on without its software.",
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
    plain = script.shebang in ("#!/bin/bash", "#!/usr/bin/bash")
    edit = Edit(start=end, end=end, text=" -l")
    yield Hit(
        line=1,
        message=f"module is not defined on {site.name} without a login shell",
        next_step="begin with #!/bin/bash -l",
        fix=ScriptFix(edits=(edit,), title="make it a login shell", is_safe=True) if plain else None,
    )


@rule(
    id="wrong-architecture",
    severity="error",
    title="Software of another processor",
    why="Programs and images for x86_64 do not run on ARM nodes, and the other way round.",
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
        line, column = script.place(match.start())
        yield Hit(
            line=line,
            column=column,
            end_column=column + len(match.group()),
            message=f"{match.group()[:60]} is not for the processors of {site.name}, {site.arch.value}",
            next_step=f"use what was built for {site.arch.value}",
        )
        return


@rule(
    id="preemptible-unprepared",
    severity="warning",
    title="A queue that interrupts jobs, and a job that is not made for it",
    why="Jobs there are ended for others at any time: without a requeue and a notice, work is lost each time.",
    source=f"{GUIDE} 2.4.7: choose preemptible QOS only when ready",
    before="#!/bin/bash\n#SBATCH --partition=preempt\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
    after="#!/bin/bash\n#SBATCH --partition=preempt\n#SBATCH --gres=gpu:1\n#SBATCH --requeue\nsrun python "
    "train.py --resume auto\n",
)
def preemptible_unprepared(script: Script, context: Context) -> Iterator[Hit]:
    if script.has("requeue", "no-requeue", "signal"):
        return
    for name in ("partition", "qos"):
        found = script.directive(name)
        value = (found.value or "") if found is not None else ""
        partition = context.site.partition(value) if context.site is not None and name == "partition" else None
        told = partition is not None and partition.preempts
        # `nopreempt` and the like say the opposite.
        named = (
            re.search(r"(?<!no)(?<!no-)(?<!no_)(?<!non)(?<!non-)(preempt|scaveng|spot\b)", value, re.IGNORECASE)
            is not None
        )
        if found is not None and (told or named):
            yield at(
                script,
                found,
                f"jobs in {value} are interrupted, and this one is not queued again nor told",
                next_step="add #SBATCH --requeue and --signal, and resume from the last checkpoint",
                severity=None if told and script.asks_for_gpus else "info",  # many sites queue again by default
            )
            return
