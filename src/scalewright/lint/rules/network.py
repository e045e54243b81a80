"""Rules about how ranks meet and what they talk over: ports, addresses and NCCL's settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import (
    DISTRIBUTED,
    GUIDE,
    SURVEY,
    WorkCommand,
    code_of,
    has_unknown_options,
    runs_whole_nodes,
    step_of,
    work_commands,
)
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, insert_text, replace_text, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.lint.shell.syntax import Assignment

_ONE = "#!/bin/bash\n#SBATCH --gres=gpu:2\n"
_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
_FROM_JOB = "$((20000 + SLURM_JOB_ID % 10000))"
_PORT_NAMES = re.compile(
    r"^(?:MASTER_PORT|master_port|MAIN_PROCESS_PORT|RDZV_PORT|HEAD_NODE_PORT|RAY_PORT|GCS_PORT|port|PORT)$"
)
_PORT_OPTIONS = ("master-port", "main-process-port", "rdzv-endpoint", "master_port", "main_process_port")


@rule(
    id="fixed-port",
    severity="warning",
    title="A fixed port for the rendezvous",
    why="Two jobs on one node, or two steps of one job, cannot both listen on it: the second ends with address "
    "already in use.",
    source=f"PyTorch, torchrun: rdzv-endpoint; 27.5 % of {SURVEY}",
    before=_ONE + "export MASTER_PORT=29500\nsrun python train.py\n",
    after=_ONE + f"export MASTER_PORT={_FROM_JOB}\nsrun python train.py\n",
)
def fixed_port(script: Script, context: Context) -> Iterator[Hit]:
    together = [w for w in work_commands(script) if w.command.within.is_background and _launches_ranks(w)]
    alone = runs_whole_nodes(script, context.site) and len(together) < 2
    ports = tuple(_ports(script))
    for assigned in ports:
        value = assigned.value.text
        literal = re.fullmatch(r"\d{4,5}", value)
        default = re.fullmatch(r"\$\{\w+:?[-=]\d{4,5}\}", value)
        if not (literal or default) or assigned.within.loops or _is_searched(script, assigned.name):
            continue
        yield at(
            script,
            assigned,
            f"{assigned.name} is {'always' if literal else 'by default'} {re.sub(r'[^0-9]', '', value)}",
            next_step=f"derive it from the job: {assigned.name}={_FROM_JOB}",
            severity="info" if default or alone else None,
            fix=_from_job(assigned, value, is_default=default is not None),
        )
    for launch in script.launched(*DISTRIBUTED):
        option = launch.option(*_PORT_OPTIONS)
        port = re.search(r"(?:^|:)(\d{4,5})$", option.value or "") if option else None
        if option is None or port is None or launch.command.within.loops or not _is_written(script, launch):
            continue
        if port.group(1) not in script.text[option.start : option.end] and _is_reported(ports, port.group(1)):
            continue  # the same port, by its variable
        plain = script.text[option.start : option.end].endswith(port.group(1))
        edit = Edit(start=option.end - len(port.group(1)), end=option.end, text=_FROM_JOB)
        yield at(
            script,
            option,
            f"the rendezvous is always at port {port.group(1)}",
            next_step=f"derive it from the job: {_FROM_JOB}",
            severity="info" if alone else None,
            fix=ScriptFix(edits=(edit,), title="derive the port from the job's id", is_safe=True) if plain else None,
        )


def _is_reported(ports: tuple[Assignment, ...], port: str) -> bool:
    """Whether the port stands in an assignment, which is where to change it."""
    return any(re.fullmatch(rf"{port}|\$\{{\w+:?[-=]{port}\}}", assigned.value.text) for assigned in ports)


def _is_searched(script: Script, name: str) -> bool:
    """Whether the port is only where a search for a free one begins."""
    return re.search(rf"\(\(\s*{name}\s*(?:\+\+|\+=)|\b{name}=\$\(\(\s*\$?{name}\s*\+", code_of(script)) is not None


def _launches_ranks(work: WorkCommand) -> bool:
    return any(launch.tool in DISTRIBUTED for launch in work.chain)


def _is_written(script: Script, launch: Launch) -> bool:
    return any(word.start == launch.start and not word.is_expanded for word in launch.command.words)


def _ports(script: Script) -> Iterator[Assignment]:
    """Assignments of a port where something meets there."""
    meets = [launch for launch in script.launched(*DISTRIBUTED, "srun") if not launch.has("standalone")] or re.search(
        r"\bray start|init_process_group", code_of(script)
    )
    for assigned in script.assignments:
        if not _PORT_NAMES.match(assigned.name) or assigned.within.is_heredoc or not meets:
            continue
        if assigned.name.lower() == "port" and not re.search(
            rf"(?:master[_-]?port|MASTER_PORT|main_process_port|rdzv\S{{0,60}}|ray start[^\n]{{0,200}}|endpoint)"
            rf"[= ]\S{{0,100}}\$\{{?{assigned.name}\b",
            code_of(script),
        ):
            continue
        yield assigned


def _from_job(assigned: Assignment, value: str, *, is_default: bool) -> ScriptFix:
    """Safe: whoever reads the variable gets a port as before."""
    text = re.sub(r"\d{4,5}\}$", f"{_FROM_JOB}}}", value) if is_default else _FROM_JOB
    edit = Edit(start=assigned.value.start, end=assigned.value.end, text=text)
    return ScriptFix(edits=(edit,), title="derive the port from the job's id", is_safe=True)


@rule(
    id="default-port",
    severity="info",
    title="The launcher uses its default port",
    why="torchrun without --standalone or a rendezvous listens on 29500: a second job on the node cannot start.",
    source="PyTorch, torchrun: single-node multi-worker needs --standalone",
    before=_ONE + "torchrun --nproc_per_node=2 train.py\n",
    after=_ONE + "torchrun --standalone --nproc_per_node=2 train.py\n",
)
def default_port(script: Script, context: Context) -> Iterator[Hit]:
    if script.is_multi_node or runs_whole_nodes(script, context.site) or script.setting("MASTER_PORT") is not None:
        return
    for launch in script.launched("torchrun"):
        given = launch.has("standalone", "rdzv-endpoint", "rdzv-backend", "rdzv-conf", "master-port", "master-addr")
        if given or has_unknown_options(launch) or launch.command.origin:
            continue
        yield at(
            script,
            launch,
            "torchrun listens on its default port, 29500",
            next_step="add --standalone, which takes a free port",
        )


@rule(
    id="master-addr-local",
    severity="error",
    title="Ranks of several nodes look for each other on themselves",
    why="localhost is another machine on every node: ranks of the other nodes wait for a host that never answers.",
    source="PyTorch, torch.distributed: MASTER_ADDR is that of the host of rank 0",
    before=_TWO + "export MASTER_ADDR=localhost\nsrun python train.py\n",
    after=_TWO
    + 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\nsrun python train.py\n',
)
def master_addr_local(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_multi_node:
        return
    local = re.compile(r"^(?:localhost|127\.0\.0\.1|\$\{MASTER_ADDR:-(?:localhost|127\.0\.0\.1)\})(?::\S+)?$")
    head = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
    for assigned in script.assignments:
        if assigned.name in ("MASTER_ADDR", "master_addr", "head_node", "HEAD_NODE_ADDR") and local.match(
            assigned.value.text
        ):
            yield at(
                script,
                assigned,
                f"{assigned.name} is {assigned.value.text} on {script.num_nodes} nodes",
                next_step=f"take the first node's name: {head}",
                fix=replace_text(assigned.value, head, title="take the first node's name", is_safe=True),
            )
    for launch in script.launched(*DISTRIBUTED):
        option = launch.option("master-addr", "rdzv-endpoint", "main-process-ip")
        if option is not None and local.match(option.value or "") and step_of(launch) is not None:
            yield at(
                script,
                option,
                f"nodes look for each other at {option.value}",
                next_step=f"take the first node's name: {head}",
            )


@rule(
    id="master-addr-per-task",
    severity="error",
    title="Every task takes its own host for the first",
    why="$(hostname) inside what srun starts is another name on every node, so ranks never meet.",
    source="PyTorch, torch.distributed: MASTER_ADDR is that of the host of rank 0",
    before=_TWO + "srun bash -c 'MASTER_ADDR=$(hostname) python train.py'\n",
    after=_TWO + "export MASTER_ADDR=$(hostname)\nsrun python train.py\n",
)
def master_addr_per_task(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_multi_node:
        return
    wrong = re.compile(
        r"\bMASTER_ADDR=\"?(?:\$\(hostname\b[^)]*\)|`hostname\b[^`]*`|\$\{?HOSTNAME\}?|\$\{?SLURMD_NODENAME\}?)"
    )
    for launch in script.launched("srun"):
        if launch.command.parent is not None or launch.command.origin:
            continue
        for word in launch.program:
            raw = script.text[word.start : word.end]
            match = wrong.search(raw) if raw.startswith("'") else None
            if match is not None:
                yield at(
                    script,
                    word,
                    "every task sets MASTER_ADDR to its own host",
                    next_step="set it once, before srun: export MASTER_ADDR=$(scontrol show hostnames ... | head -n1)",
                )


@rule(
    id="master-addr-literal",
    severity="warning",
    title="The address of the first rank is written down",
    why="The job runs where Slurm puts it; an address from the last run is somebody else's node.",
    source="Slurm, scontrol(1), show hostnames; PyTorch, torch.distributed",
    before=_TWO + "export MASTER_ADDR=10.20.30.7\nsrun python train.py\n",
    after=_TWO
    + 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\nsrun python train.py\n',
)
def master_addr_literal(script: Script, context: Context) -> Iterator[Hit]:
    address = re.compile(r"^(?!127\.|0\.0\.0\.0)(?:\d{1,3}(?:\.\d{1,3}){3}|[a-z]+[a-z-]*\d+[a-z0-9.-]*)$")
    for assigned in script.assignments:
        if assigned.name == "MASTER_ADDR" and address.match(assigned.value.text) and assigned.value.text != "localhost":
            head = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
            yield at(
                script,
                assigned,
                f"MASTER_ADDR is always {assigned.value.text}",
                next_step=f"take the first node's name: {head}",
                fix=replace_text(assigned.value, head, title="take the first node's name", is_safe=False),
            )


_OFF: dict[str, tuple[str, ...]] = {
    "NCCL_IB_DISABLE": ("1",),
    "NCCL_P2P_DISABLE": ("1",),
    "NCCL_SHM_DISABLE": ("1",),
    "NCCL_NET": ("socket",),
}


@rule(
    id="nccl-transport-off",
    severity="warning",
    title="A transport of NCCL is switched off",
    why="Without InfiniBand, NVLink or shared memory, collectives go through sockets or host memory, several "
    "times slower; "
    "the switch is often left from looking for a fault.",
    source=f"NVIDIA, NCCL environment variables; 4.9 % of {SURVEY}",
    before=_TWO + "export NCCL_IB_DISABLE=1\nsrun python train.py\n",
    after=_TWO + "srun python train.py\n",
)
def nccl_transport_off(script: Script, context: Context) -> Iterator[Hit]:
    fabric = context.site.fabric if context.site else "unknown"
    over_sockets = (_value(script, "NCCL_NET") or "").lower() == "socket"
    for assigned in _nccl(script, _OFF):
        name = assigned.name.removeprefix("SINGULARITYENV_").removeprefix("APPTAINERENV_")
        single = name in ("NCCL_IB_DISABLE", "NCCL_NET") and script.num_nodes == 1
        if assigned.value.text.lower() not in _OFF[name] or single:
            continue
        if name == "NCCL_IB_DISABLE" and (fabric in ("slingshot", "ethernet") or over_sockets):
            continue
        if name == "NCCL_NET":
            if fabric == "ethernet":
                continue
            deliberate = any(_value(script, other) is not None for other in ("NCCL_NET_PLUGIN", "NCCL_SOCKET_IFNAME"))
            yield at(
                script,
                assigned,
                "NCCL_NET=Socket keeps NCCL off the fast fabric",
                next_step="remove it, unless sockets are what is being measured",
                severity="info" if deliberate else None,
            )
            continue
        yield at(
            script,
            assigned,
            f"{assigned.name}={assigned.value.text} switches a fast transport off",
            next_step="remove it; where it works around a fault, say which in a comment",
            severity="info" if name == "NCCL_IB_DISABLE" and fabric == "unknown" and context.site is not None else None,
        )


def _value(script: Script, name: str) -> str | None:
    found = script.setting(name)
    return found.text if found is not None else None


def _nccl(script: Script, names: dict[str, tuple[str, ...]]) -> Iterator[Assignment]:
    for assigned in script.assignments:
        if re.sub(r"^(?:SINGULARITYENV|APPTAINERENV)_", "", assigned.name) in names and not assigned.within.is_branch:
            yield assigned


@rule(
    id="nccl-wrong-interface",
    severity="warning",
    title="NCCL is sent to an interface that the site's fabric does not have",
    why="NCCL_SOCKET_IFNAME chooses by name: with one that does not exist ranks do not find each other, with "
    "the management "
    "network they are slow.",
    source="NVIDIA, NCCL environment variables, NCCL_SOCKET_IFNAME; the site's profile",
    before=_TWO + "export NCCL_SOCKET_IFNAME=eth0\nsrun python train.py\n",
    after=_TWO + "export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3\nsrun python train.py\n",
)
def nccl_wrong_interface(script: Script, context: Context) -> Iterator[Hit]:
    site = context.site
    known = site.interfaces.value if site and site.interfaces else ()
    prefix = {"slingshot": "hsn", "infiniband": "ib"}.get(site.fabric, "") if site else ""
    for assigned in script.assignments:
        if assigned.name not in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") or not assigned.value.is_static:
            continue
        names = [name.strip() for name in assigned.value.text.lstrip("=").split(",") if name.strip()]
        if not names or assigned.value.text.startswith("^"):
            continue
        if names == ["lo"] and script.is_multi_node:
            wrong: list[str] = ["lo"]
        elif known:
            wrong = [name for name in names if not any(k.startswith(name) for k in known)]
        elif prefix:
            wrong = [name for name in names if not name.startswith(prefix)]
        else:
            wrong = []
        if wrong and (assigned.name.startswith("NCCL") or wrong == ["lo"]):
            where = f" on {site.name}" if site else ""
            yield at(
                script,
                assigned,
                f"{assigned.name}={assigned.value.text}: {wrong[0]} is not the fabric{where}",
                next_step=f"write {','.join(known) or prefix or 'the interface of the fast fabric'}, or remove it",
            )


@rule(
    id="nccl-debug-left",
    severity="info",
    title="NCCL logs as for a search for faults",
    why="INFO writes pages per rank, and TRACE slows collectives; both bury what matters in the log.",
    source=f"{GUIDE} 2.4.11: keep it off in normal runs; 9.4 % of {SURVEY}",
    before=_TWO + "export NCCL_DEBUG=INFO\nsrun python train.py\n",
    after=_TWO + "export NCCL_DEBUG=WARN\nsrun python train.py\n",
)
def nccl_debug_left(script: Script, context: Context) -> Iterator[Hit]:
    for assigned in script.assignments:
        name = re.sub(r"^(?:SINGULARITYENV|APPTAINERENV)_", "", assigned.name)
        value = assigned.value.text.upper()
        if name != "NCCL_DEBUG" or value not in ("INFO", "TRACE"):
            continue
        yield at(
            script,
            assigned,
            f"{assigned.name}={assigned.value.text} is left on",
            next_step="write WARN",
            severity="warning" if value == "TRACE" else None,
            fix=replace_text(assigned.value, "WARN", title="write WARN", is_safe=True),
        )


_SLOW = {
    "CUDA_LAUNCH_BLOCKING": ("1",), "HIP_LAUNCH_BLOCKING": ("1",), "AMD_SERIALIZE_KERNEL": ("1", "2", "3"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",), "TORCH_USE_CUDA_DSA": ("1",), "NCCL_BLOCKING_WAIT": ("1",),
    "TORCH_NCCL_BLOCKING_WAIT": ("1",), "CUDA_DEVICE_WAITS_ON_EXCEPTION": ("1",),
}  # fmt: skip


@rule(
    id="debug-mode-left",
    severity="warning",
    title="A debugging mode slows the run",
    why="CUDA_LAUNCH_BLOCKING makes every kernel wait for the one before; TORCH_DISTRIBUTED_DEBUG=DETAIL checks "
    "every collective.",
    source=f"NVIDIA, CUDA C++ programming guide; PyTorch, torch.distributed; 3.8 % of {SURVEY}",
    before=_ONE + "export CUDA_LAUNCH_BLOCKING=1\npython train.py\n",
    after=_ONE + "python train.py\n",
)
def debug_mode_left(script: Script, context: Context) -> Iterator[Hit]:
    for assigned in script.assignments:
        if assigned.name in _SLOW and assigned.value.text in _SLOW[assigned.name] and not assigned.within.is_branch:
            mild = assigned.name in ("TORCH_USE_CUDA_DSA", "NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT")
            yield at(
                script,
                assigned,
                f"{assigned.name}={assigned.value.text} is meant for finding faults",
                next_step="remove it",
                severity="info" if mild else None,
            )
    for command in script.commands:
        for name, word in command.environment:
            if name in ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING") and word.text == "1":
                yield at(script, command, f"{name}=1 is meant for finding faults", next_step="remove it")


@rule(
    id="nccl-name-outdated",
    severity="info",
    title="A variable has another name by now",
    why="From PyTorch 2.2 on these are read with TORCH_ in front; the old names give a warning and will go.",
    source="PyTorch 2.2, ProcessGroupNCCL environment variables",
    before=_TWO + "export NCCL_ASYNC_ERROR_HANDLING=1\nsrun python train.py\n",
    after=_TWO + "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1\nsrun python train.py\n",
)
def nccl_name_outdated(script: Script, context: Context) -> Iterator[Hit]:
    old = ("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")
    for assigned in script.assignments:
        if assigned.name in old and script.setting(f"TORCH_{assigned.name}") is None:
            yield at(
                script,
                assigned,
                f"PyTorch calls it TORCH_{assigned.name} by now",
                next_step=f"write TORCH_{assigned.name}",
                fix=insert_text(assigned.start, "TORCH_", title="use the new name", is_safe=False),
            )
