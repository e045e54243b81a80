"""The options of sbatch and srun: which of them take a value, their short forms, and how getopt reads them.

Source: Slurm 22.05 to 25.05, src/common/slurm_opt.c and src/sbatch/opt.c; plugins of Pyxis, CSCS and NERSC add theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Arity = Literal["none", "required", "optional"]

_NONE = """contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot requeue
spread-job test-only usage use-min-nodes verbose version wait"""
_OPTIONAL = (
    "exclusive get-user-env nice no-kill propagate x11 oom-kill-step kill-on-bad-exit immediate bcast resv-ports"
)
_REQUIRED = """account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint
container container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline
delay-boot dependency distribution error exclude export export-file extra extra-node-info gid gpu-bind
gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input job-name
kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu
mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket open-mode output partition power prefer priority profile qos reservation segment
signal sockets-per-node switches thread-spec threads-per-core time time-min tmp tres-per-task
tres-bind uid wait-all-nodes wckey wrap resources"""
_PLUGIN_REQUIRED = """container-image container-mounts container-workdir container-name container-save container-env
environment image module volume uenv view gpu-power edf"""
_PLUGIN_NONE = """container-mount-home no-container-mount-home container-remap-root no-container-remap-root
container-entrypoint no-container-entrypoint container-writable container-readonly stepmgr
consolidate-segments spread-segments"""
_SRUN_NONE = """disable-status quit-on-interrupt exact interactive label multi-prog no-allocate overlap preserve-env
unbuffered whole external debugger-test async"""
_SRUN_OPTIONAL = "pty compress send-libs"
_SRUN_REQUIRED = """accel-bind bcast-exclude cpu-bind epilog het-group jobid mpi msg-timeout prolog relative
slurmd-debug task-epilog task-prolog threads gpu-cmode wait treewidth network mem_bind cpu_bind
ntasks-per-node"""

SBATCH_SHORT = {
    "a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "h": "help",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters",
    "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "V": "version", "w": "nodelist",
    "W": "wait", "x": "exclude",
}  # fmt: skip
SRUN_SHORT = {
    **{key: name for key, name in SBATCH_SHORT.items() if key not in "ab"},
    "b": "begin", "E": "preserve-env", "I": "immediate", "K": "kill-on-bad-exit", "l": "label", "r": "relative",
    "T": "threads", "u": "unbuffered", "W": "wait", "X": "disable-status", "Z": "no-allocate",
}  # fmt: skip
ALIASES = {
    "tasks-per-node": "ntasks-per-node",
    "cluster": "clusters",
    "cpu_bind": "cpu-bind",
    "mem_bind": "mem-bind",
}
"""Other spellings that Slurm accepts; those with an underscore for srun only."""
RENAMED = {"workdir": "chdir", "share": "oversubscribe"}
"""New names of options that Slurm refuses since about 19.05."""


def _arities(none: str, optional: str, required: str) -> dict[str, Arity]:
    groups: tuple[tuple[Arity, str], ...] = (("none", none), ("optional", optional), ("required", required))
    return {name: arity for arity, names in groups for name in names.split()}


SBATCH = _arities(_NONE + " " + _PLUGIN_NONE, _OPTIONAL, _REQUIRED + " " + _PLUGIN_REQUIRED)
for _absent in ("kill-on-bad-exit", "immediate", "bcast", "resv-ports", "x11"):
    del SBATCH[_absent]
SRUN = {**_arities(_NONE, _OPTIONAL, _REQUIRED), **SBATCH, **_arities(_SRUN_NONE, _SRUN_OPTIONAL, _SRUN_REQUIRED)}
SRUN |= _arities("", _OPTIONAL, "")

SBATCH_ENVIRONMENT = {
    "SBATCH_ACCOUNT": "account", "SBATCH_ACCTG_FREQ": "acctg-freq", "SBATCH_ARRAY_INX": "array",
    "SBATCH_CHDIR": "chdir", "SBATCH_CLUSTERS": "clusters", "SLURM_CLUSTERS": "clusters",
    "SBATCH_CONSTRAINT": "constraint", "SBATCH_CONTAINER": "container", "SBATCH_CORE_SPEC": "core-spec",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu", "SBATCH_DEBUG": "verbose", "SBATCH_DELAY_BOOT": "delay-boot",
    "SBATCH_DISTRIBUTION": "distribution", "SBATCH_ERROR": "error", "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_EXPORT": "export", "SBATCH_GET_USER_ENV": "get-user-env", "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_TASK": "gpus-per-task", "SBATCH_GPU_BIND": "gpu-bind",
    "SBATCH_GPU_FREQ": "gpu-freq", "SBATCH_GRES": "gres", "SBATCH_GRES_FLAGS": "gres-flags",
    "SBATCH_HINT": "hint", "SLURM_HINT": "hint", "SBATCH_IGNORE_PBS": "ignore-pbs", "SBATCH_INPUT": "input",
    "SBATCH_JOB_NAME": "job-name", "SBATCH_MEM_BIND": "mem-bind", "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu", "SBATCH_MEM_PER_NODE": "mem", "SBATCH_NETWORK": "network",
    "SBATCH_NO_KILL": "no-kill", "SBATCH_NO_REQUEUE": "no-requeue", "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output", "SBATCH_OVERCOMMIT": "overcommit", "SBATCH_PARTITION": "partition",
    "SBATCH_POWER": "power", "SBATCH_PROFILE": "profile", "SBATCH_QOS": "qos", "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_REQUEUE": "requeue", "SBATCH_RESERVATION": "reservation", "SBATCH_SIGNAL": "signal",
    "SBATCH_SPREAD_JOB": "spread-job", "SBATCH_THREAD_SPEC": "thread-spec",
    "SBATCH_THREADS_PER_CORE": "threads-per-core", "SBATCH_TIMELIMIT": "time", "SBATCH_USE_MIN_NODES": "use-min-nodes",
    "SBATCH_WAIT": "wait", "SBATCH_WAIT_ALL_NODES": "wait-all-nodes", "SBATCH_WCKEY": "wckey",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One word of a command line, with its offsets in the text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option as getopt reads it."""

    name: str
    """Long form without dashes; as written if the option is unknown."""
    value: str | None
    is_known: bool
    start: int
    end: int
    problem: str = ""
    """Why Slurm refuses it; empty: Slurm accepts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable:
    """All options of one command: whether each takes a value, and the long name of each letter."""

    arities: dict[str, Arity]
    short: dict[str, str]


SBATCH_TABLE = OptionTable(arities=SBATCH, short=SBATCH_SHORT)
SRUN_TABLE = OptionTable(arities=SRUN, short=SRUN_SHORT)


def long_name(name: str, table: OptionTable) -> str | None:
    """The option that getopt reads `name` as: itself, or the only one with this prefix; None: unknown or ambiguous."""
    if name in table.arities:
        return ALIASES.get(name, name)
    if name in ALIASES and ("_" not in name or table is SRUN_TABLE):
        return ALIASES[name]
    candidates = {option for option in table.arities if option.startswith(name)} if name else set()
    return candidates.pop() if len(candidates) == 1 else None


def read_options(arguments: Sequence[Argument], table: OptionTable) -> tuple[list[Option], int]:
    """Options up to the first word that is not one (sbatch and srun stop there), and the number of words read."""
    options: list[Option] = []
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word.text == "--":
            return options, index + 1
        if len(word.text) < 2 or word.text[0] != "-":
            break
        following = arguments[index + 1] if index + 1 < len(arguments) else None
        if word.text.startswith("--"):
            option, num_words = _long_option(word, following, table)
            options.append(option)
        else:
            flags, num_words = _short_options(word, following, table)
            options.extend(flags)
        index += num_words
    return options, index


def _long_option(word: Argument, following: Argument | None, table: OptionTable) -> tuple[Option, int]:
    written, has_value, value = word.text[2:].partition("=")
    name = long_name(written, table)
    if name is None:
        problem = f"Slurm has no option --{written}"
        value_or_none = value if has_value else None
        return Option(
            name=written, value=value_or_none, is_known=False, start=word.start, end=word.end, problem=problem
        ), 1
    arity = table.arities.get(name, "required")
    if has_value:
        problem = f"--{name} takes no value" if arity == "none" else ""
        return Option(name=name, value=value, is_known=True, start=word.start, end=word.end, problem=problem), 1
    if arity != "required":
        return Option(name=name, value=None, is_known=True, start=word.start, end=word.end), 1
    if following is None:
        problem = f"--{name} needs a value"
        return Option(name=name, value=None, is_known=True, start=word.start, end=word.end, problem=problem), 1
    return Option(name=name, value=following.text, is_known=True, start=word.start, end=following.end), 2


def _short_options(word: Argument, following: Argument | None, table: OptionTable) -> tuple[list[Option], int]:
    """`-N2`, `-N 2`, and flags in a row such as `-HO`; also the number of words that they take."""
    options: list[Option] = []
    for place, letter in enumerate(word.text[1:], start=1):
        start = word.start if place == 1 else word.start + place
        name = table.short.get(letter)
        if name is None:
            problem = f"Slurm has no option -{letter}"
            options.append(Option(name=letter, value=None, is_known=False, start=start, end=word.end, problem=problem))
            return options, 1
        arity = table.arities.get(name, "required")
        attached = word.text[place + 1 :]
        if arity == "none":
            options.append(Option(name=name, value=None, is_known=True, start=start, end=word.end))
            continue
        if attached or arity == "optional":
            options.append(Option(name=name, value=attached or None, is_known=True, start=start, end=word.end))
            return options, 1
        if following is None:
            problem = f"-{letter} needs a value"
            options.append(Option(name=name, value=None, is_known=True, start=start, end=word.end, problem=problem))
            return options, 1
        options.append(Option(name=name, value=following.text, is_known=True, start=start, end=following.end))
        return options, 2
    return options, 1
