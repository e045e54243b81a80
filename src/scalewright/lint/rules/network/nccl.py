"""Rules about settings of NCCL and of debugging modes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import GUIDE, SURVEY, code_of
from scalewright.lint.rule import Context, Hit, at, insert_text, replace_text, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Assignment

_ONE = "#!/bin/bash\n#SBATCH --gres=gpu:2\n"
_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
_OFF: dict[str, tuple[str, ...]] = {
    "NCCL_IB_DISABLE": ("1",),
    "NCCL_P2P_DISABLE": ("1",),
    "NCCL_SHM_DISABLE": ("1",),
    "NCCL_NET": ("socket",),
}


_LIBFABRIC = re.compile(r"\bFI_PROVIDER=|\bFI_EFA_|\bFI_CXI_|aws-ofi|ofi-nccl|ofi-rccl|AWS Libfabric", re.IGNORECASE)
"""NCCL reaches the fabric through libfabric, and InfiniBand verbs are off for that reason."""


def _uses_libfabric(script: Script) -> bool:
    return _LIBFABRIC.search(code_of(script)) is not None


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
        if name == "NCCL_IB_DISABLE" and (
            fabric in ("slingshot", "ethernet") or over_sockets or _uses_libfabric(script)
        ):
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
            fix=replace_text(assignment.value, "WARN", title="write WARN", is_safe=not _is_read(script)),
        )


def _is_read(script: Script) -> bool:
    """Whether something may read NCCL's output: the script searches it, or measures NCCL itself."""
    return re.search(r"NCCL_DEBUG_(?:FILE|SUBSYS)|grep[^\n]{0,80}NCCL|nccl-tests|_perf\b", code_of(script)) is not None


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
