"""The job script of a request on a site. Pure text: the same input gives the same script."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright import __version__
from scalewright.errors import ConfigError
from scalewright.launch.script import parts
from scalewright.launch.script.containers import InImage, in_image
from scalewright.launch.script.preflight import EXCLUDE
from scalewright.launch.script.quoting import comment, directive, expanded, quote
from scalewright.launch.script.ray import CLEAN as RAY_CLEAN
from scalewright.launch.script.ray import ray_functions, ray_steps
from scalewright.launch.script.request import MAX_REQUEUES, JobRequest, JobScript
from scalewright.launch.script.resolved_job import ResolvedJob, resolve_job
from scalewright.launch.script.steps import GPU_FLAGS, filled, srun_flags, steps
from scalewright.launch.script.transport import forced_variables
from scalewright.records.types import EnvName, ExitCode
from scalewright.sites.types import Site
from scalewright.sites.walltime import format_walltime

FIRST_PORT = 20000
NUM_PORTS = 10000
"""Ports 20000 to 29999, below the range that Linux gives to clients. `port_of_job` in run/world.py uses the same."""
JITTER_S = 15
_UNTESTED = {
    "golden": "it is compared with a stored text only",
    "detected": "its values are the scheduler's own answers",
}
_MEMORY_FLAGS = ("--mem", "--mem-per-gpu", "--mem-per-cpu")
_SET_ELSEWHERE = frozenset({
    "--account", "--partition", "--qos", "--constraint", "--nodes", "--reservation", "--job-name", "--ntasks",
    "--error", "--wrap",
})  # fmt: skip
_LINT = (
    "# Traps and tasks call functions by name, and values are written exactly as they were given.\n"
    "# shellcheck disable=SC1003,SC2016,SC2317,SC2329"
)


def render(request: JobRequest, site: Site) -> JobScript:
    """The script and its notes. A request that the site cannot run is refused in one sentence."""
    job = resolve_job(request, site)
    image = in_image(job)
    flags = list(_header_flags(job, image))
    check_forbidden(site, [*flags, *srun_flags(job, request.num_nodes)])
    warnings = (*request.notes, *job.notes)
    notes = (*warnings, *_confidence_notes(job))
    on_rank = _rank_function(job, image)
    sections = (
        "\n".join([_shebang(site), *(directive(flag) for flag in flags)]),
        _comments(job, notes, num_warnings=len(warnings)),
        f"{_LINT}\nset -euo pipefail\n{_constants(job)}",
        parts.SIGNALS,
        ray_functions() if request.ray else "",
        parts.END.replace("@CLEAN@\n", _clean(request)),
        _requeue(request),
        _start(job),
        _software(job),
        _variables(job),
        _rendezvous(site),
        image.checks,
        _copying(job),
        parts.PROVENANCE,
        on_rank,
        parts.CATCHES_USR1,
        parts.ON_NODE if job.launcher == "torchrun" and not request.ray else "",
        parts.SHIELD,
        ray_steps(job, on_rank, first_port=FIRST_PORT, num_ports=NUM_PORTS)
        if request.ray
        else steps(job, image, on_rank),
    )
    text = "\n\n".join(filter(None, [section.strip("\n") for section in sections]))
    return JobScript(text=text + "\n", notes=notes, num_warnings=len(warnings))


def _clean(request: JobRequest) -> str:
    """Lines that every end of the job runs."""
    lines = [RAY_CLEAN] if request.ray else []
    return "".join(f"{line}\n" for line in [*lines, *([parts.COPY_CLEAN] if request.copied_paths else [])])


def _shebang(site: Site) -> str:
    return "#!/bin/bash -l" if site.login_shell is not None and site.login_shell.value else "#!/bin/bash"


def _rendezvous(site: Site) -> str:
    port = parts.PORT.replace("@FIRST@", str(FIRST_PORT)).replace("@NUM@", str(NUM_PORTS))
    return parts.HOSTS + parts.RENDEZVOUS[site.rendezvous] + port.strip("\n")


def _requeue(request: JobRequest) -> str:
    """The requeue function. An array task names itself by array and task: by the array's id Slurm would requeue all."""
    if not request.requeue:
        return parts.NO_REQUEUE
    text = parts.REQUEUE.replace("@EXCLUDE@\n", EXCLUDE)
    own = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
    return text if request.array is None else text.replace('"$SLURM_JOB_ID"', own)


def _layout_flags(job: ResolvedJob) -> list[str]:
    flags = [filled(flag, job, job.request.all_nodes) for flag in job.layout.sbatch]
    if job.request.mig:
        flags = [f for f in flags if f.partition("=")[0] not in (*GPU_FLAGS, *_MEMORY_FLAGS)]
        flags.append(f"--gres=gpu:{job.request.mig}:{job.gpus}")
    user_flags = {f"--{name}" for name in job.request.directives}
    if user_flags & set(_MEMORY_FLAGS):
        return [f for f in flags if f.partition("=")[0] not in _MEMORY_FLAGS]
    memory, names = job.site.memory_gb_per_gpu, [f.partition("=")[0] for f in flags]
    if memory is not None and not job.whole_node and not job.request.mig and not set(names) & set(_MEMORY_FLAGS):
        flags.append(f"--mem={memory.value * job.gpus}G")
    return flags


def _header_flags(job: ResolvedJob, image: InImage) -> Iterator[str]:
    request = job.request
    yield f"--job-name={request.name}"
    for name, value in (
        ("account", request.account),
        ("partition", job.partition),
        ("qos", job.qos),
        ("constraint", job.constraint),
        ("reservation", request.reservation),
        ("nodes", str(job.request.all_nodes)),
    ):
        if value:
            yield f"--{name}={value}"
    fixed = [*_layout_flags(job), *image.sbatch]
    fixed += [] if job.transport is None else job.transport.sbatch
    fixed.append(f"--time={format_walltime(request.walltime_s)}")
    if request.switches:
        fixed.append(f"--switches={request.switches}")
    if request.array is not None:
        fixed.append(f"--array=0-{request.array.num_items - 1}%{request.array.max_running}")
    fixed.append(f"--signal=B:USR1@{job.notice_s}")
    fixed.append("--requeue" if request.requeue else "--no-requeue")
    if request.ray:
        fixed.append("--no-kill")  # a lost worker does not end the job
    fixed += ["--open-mode=append", "--kill-on-invalid-dep=yes", f"--chdir={request.work_dir}"]
    fixed.append(f"--output={request.run_dir}/logs/slurm-{'%A_%a' if request.array else '%j'}.out")
    yield from fixed
    if request.directives:
        yield from _more_flags(request, fixed)


def _more_flags(request: JobRequest, fixed: list[str]) -> Iterator[str]:
    """The user's directives. One that the script already sets is refused."""
    already_set = {flag.partition("=")[0] for flag in fixed} | _SET_ELSEWHERE
    for name, value in request.directives.items():
        if f"--{name}" in already_set:
            raise ConfigError(f"--directive {name} is set by the script itself: use the option of launch instead")
        yield f"--{name}={value}" if value else f"--{name}"


def check_forbidden(site: Site, flags: list[str]) -> None:
    """Refuse a flag that must not be used on the site, with the reason from its profile."""
    used = {flag.partition("=")[0] for flag in flags} if site.forbidden else set()
    for rule in site.forbidden:
        if rule.flag in used:
            raise ConfigError(f"{rule.flag} must not be used on {site.name}: {rule.why}; leave it out")


def _confidence_notes(job: ResolvedJob) -> Iterator[str]:
    site = job.site
    if site.verified in _UNTESTED:
        yield f"untested: no script of this profile was run on {site.name}; {_UNTESTED[site.verified]}"
    used = {"layouts." + job.launcher: job.layout.source, "select": site.select.source}
    used |= {name: fact.source for name in ("gpus_per_node", "cpus_per_gpu", "memory_gb_per_gpu", "account")
             if (fact := getattr(site, name)) is not None}  # fmt: skip
    used |= {f"partitions.{partition.name}": partition.source for partition in site.each_partition(job.partition)}
    if (qos := site.find_qos(job.qos)) is not None:
        used[f"qos.{qos.name}"] = qos.source
    if job.runtime is not None:
        used[f"runtimes.{job.runtime.kind}"] = job.runtime.source
    if job.cpu_bind:
        used["bindings"] = next(b.source for b in site.bindings if b.cpu_bind == job.cpu_bind)
    low: dict[str, list[str]] = {}
    for key, source in used.items():
        if source.confidence == "low":
            low.setdefault(f"{source.kind}, {source.checked}: {source.text}", []).append(key)
    for text, keys in low.items():
        yield f"low confidence: {', '.join(keys)} ({text})"


def _comments(job: ResolvedJob, notes: tuple[str, ...], *, num_warnings: int) -> str:
    site = job.site
    lines = [
        comment(f"Made by scalewright {__version__} for {site.name}, profile {site.id}."),
        comment("launch creates the run directory. If you call sbatch yourself, its folder logs must exist."),
    ]
    lines += [comment(f"note: {note}" if i < num_warnings else note) for i, note in enumerate(notes)]
    return "\n".join(lines)


def _constants(job: ResolvedJob) -> str:
    request = job.request
    run_dir = quote(str(request.run_dir)) + ("/task-$SLURM_ARRAY_TASK_ID" if request.array else "")
    lines = [
        f"run_dir={run_dir}",
        "attempt=${SLURM_RESTART_COUNT:-0}",
        f"grace_s={max(job.notice_s - 30, 5)} hold_s={max(job.notice_s // 10, 1)}",
        f"exit_requeue={int(ExitCode.REQUEUE)}",
    ]
    if request.requeue:
        lines.append(f"max_requeues={MAX_REQUEUES}")
    return "\n".join(lines)


def _start(job: ResolvedJob) -> str:
    request = job.request
    lines = ['\nmkdir -p -- "$run_dir/logs"', 'rm -f -- "$run_dir/exit_info.json"']
    if request.array is not None:
        lines += [
            "# Line n of the manifest, counted from 0, is the item of task n.",
            f"manifest={quote(str(request.array.manifest))}",
            'mapfile -t -s "$SLURM_ARRAY_TASK_ID" -n 1 lines <"$manifest"',
            "item=${lines[0]-}",
            "[[ -n $item ]] || { reason='the manifest has no such line'; say \"$reason\"; exit 2; }",
            "export SCALEWRIGHT_ITEM=$item",
        ]
    together = request.array is not None and request.array.max_running > 1
    condition = "" if together else "((attempt == 0)) || "
    lines += [
        "# Tasks of an array, and jobs after maintenance, start together. This spreads their first reads.",
        f"{condition}sleep $((RANDOM % {JITTER_S}))",
    ]
    return "\n".join(lines)


def _software(job: ResolvedJob) -> str:
    request, runtime = job.request, job.runtime
    use = () if runtime is None else runtime.module_use
    load = [*(() if runtime is None else runtime.modules), *request.modules]
    load += [] if job.transport is None else job.transport.modules
    lines: list[str] = []
    if use or load:
        lines += ["# Module systems read unset variables.", "set +u"]
        lines += [f"module use {quote(path)}" for path in use]
        lines += [f"module load {quote(name)}" for name in dict.fromkeys(load)]
        lines.append("set -u")
    if request.venv:
        lines.append(f"export VIRTUAL_ENV={quote(request.venv)}")
        lines.append('export PATH="$VIRTUAL_ENV/bin:$PATH"')
    return "\n" + "\n".join(lines) if lines else ""


def job_variables(job: ResolvedJob) -> dict[str, str]:
    """Environment variables of the whole job, as shell words. Order: threads, site, transport, user; the last wins."""
    chosen = "" if job.transport is None else job.transport.id
    words: dict[str, str] = {}
    if job.cpus:
        words["OMP_NUM_THREADS"] = str(job.cpus)
    for setting in job.site.env:
        if setting.where == "job" and _applies(job, setting.launchers, setting.transports, setting.full_node):
            words[setting.name] = expanded(setting.value)
    if job.is_forced:
        words |= {name: quote(value) for name, value in forced_variables(job.site, chosen).items()}
    return words | {name: quote(value) for name, value in job.request.variables.items()}


def _applies(job: ResolvedJob, launchers: tuple[str, ...], transports: tuple[str, ...], full_node: bool) -> bool:
    chosen = "" if job.transport is None else job.transport.id
    return (
        job.launcher in launchers
        and (not transports or chosen in transports)
        and (not full_node or (job.is_full_node and not job.request.mig))
    )


def _variables(job: ResolvedJob) -> str:
    words = job_variables(job)
    title = comment("Threads, fabric and caches." if not job.is_forced else
                    f"Threads, fabric and caches; the transport is {job.request.transport}.")  # fmt: skip
    if not words:
        return ""
    why = {(s.name, expanded(s.value)): f"  {comment(s.note)}" for s in job.site.env if s.note}
    return "\n".join([title, *(f"export {name}={word}{why.get((name, word), '')}" for name, word in words.items())])


def _copying(job: ResolvedJob) -> str:
    if not job.request.copied_paths:
        return ""
    local = job.site.node_local
    place = local.path
    for name in reversed(local.variables):
        place = f"${{{name}:-{place}}}"
    sources = " ".join(quote(path) for path in job.request.copied_paths)
    return (
        'per_node=(--nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1)\n'
        f'copy_dir="{place}/scalewright-$(id -u)-$SLURM_JOB_ID"\n'
        f"export SCALEWRIGHT_COPY=$copy_dir\ncopied=({sources})\n" + parts.COPY_FUNCTION + parts.COPY_CALL
    )


def _rank_function(job: ResolvedJob, image: InImage) -> str:
    """The shell function that each task of the step runs; empty if it would set nothing."""
    one_device = job.layout.devices == "one" and job.launcher == "srun" and not job.request.mig
    body = ""
    if job.launcher == "srun" and not job.request.finds_its_rank:
        local, size = ("0", "1") if one_device else ("$SLURM_LOCALID", str(job.gpus))
        body += parts.RANK_VARIABLES.replace("@LOCAL_RANK@", local).replace("@LOCAL_WORLD_SIZE@", size)
    if one_device:
        body += f"    export {EnvName.DEVICE}=0\n"
    for setting in job.site.env:
        if setting.where == "rank" and _applies(job, setting.launchers, setting.transports, setting.full_node):
            body += f"    export {setting.name}={expanded(setting.value)}\n"
    if job.launcher == "srun":
        body += parts.RANK_PLACE
    body += image.enter
    return f'{parts.ON_RANK_HEAD}{body}    exec "$@"\n}}\n' if body else ""
