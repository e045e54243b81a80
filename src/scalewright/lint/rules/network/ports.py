"""Rules about the port that ranks meet at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from scalewright.lint.job_facts import (
    DISTRIBUTED,
    SURVEY,
    WorkCommand,
    code_of,
    gpus_of_node,
    has_unknown_options,
    runs_whole_nodes,
    work_commands,
)
from scalewright.lint.rule import Context, Hit, ScriptFix, at, replace_span, replace_text, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.lint.shell.syntax import Assignment, Command

_ONE = "#!/bin/bash\n#SBATCH --gres=gpu:2\n"
_PORT_FROM_JOB_ID = "$((20000 + SLURM_JOB_ID % 10000))"
_PORT_NAMES = re.compile(
    r"^(?:MASTER_PORT|master_port|MAIN_PROCESS_PORT|RDZV_PORT|HEAD_NODE_PORT|RAY_PORT|GCS_PORT|port|PORT)$"
)
_PORT_OPTIONS = ("master-port", "main-process-port", "rdzv-endpoint", "master_port", "main_process_port")
_PORT_TITLE = "derive the port from the job id"
_ALL_GPUS = 8
"""GPUs of the largest nodes. A job with that many shares its nodes with no other GPU job."""

_MOST_NODES = 4
"""GPUs of most nodes. Jobs of several nodes take whole nodes."""


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
    ports = tuple(_ports(script))
    launchers = script.launched(*DISTRIBUTED)
    if not ports and not launchers:
        return
    concurrent = [w for w in work_commands(script) if w.command.within.is_background and _launches_ranks(w)]
    is_alone = _has_nodes_alone(script, context) and len(concurrent) < 2
    yield from _assigned_ports(script, ports, is_alone=is_alone)
    yield from _ports_of_launchers(script, ports, is_alone=is_alone)


def _has_nodes_alone(script: Script, context: Context) -> bool:
    """Whether no other job that trains can be on the nodes."""
    gpus = script.gpus_per_node or 0
    if runs_whole_nodes(script, context.site) or script.value("mem") in ("0", "0G", "0GB"):
        return True
    return gpus >= (gpus_of_node(context.site) or (_MOST_NODES if script.is_multi_node else _ALL_GPUS))


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
            fix=_port_from_job_id(script, assignment, value, is_default=default is not None),
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
        is_only_user = _num_mentions(script, port.group(1)) == 1
        yield at(
            script,
            option,
            f"the rendezvous always uses port {port.group(1)}",
            next_step=f"derive it from the job id: {_PORT_FROM_JOB_ID}",
            severity="info" if is_alone else None,
            fix=replace_span(start, option.end, _PORT_FROM_JOB_ID, title=_PORT_TITLE, is_safe=_stays_in_job(script))
            if is_plain and is_only_user
            else None,
        )


def _is_reported(ports: tuple[Assignment, ...], port: str) -> bool:
    """Whether an assignment holds the port; it is reported there."""
    return any(re.fullmatch(rf"{port}|\$\{{\w+:?[-=]{port}\}}", assignment.value.text) for assignment in ports)


def _is_searched(script: Script, name: str) -> bool:
    """Whether the port is only the start of a search for a free one."""
    code = code_of(script)
    if f"{name}++" not in code and f"{name} ++" not in code and f"{name}+" not in code and f"{name} +" not in code:
        return False
    return re.search(rf"\(\(\s*{name}\s*(?:\+\+|\+=)|\b{name}=\$\(\(\s*\$?{name}\s*\+", code) is not None


def _launches_ranks(work: WorkCommand) -> bool:
    return any(launch.tool in DISTRIBUTED for launch in work.chain)


def _is_written(script: Script, launch: Launch) -> bool:
    return any(word.start == launch.start and not word.is_expanded for word in launch.command.words)


def _ports(script: Script) -> Iterator[Assignment]:
    """Assignments of a port that ranks meet at."""
    named = [a for a in script.assignments if _PORT_NAMES.match(a.name) and not a.within.is_heredoc]
    if not named:
        return
    meets = [launch for launch in script.launched(*DISTRIBUTED, "srun") if not launch.has("standalone")] or re.search(
        r"\bray start|init_process_group", code_of(script)
    )
    for assignment in named if meets else ():
        if assignment.name.lower() == "port" and not re.search(
            rf"(?:master[_-]?port|MASTER_PORT|main_process_port|rdzv\S{{0,60}}|ray start[^\n]{{0,200}}|endpoint)"
            rf"[= ]\S{{0,100}}\$\{{?{assignment.name}\b",
            code_of(script),
        ):
            continue
        yield assignment


def _num_mentions(script: Script, port: str) -> int:
    """How often the code names a port."""
    code, count = code_of(script), 0
    place = code.find(port)
    while place >= 0:
        end = place + len(port)
        count += not (code[place - 1 : place].isdigit() or code[end : end + 1].isdigit())
        place = code.find(port, end)
    return count


def _port_from_job_id(script: Script, assignment: Assignment, value: str, *, is_default: bool) -> ScriptFix | None:
    """The fix of an assigned port; None: something else in the script or in a program may use the old number."""
    port = re.sub(r"[^0-9]", "", value)
    if assignment.origin or _num_mentions(script, port) > 1 or len(_assigned(script, assignment.name)) > 1:
        return None
    if _endpoint_without(script, assignment.name):
        return None
    text = re.sub(r"\d{4,5}\}$", f"{_PORT_FROM_JOB_ID}}}", value) if is_default else _PORT_FROM_JOB_ID
    return replace_text(assignment.value, text, title=_PORT_TITLE, is_safe=_derives_everywhere(script, assignment))


def _assigned(script: Script, name: str) -> list[Assignment]:
    return [assignment for assignment in script.assignments if assignment.name == name]


def _endpoint_without(script: Script, name: str) -> bool:
    """Whether a launcher names an endpoint or a port that does not come from the variable."""
    for launch in script.launched(*DISTRIBUTED):
        option = launch.option(*_PORT_OPTIONS)
        written = script.text[option.start : option.end] if option is not None else ""
        if option is not None and re.search(rf"\$\{{?{name}\b", written) is None:
            return True
    return False


def _derives_everywhere(script: Script, assignment: Assignment) -> bool:
    """Whether every user of the port provably takes it from the variable, so that all still meet.

    PyTorch reads MASTER_PORT from the environment, and launchers take it as an option. What Ray, ssh or another script
    does with a port is not known.
    """
    within = assignment.within
    if within.is_branch or within.functions or within.is_subshell or within.is_condition:
        return False
    if not _stays_in_job(script):
        return False
    if assignment.name == "MASTER_PORT" and assignment.is_exported:
        return True
    launchers = script.launched(*DISTRIBUTED)
    return bool(launchers) and all(launch.option(*_PORT_OPTIONS) is not None for launch in launchers)


@lru_cache(maxsize=16)
def _stays_in_job(script: Script) -> bool:
    """Whether nothing but programs of this job, as far as the script shows, can depend on the port."""
    if script.sourced or re.search(r"\b(?:ray|ssh|pdsh|sbatch|dask)\b", code_of(script)):
        return False
    others = ("source", ".", "bash", "sh", "")
    return not any(c.name in others and len(c.words) > 1 and not _gives_text(c) for c in script.commands)


def _gives_text(command: Command) -> bool:
    """`bash -c TEXT`: the text is part of the script."""
    return command.name in ("bash", "sh") and re.fullmatch(r"-[a-z]*c", command.words[1].text) is not None


@rule(
    id="random-port",
    severity="warning",
    title="A random port that programs may not listen on",
    why="$RANDOM lies between 0 and 32767. Ports below 1024 are reserved for the system: one job in 32 cannot start.",
    source="bash(1), RANDOM: an integer between 0 and 32767; ip(7): ports below 1024 are privileged",
    before=_ONE + "export MASTER_PORT=$RANDOM\nsrun python train.py\n",
    after=_ONE + f"export MASTER_PORT={_PORT_FROM_JOB_ID}\nsrun python train.py\n",
)
def random_port(script: Script, context: Context) -> Iterator[Hit]:
    for assignment in script.assignments:
        if _PORT_NAMES.match(assignment.name) and assignment.value.text in ("$RANDOM", "${RANDOM}"):
            yield at(
                script,
                assignment,
                f"{assignment.name} may be below 1024, where programs of users cannot listen",
                next_step=f"derive it from the job id: {assignment.name}={_PORT_FROM_JOB_ID}",
            )
    for launch in script.launched(*DISTRIBUTED):
        option = launch.option(*_PORT_OPTIONS)
        if option is not None and re.search(r"(?:^|:)\$\{?RANDOM\}?$", option.value or ""):
            yield at(
                script,
                option,
                "the port may be below 1024, where programs of users cannot listen",
                next_step=f"derive it from the job id: {_PORT_FROM_JOB_ID}",
            )


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
