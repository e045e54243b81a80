"""Rules about how ranks meet and communicate: ports, addresses and NCCL settings."""

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
from scalewright.lint.rule import Context, Hit, ScriptFix, at, insert_text, replace_span, replace_text, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.lint.shell.syntax import Assignment

_ONE = "#!/bin/bash\n#SBATCH --gres=gpu:2\n"
_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
_PORT_FROM_JOB_ID = "$((20000 + SLURM_JOB_ID % 10000))"
_FIRST_NODE = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
_PORT_NAMES = re.compile(
    r"^(?:MASTER_PORT|master_port|MAIN_PROCESS_PORT|RDZV_PORT|HEAD_NODE_PORT|RAY_PORT|GCS_PORT|port|PORT)$"
)
_PORT_OPTIONS = ("master-port", "main-process-port", "rdzv-endpoint", "master_port", "main_process_port")


@rule(
    id="fixed-port",
    severity="warning",
    title="A fixed port for the rendezvous",
    why="Two jobs on one node, or two steps of one job, cannot listen on the same port. The second one fails with "
    '"address already in use".',
    source=f"PyTorch, torchrun: rdzv-endpoint; 27.5 % of {SURVEY}",
    before=_ONE + "export MASTER_PORT=29500\nsrun python train.py\n",
    after=_ONE + f"export MASTER_PORT={_PORT_FROM_JOB_ID}\nsrun python train.py\n",
)
def fixed_port(script: Script, context: Context) -> Iterator[Hit]:
    concurrent = [w for w in work_commands(script) if w.command.within.is_background and _launches_ranks(w)]
    is_alone = runs_whole_nodes(script, context.site) and len(concurrent) < 2
    ports = tuple(_ports(script))
    yield from _assigned_ports(script, ports, is_alone=is_alone)
    yield from _ports_of_launchers(script, ports, is_alone=is_alone)


def _assigned_ports(script: Script, ports: tuple[Assignment, ...], *, is_alone: bool) -> Iterator[Hit]:
    """`MASTER_PORT=29500` and the like."""
    for assignment in ports:
        value = assignment.value.text
        literal = re.fullmatch(r"\d{4,5}", value)
        default = re.fullmatch(r"\$\{\w+:?[-=]\d{4,5}\}", value)
        if not (literal or default) or assignment.within.loops or _is_searched(script, assignment.name):
            continue
        yield at(
            script,
            assignment,
            f"{assignment.name} is {'always' if literal else 'by default'} {re.sub(r'[^0-9]', '', value)}",
            next_step=f"derive it from the job id: {assignment.name}={_PORT_FROM_JOB_ID}",
            severity="info" if default or is_alone else None,
            fix=_port_from_job_id(assignment, value, is_default=default is not None),
        )


def _ports_of_launchers(script: Script, ports: tuple[Assignment, ...], *, is_alone: bool) -> Iterator[Hit]:
    """`--master_port=29500` and the like; a port that `ports` holds is reported there."""
    for launch in script.launched(*DISTRIBUTED):
        option = launch.option(*_PORT_OPTIONS)
        port = re.search(r"(?:^|:)(\d{4,5})$", option.value or "") if option else None
        if option is None or port is None or launch.command.within.loops or not _is_written(script, launch):
            continue
        if port.group(1) not in script.text[option.start : option.end] and _is_reported(ports, port.group(1)):
            continue  # the option takes the port from the variable
        is_plain = script.text[option.start : option.end].endswith(port.group(1))
        start = option.end - len(port.group(1))
        yield at(
            script,
            option,
            f"the rendezvous always uses port {port.group(1)}",
            next_step=f"derive it from the job id: {_PORT_FROM_JOB_ID}",
            severity="info" if is_alone else None,
            fix=replace_span(start, option.end, _PORT_FROM_JOB_ID, title=_PORT_TITLE, is_safe=True)
            if is_plain
            else None,
        )


_PORT_TITLE = "derive the port from the job id"


def _is_reported(ports: tuple[Assignment, ...], port: str) -> bool:
    """Whether an assignment holds the port; it is reported there."""
    return any(re.fullmatch(rf"{port}|\$\{{\w+:?[-=]{port}\}}", assignment.value.text) for assignment in ports)


def _is_searched(script: Script, name: str) -> bool:
    """Whether the port is only the start of a search for a free one."""
    return re.search(rf"\(\(\s*{name}\s*(?:\+\+|\+=)|\b{name}=\$\(\(\s*\$?{name}\s*\+", code_of(script)) is not None


def _launches_ranks(work: WorkCommand) -> bool:
    return any(launch.tool in DISTRIBUTED for launch in work.chain)


def _is_written(script: Script, launch: Launch) -> bool:
    return any(word.start == launch.start and not word.is_expanded for word in launch.command.words)


def _ports(script: Script) -> Iterator[Assignment]:
    """Assignments of a port that ranks meet at."""
    meets = [launch for launch in script.launched(*DISTRIBUTED, "srun") if not launch.has("standalone")] or re.search(
        r"\bray start|init_process_group", code_of(script)
    )
    for assignment in script.assignments:
        if not _PORT_NAMES.match(assignment.name) or assignment.within.is_heredoc or not meets:
            continue
        if assignment.name.lower() == "port" and not re.search(
            rf"(?:master[_-]?port|MASTER_PORT|main_process_port|rdzv\S{{0,60}}|ray start[^\n]{{0,200}}|endpoint)"
            rf"[= ]\S{{0,100}}\$\{{?{assignment.name}\b",
            code_of(script),
        ):
            continue
        yield assignment


def _port_from_job_id(assignment: Assignment, value: str, *, is_default: bool) -> ScriptFix:
    """Safe: the variable still holds a port."""
    text = re.sub(r"\d{4,5}\}$", f"{_PORT_FROM_JOB_ID}}}", value) if is_default else _PORT_FROM_JOB_ID
    return replace_text(assignment.value, text, title=_PORT_TITLE, is_safe=True)


@rule(
    id="default-port",
    severity="info",
    title="The launcher uses its default port",
    why="Without --standalone or a rendezvous torchrun listens on port 29500. A second job on the node cannot start.",
    source="PyTorch, torchrun: single-node multi-worker needs --standalone",
    before=_ONE + "torchrun --nproc_per_node=2 train.py\n",
    after=_ONE + "torchrun --standalone --nproc_per_node=2 train.py\n",
)
def default_port(script: Script, context: Context) -> Iterator[Hit]:
    if script.is_multi_node or runs_whole_nodes(script, context.site) or script.setting("MASTER_PORT") is not None:
        return
    for launch in script.launched("torchrun"):
        if launch.has("standalone", "rdzv-endpoint", "rdzv-backend", "rdzv-conf", "master-port", "master-addr"):
            continue
        if has_unknown_options(launch) or launch.command.origin:
            continue
        yield at(
            script,
            launch,
            "torchrun listens on its default port, 29500",
            next_step="add --standalone, which picks a free port",
        )


@rule(
    id="master-addr-local",
    severity="error",
    title="Ranks of several nodes connect to localhost",
    why="localhost is a different host on every node. Ranks of the other nodes wait for a host that never answers.",
    source="PyTorch, torch.distributed: MASTER_ADDR is that of the host of rank 0",
    before=_TWO + "export MASTER_ADDR=localhost\nsrun python train.py\n",
    after=_TWO
    + 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\nsrun python train.py\n',
)
def master_addr_local(script: Script, context: Context) -> Iterator[Hit]:
    if not script.is_multi_node:
        return
    local = re.compile(r"^(?:localhost|127\.0\.0\.1|\$\{MASTER_ADDR:-(?:localhost|127\.0\.0\.1)\})(?::\S+)?$")
    for assignment in script.assignments:
        if assignment.name in ("MASTER_ADDR", "master_addr", "head_node", "HEAD_NODE_ADDR") and local.match(
            assignment.value.text
        ):
            yield at(
                script,
                assignment,
                f"{assignment.name} is {assignment.value.text} on {script.num_nodes} nodes",
                next_step=f"use the name of the first node: {_FIRST_NODE}",
                fix=replace_text(assignment.value, _FIRST_NODE, title="use the name of the first node", is_safe=True),
            )
    for launch in script.launched(*DISTRIBUTED):
        option = launch.option("master-addr", "rdzv-endpoint", "main-process-ip")
        if option is not None and local.match(option.value or "") and step_of(launch) is not None:
            yield at(
                script,
                option,
                f"ranks of all nodes connect to {option.value}",
                next_step=f"use the name of the first node: {_FIRST_NODE}",
            )


@rule(
    id="master-addr-per-task",
    severity="error",
    title="Every task uses its own host as the master",
    why="$(hostname) inside a task gives a different name on every node, so the ranks never meet.",
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
    title="The address of the first rank is hard-coded",
    why="Slurm chooses the nodes of every job. The address from an earlier run is another job's node.",
    source="Slurm, scontrol(1), show hostnames; PyTorch, torch.distributed",
    before=_TWO + "export MASTER_ADDR=10.20.30.7\nsrun python train.py\n",
    after=_TWO
    + 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\nsrun python train.py\n',
)
def master_addr_literal(script: Script, context: Context) -> Iterator[Hit]:
    address = re.compile(r"^(?!127\.|0\.0\.0\.0)(?:\d{1,3}(?:\.\d{1,3}){3}|[a-z]+[a-z-]*\d+[a-z0-9.-]*)$")
    for assignment in script.assignments:
        if (
            assignment.name == "MASTER_ADDR"
            and address.match(assignment.value.text)
            and assignment.value.text != "localhost"
        ):
            yield at(
                script,
                assignment,
                f"MASTER_ADDR is always {assignment.value.text}",
                next_step=f"use the name of the first node: {_FIRST_NODE}",
                fix=replace_text(assignment.value, _FIRST_NODE, title="use the name of the first node", is_safe=False),
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
    title="A fast transport of NCCL is switched off",
    why="Without InfiniBand, NVLink or shared memory, collectives use sockets or host memory and are several "
    "times slower. The setting is often left over from debugging.",
    source=f"NVIDIA, NCCL environment variables; 4.9 % of {SURVEY}",
    before=_TWO + "export NCCL_IB_DISABLE=1\nsrun python train.py\n",
    after=_TWO + "srun python train.py\n",
)
def nccl_transport_off(script: Script, context: Context) -> Iterator[Hit]:
    fabric = context.site.fabric if context.site else "unknown"
    over_sockets = (_value(script, "NCCL_NET") or "").lower() == "socket"
    for assignment in script.assignments:
        name = _name_in_container(assignment)
        if name not in _OFF or assignment.within.is_branch:
            continue
        single = name in ("NCCL_IB_DISABLE", "NCCL_NET") and script.num_nodes == 1
        if assignment.value.text.lower() not in _OFF[name] or single:
            continue
        if name == "NCCL_IB_DISABLE" and (fabric in ("slingshot", "ethernet") or over_sockets):
            continue
        if name == "NCCL_NET":
            if fabric == "ethernet":
                continue
            deliberate = any(_value(script, other) is not None for other in ("NCCL_NET_PLUGIN", "NCCL_SOCKET_IFNAME"))
            yield at(
                script,
                assignment,
                "with NCCL_NET=Socket NCCL does not use the fast fabric",
                next_step="remove it, unless you measure sockets",
                severity="info" if deliberate else None,
            )
            continue
        yield at(
            script,
            assignment,
            f"{assignment.name}={assignment.value.text} switches off a fast transport",
            next_step="remove it; if it works around a fault, name the fault in a comment",
            severity="info" if name == "NCCL_IB_DISABLE" and fabric == "unknown" and context.site is not None else None,
        )


def _value(script: Script, name: str) -> str | None:
    word = script.setting(name)
    return word.text if word is not None else None


def _name_in_container(assignment: Assignment) -> str:
    """The variable's name without the prefix that passes it into a container."""
    return re.sub(r"^(?:SINGULARITYENV|APPTAINERENV)_", "", assignment.name)


@rule(
    id="nccl-wrong-interface",
    severity="warning",
    title="NCCL uses an interface that is not the site's fabric",
    why="NCCL_SOCKET_IFNAME selects interfaces by name. If the interface does not exist, ranks cannot connect. If "
    "it is the management network, they are slow.",
    source="NVIDIA, NCCL environment variables, NCCL_SOCKET_IFNAME; the site's profile",
    before=_TWO + "export NCCL_SOCKET_IFNAME=eth0\nsrun python train.py\n",
    after=_TWO + "export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3\nsrun python train.py\n",
)
def nccl_wrong_interface(script: Script, context: Context) -> Iterator[Hit]:
    site = context.site
    interfaces = site.interfaces.value if site and site.interfaces else ()
    prefix = {"slingshot": "hsn", "infiniband": "ib"}.get(site.fabric, "") if site else ""
    for assignment in script.assignments:
        if assignment.name not in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") or not assignment.value.is_static:
            continue
        names = [name.strip() for name in assignment.value.text.lstrip("=").split(",") if name.strip()]
        if not names or assignment.value.text.startswith("^"):
            continue
        if names == ["lo"] and script.is_multi_node:
            wrong: list[str] = ["lo"]
        elif interfaces:
            wrong = [name for name in names if not any(k.startswith(name) for k in interfaces)]
        elif prefix:
            wrong = [name for name in names if not name.startswith(prefix)]
        else:
            wrong = []
        if wrong and (assignment.name.startswith("NCCL") or wrong == ["lo"]):
            where = f" on {site.name}" if site else ""
            yield at(
                script,
                assignment,
                f"{assignment.name}={assignment.value.text}: {wrong[0]} is not an interface of the fabric{where}",
                next_step=f"write {','.join(interfaces) or prefix or 'the interface of the fast fabric'}, or remove it",
            )


@rule(
    id="nccl-debug-left",
    severity="info",
    title="NCCL debug output is switched on",
    why="INFO writes pages of text per rank, and TRACE slows down collectives. Both hide what matters in the log.",
    source=f"{GUIDE} 2.4.11: keep it off in normal runs; 9.4 % of {SURVEY}",
    before=_TWO + "export NCCL_DEBUG=INFO\nsrun python train.py\n",
    after=_TWO + "export NCCL_DEBUG=WARN\nsrun python train.py\n",
)
def nccl_debug_left(script: Script, context: Context) -> Iterator[Hit]:
    for assignment in script.assignments:
        value = assignment.value.text.upper()
        if _name_in_container(assignment) != "NCCL_DEBUG" or value not in ("INFO", "TRACE"):
            continue
        yield at(
            script,
            assignment,
            f"{assignment.name}={assignment.value.text} is meant for debugging",
            next_step="write WARN",
            severity="warning" if value == "TRACE" else None,
            fix=replace_text(assignment.value, "WARN", title="write WARN", is_safe=True),
        )


_SLOW = {
    "CUDA_LAUNCH_BLOCKING": ("1",), "HIP_LAUNCH_BLOCKING": ("1",), "AMD_SERIALIZE_KERNEL": ("1", "2", "3"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",), "TORCH_USE_CUDA_DSA": ("1",), "NCCL_BLOCKING_WAIT": ("1",),
    "TORCH_NCCL_BLOCKING_WAIT": ("1",), "CUDA_DEVICE_WAITS_ON_EXCEPTION": ("1",),
}  # fmt: skip


@rule(
    id="debug-mode-left",
    severity="warning",
    title="A debugging mode slows down the run",
    why="CUDA_LAUNCH_BLOCKING makes every kernel wait for the previous one. TORCH_DISTRIBUTED_DEBUG=DETAIL checks "
    "every collective.",
    source=f"NVIDIA, CUDA C++ programming guide; PyTorch, torch.distributed; 3.8 % of {SURVEY}",
    before=_ONE + "export CUDA_LAUNCH_BLOCKING=1\npython train.py\n",
    after=_ONE + "python train.py\n",
)
def debug_mode_left(script: Script, context: Context) -> Iterator[Hit]:
    for assignment in script.assignments:
        if (
            assignment.name in _SLOW
            and assignment.value.text in _SLOW[assignment.name]
            and not assignment.within.is_branch
        ):
            is_minor = assignment.name in ("TORCH_USE_CUDA_DSA", "NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT")
            yield at(
                script,
                assignment,
                f"{assignment.name}={assignment.value.text} is meant for debugging",
                next_step="remove it",
                severity="info" if is_minor else None,
            )
    for command in script.commands:
        for name, word in command.environment:
            if name in ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING") and word.text == "1":
                yield at(script, command, f"{name}=1 is meant for debugging", next_step="remove it")


@rule(
    id="nccl-name-outdated",
    severity="info",
    title="A PyTorch variable has a new name",
    why="Since PyTorch 2.2 these variables begin with TORCH_. The old names give a warning and will be removed.",
    source="PyTorch 2.2, ProcessGroupNCCL environment variables",
    before=_TWO + "export NCCL_ASYNC_ERROR_HANDLING=1\nsrun python train.py\n",
    after=_TWO + "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1\nsrun python train.py\n",
)
def nccl_name_outdated(script: Script, context: Context) -> Iterator[Hit]:
    old = ("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")
    for assignment in script.assignments:
        if assignment.name in old and script.setting(f"TORCH_{assignment.name}") is None:
            yield at(
                script,
                assignment,
                f"{assignment.name} is now called TORCH_{assignment.name}",
                next_step=f"write TORCH_{assignment.name}",
                fix=insert_text(assignment.start, "TORCH_", title="use the new name", is_safe=False),
            )
