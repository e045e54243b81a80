"""A request and a site in, a job script out: pure text, the same for the same input."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright import __version__
from scalewright.errors import ConfigError
from scalewright.launch.script import parts
from scalewright.launch.script.containers import InImage, in_image
from scalewright.launch.script.preflight import EXCLUDE
from scalewright.launch.script.quoting import comment, directive, expanded, quote
from scalewright.launch.script.request import MAX_REQUEUES, JobRequest, Script
from scalewright.launch.script.resolve import Settled, settle
from scalewright.launch.script.steps import GPU_FLAGS, filled, srun_flags, steps
from scalewright.launch.script.transport import forced_variables
from scalewright.records.types import EnvName, ExitCode
from scalewright.sites.types import Site
from scalewright.sites.walltime import format_walltime

FIRST_PORT = 20000
NUM_PORTS = 10000
"""Ports 20000 to 29999, as ranks that find themselves reckon it: below what Linux hands out to clients."""
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
    "# Traps and tasks call functions by name; values stand as they were given, whatever they hold.\n"
    "# shellcheck disable=SC1003,SC2016,SC2317,SC2329"
)


def render(request: JobRequest, site: Site) -> Script:
    """The script, and notes for whoever reads it; a request that the site cannot run is refused in one sentence."""
    settled = settle(request, site)
    image = in_image(settled)
    flags = list(_header_flags(settled, image))
    check_forbidden(site, [*flags, *srun_flags(settled, request.num_nodes)])
    warnings = (*request.notes, *settled.notes)
    notes = (*warnings, *_confidence_notes(settled))
    on_rank = _rank_function(settled, image)
    sections = (
        "\n".join([_shebang(site), *(directive(flag) for flag in flags)]),
        _comments(settled, notes, num_warnings=len(warnings)),
        f"{_LINT}\nset -euo pipefail\n{_constants(settled)}",
        parts.SIGNALS,
        parts.END.replace("@CLEAN@\n", parts.STAGE_CLEAN + "\n" if request.stage else ""),
        _requeue(request),
        _start(settled),
        _software(settled),
        _variables(settled),
        _rendezvous(site),
        image.checks,
        _staging(settled),
        parts.PROVENANCE,
        on_rank,
        parts.ON_NODE if settled.launcher == "torchrun" else "",
        parts.SHIELD,
        steps(settled, image, on_rank),
    )
    text = "\n\n".join(filter(None, [section.strip("\n") for section in sections]))
    return Script(text=text + "\n", notes=notes, num_warnings=len(warnings))


def _shebang(site: Site) -> str:
    return "#!/bin/bash -l" if site.login_shell is not None and site.login_shell.value else "#!/bin/bash"


def _rendezvous(site: Site) -> str:
    port = f"export MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))"
    return parts.HOSTS + parts.RENDEZVOUS[site.rendezvous] + port


def _requeue(request: JobRequest) -> str:
    """The last task of an array has the array's own number: asked by it, Slurm would queue every task again."""
    if not request.requeue:
        return parts.NO_REQUEUE
    text = parts.REQUEUE.replace("@EXCLUDE@\n", EXCLUDE)
    own = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
    return text if request.array is None else text.replace('"$SLURM_JOB_ID"', own)


def _layout_flags(settled: Settled) -> list[str]:
    flags = [filled(flag, settled, settled.request.all_nodes) for flag in settled.layout.sbatch]
    if settled.request.mig:
        flags = [f for f in flags if f.partition("=")[0] not in (*GPU_FLAGS, *_MEMORY_FLAGS)]
        flags.append(f"--gres=gpu:{settled.request.mig}:{settled.gpus}")
    given = {f"--{name}" for name in settled.request.directives}
    if given & set(_MEMORY_FLAGS):
        return [f for f in flags if f.partition("=")[0] not in _MEMORY_FLAGS]
    memory, names = settled.site.memory_gb_per_gpu, [f.partition("=")[0] for f in flags]
    if (
        memory is not None
        and not settled.whole_node
        and not settled.request.mig
        and not set(names) & set(_MEMORY_FLAGS)
    ):
        flags.append(f"--mem={memory.value * settled.gpus}G")
    return flags


def _header_flags(settled: Settled, image: InImage) -> Iterator[str]:
    request = settled.request
    yield f"--job-name={request.name}"
    for name, value in (
        ("account", request.account),
        ("partition", settled.partition),
        ("qos", settled.qos),
        ("constraint", settled.constraint),
        ("reservation", request.reservation),
        ("nodes", str(settled.request.all_nodes)),
    ):
        if value:
            yield f"--{name}={value}"
    fixed = [*_layout_flags(settled), *image.sbatch]
    fixed += [] if settled.transport is None else settled.transport.sbatch
    fixed.append(f"--time={format_walltime(request.walltime_s)}")
    if request.switches:
        fixed.append(f"--switches={request.switches}")
    if request.array is not None:
        fixed.append(f"--array=0-{request.array.num_items - 1}%{request.array.max_running}")
    fixed.append(f"--signal=B:USR1@{settled.notice_s}")
    fixed.append("--requeue" if request.requeue else "--no-requeue")
    fixed += ["--open-mode=append", "--kill-on-invalid-dep=yes", f"--chdir={request.work_dir}"]
    fixed.append(f"--output={request.run_dir}/logs/slurm-{'%A_%a' if request.array else '%j'}.out")
    yield from fixed
    if request.directives:
        yield from _more_flags(request, fixed)


def _more_flags(request: JobRequest, fixed: list[str]) -> Iterator[str]:
    """The user's own, none of which may say again what the script says."""
    known = {flag.partition("=")[0] for flag in fixed} | _SET_ELSEWHERE
    for name, value in request.directives.items():
        if f"--{name}" in known:
            raise ConfigError(f"--directive {name} is set by the script itself: use the option of launch instead")
        yield f"--{name}={value}" if value else f"--{name}"


def check_forbidden(site: Site, flags: list[str]) -> None:
    """A flag that the site refuses or that breaks runs there, with its reason."""
    used = {flag.partition("=")[0] for flag in flags} if site.forbidden else set()
    for rule in site.forbidden:
        if rule.flag in used:
            raise ConfigError(f"{rule.flag} must not be used on {site.name}: {rule.why}; leave it out")


def _confidence_notes(settled: Settled) -> Iterator[str]:
    site = settled.site
    if site.verified in _UNTESTED:
        yield f"untested: no script of this profile was run on {site.name}; {_UNTESTED[site.verified]}"
    used = {"layouts." + settled.launcher: settled.layout.source, "select": site.select.source}
    used |= {name: told.source for name in ("gpus_per_node", "cpus_per_gpu", "memory_gb_per_gpu", "account")
             if (told := getattr(site, name)) is not None}  # fmt: skip
    if (partition := site.partition(settled.partition)) is not None:
        used[f"partitions.{partition.name}"] = partition.source
    if (qos := site.find_qos(settled.qos)) is not None:
        used[f"qos.{qos.name}"] = qos.source
    if settled.runtime is not None:
        used[f"runtimes.{settled.runtime.kind}"] = settled.runtime.source
    if settled.cpu_bind:
        used["bindings"] = next(b.source for b in site.bindings if b.cpu_bind == settled.cpu_bind)
    low: dict[str, list[str]] = {}
    for key, source in used.items():
        if source.confidence == "low":
            low.setdefault(f"{source.kind}, {source.checked}: {source.text}", []).append(key)
    for text, keys in low.items():
        yield f"low confidence: {', '.join(keys)} ({text})"


def _comments(settled: Settled, notes: tuple[str, ...], *, num_warnings: int) -> str:
    site = settled.site
    lines = [
        comment(f"Made by scalewright {__version__} for {site.name}, profile {site.id}."),
        comment("launch makes the run directory; before sbatch by hand its folder logs must exist."),
    ]
    lines += [comment(f"note: {note}" if i < num_warnings else note) for i, note in enumerate(notes)]
    return "\n".join(lines)


def _constants(settled: Settled) -> str:
    request = settled.request
    run_dir = quote(str(request.run_dir)) + ("/task-$SLURM_ARRAY_TASK_ID" if request.array else "")
    lines = [
        f"run_dir={run_dir}",
        "attempt=${SLURM_RESTART_COUNT:-0}",
        f"grace_s={max(settled.notice_s - 30, 5)} hold_s={max(settled.notice_s // 10, 1)}",
        f"exit_requeue={int(ExitCode.REQUEUE)}",
    ]
    if request.requeue:
        lines.append(f"max_requeues={MAX_REQUEUES}")
    return "\n".join(lines)


def _start(settled: Settled) -> str:
    request = settled.request
    lines = ['\nmkdir -p -- "$run_dir/logs"', 'rm -f -- "$run_dir/exit_info.json"']
    if request.array is not None:
        lines += [
            "# Line n of the manifest, counted from 0, is the work of task n.",
            f"manifest={quote(str(request.array.manifest))}",
            'mapfile -t -s "$SLURM_ARRAY_TASK_ID" -n 1 lines <"$manifest"',
            "item=${lines[0]-}",
            "[[ -n $item ]] || { reason='the manifest has no such line'; say \"$reason\"; exit 2; }",
            "export SCALEWRIGHT_ITEM=$item",
        ]
    together = request.array is not None and request.array.max_running > 1
    condition = "" if together else "((attempt == 0)) || "
    lines += [
        "# Tasks of an array, and jobs after maintenance, start together; this spreads their first reads.",
        f"{condition}sleep $((RANDOM % {JITTER_S}))",
    ]
    return "\n".join(lines)


def _software(settled: Settled) -> str:
    request, runtime = settled.request, settled.runtime
    use = () if runtime is None else runtime.module_use
    load = [*(() if runtime is None else runtime.modules), *request.modules]
    load += [] if settled.transport is None else settled.transport.modules
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


def job_variables(settled: Settled) -> dict[str, str]:
    """Variables of the whole job, as shell words; later sources win: threads, the site, the transport, the user."""
    chosen = "" if settled.transport is None else settled.transport.id
    words: dict[str, str] = {}
    if settled.cpus:
        words["OMP_NUM_THREADS"] = str(settled.cpus)
    for setting in settled.site.env:
        if setting.where == "job" and _applies(settled, setting.launchers, setting.transports, setting.full_node):
            words[setting.name] = expanded(setting.value)
    if settled.is_forced:
        words |= {name: quote(value) for name, value in forced_variables(settled.site, chosen).items()}
    return words | {name: quote(value) for name, value in settled.request.variables.items()}


def _applies(settled: Settled, launchers: tuple[str, ...], transports: tuple[str, ...], full_node: bool) -> bool:
    chosen = "" if settled.transport is None else settled.transport.id
    return (
        settled.launcher in launchers
        and (not transports or chosen in transports)
        and (not full_node or (settled.is_full_node and not settled.request.mig))
    )


def _variables(settled: Settled) -> str:
    words = job_variables(settled)
    title = comment("Threads, fabric and caches." if not settled.is_forced else
                    f"Threads, fabric and caches; the transport is {settled.request.transport}.")  # fmt: skip
    if not words:
        return ""
    why = {(s.name, expanded(s.value)): f"  {comment(s.note)}" for s in settled.site.env if s.note}
    return "\n".join([title, *(f"export {name}={word}{why.get((name, word), '')}" for name, word in words.items())])


def _staging(settled: Settled) -> str:
    if not settled.request.stage:
        return ""
    local = settled.site.node_local
    place = local.path
    for name in reversed(local.variables):
        place = f"${{{name}:-{place}}}"
    sources = " ".join(quote(path) for path in settled.request.stage)
    return (
        'per_node=(--nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1)\n'
        f'stage_dir="{place}/scalewright-$(id -u)-$SLURM_JOB_ID"\n'
        f"export SCALEWRIGHT_STAGE=$stage_dir\nstaged=({sources})\n" + parts.STAGE_FUNCTION + parts.STAGE_CALL
    )


def _rank_function(settled: Settled, image: InImage) -> str:
    """The shell function that each task of the step runs; empty where there is nothing to set."""
    one_device = settled.layout.devices == "one" and settled.launcher == "srun" and not settled.request.mig
    body = ""
    if settled.launcher == "srun" and not settled.request.finds_its_rank:
        local, size = ("0", "1") if one_device else ("$SLURM_LOCALID", str(settled.gpus))
        body += parts.RANK_VARIABLES.replace("@LOCAL_RANK@", local).replace("@LOCAL_WORLD_SIZE@", size)
    if one_device:
        body += f"    export {EnvName.DEVICE}=0\n"
    for setting in settled.site.env:
        if setting.where == "rank" and _applies(settled, setting.launchers, setting.transports, setting.full_node):
            body += f"    export {setting.name}={expanded(setting.value)}\n"
    if settled.launcher == "srun":
        body += parts.RANK_PLACE
    body += image.enter
    return f'{parts.ON_RANK_HEAD}{body}    exec "$@"\n}}\n' if body else ""
