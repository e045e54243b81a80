"""Facts about a job that several rules need: its work commands, their steps, numbers behind variables, partitions."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from scalewright import units
from scalewright.lint.rule import ScriptFix, insert_text
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch
from scalewright.lint.shell.syntax import Command, Word
from scalewright.lint.shell.words import base_name

if TYPE_CHECKING:
    from scalewright.sites.types import Site, SitePartition

SURVEY = "287 public GPU training scripts"
GUIDE = "Infrastructure Foundations for Scalable LLM Training, section"
GIB_PER_UNIT = {
    "": units.MIB / units.GIB, "K": units.KIB / units.GIB, "M": units.MIB / units.GIB, "G": 1.0, "T": 1024.0,
}  # fmt: skip
"""GiB in each unit of --mem; without a unit Slurm reads MiB."""
DISTRIBUTED = ("torchrun", "deepspeed", "accelerate")
PER_NODE = ("nproc-per-node", "nproc_per_node", "num-gpus")
"""Options for the number of processes on a node."""
MANY_TASKS = 20
"""Tasks of an array that may run at once; the limit that the guide recommends."""

_TRIVIAL_NAMES = """echo printf hostname nvidia-smi rocm-smi amd-smi date env printenv mkdir cp rsync ls cat true :
sleep uname lscpu nproc which rm tar unzip scontrol df du free ip getent awk sed grep ulimit pwd
whoami export set source . cd module ml test trap local declare unset wait chmod touch ln mv
head tail find nvcc gcc conda pip pip3 git sbcast ibstat lstopo hwloc-ls ray exit return kill
read tee sort wc cut tr basename dirname mktemp stat file md5sum sha256sum ibv_devinfo numactl
taskset id uptime squeue sacct sinfo sstat sbatch scancel singularity_version nvidia-cuda-mps-
control curl wget readonly typeset shift let eval exec command type hash alias shopt popd pushd
umask logger jobs disown bc seq xargs realpath readlink lfs dcgmi locale history mapfile
readarray getopts huggingface-cli hf wandb seff sudo apt apt-get yum dnf"""
_TRIVIAL = frozenset(_TRIVIAL_NAMES.split())
"""Programs that end quickly."""
_QUICK_MODULES = ("pip", "venv", "virtualenv", "json.tool", "site", "ensurepip", "torch.utils.collect_env")
_PROGRAMS = ("julia", "Rscript", "matlab", "java", "gmx", "gmx_mpi", "lmp", "namd3", "make", "snakemake", "nextflow")
_WITH_VERB: dict[str, tuple[str, ...]] = {
    "wandb": ("agent",), "vllm": ("serve",), "litgpt": ("pretrain", "finetune"), "llamafactory-cli": ("train",),
    "tune": ("run",), "axolotl": ("train",), "swift": ("sft", "rlhf", "pt"), "lightning": ("run",),
}  # fmt: skip
"""Programs that train or serve with one of these words after their name."""
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_NAMED_TRAINING = re.compile(r"(?:^|[_-])train(?:er|ing)?(?:$|[_-])|^nnUNet")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-[^{}]{0,80})?\}|([A-Za-z_]\w*))")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCommand:
    """A command that does the work of the job: a training, a solver, or a container with either."""

    command: Command
    chain: tuple[Launch, ...]
    """Its launchers, outermost first; empty: it has none."""
    step: Launch | None
    """The srun that it runs under; None: it runs without srun."""

    @property
    def is_foreground(self) -> bool:
        return not (self.command.within.is_background or self.command.within.is_substitution)


@lru_cache(maxsize=16)
def code_of(script: Script) -> str:
    """The text with comments and directives blanked, so that every other character keeps its offset."""
    pieces: list[str] = []
    last = 0
    for comment in sorted(script.comments, key=lambda c: c.start):
        if comment.start >= last:
            pieces += [script.text[last : comment.start], " " * (comment.end - comment.start)]
            last = comment.end
    return "".join((*pieces, script.text[last:]))


@lru_cache(maxsize=256)
def mentions(script: Script, pattern: str) -> bool:
    """Whether the pattern matches in the script without its comments; upper and lower case are equal."""
    code, words = _lower_code(script), _needed_words(pattern)
    if words and not any(word in code for word in words):
        return False
    return _lower_pattern(pattern).search(code) is not None


@lru_cache(maxsize=16)
def _lower_code(script: Script) -> str:
    return code_of(script).lower()


@lru_cache(maxsize=256)
def _lower_pattern(pattern: str) -> re.Pattern[str]:
    """The pattern for text in lower case: searching without regard to case takes several times as long."""
    return re.compile(re.sub(r"\\.|[A-Z]", lambda m: m.group() if m.group()[0] == "\\" else m.group().lower(), pattern))


@lru_cache(maxsize=256)
def _needed_words(pattern: str) -> tuple[str, ...]:
    """Words in lower case of which every match holds one; empty if they are not known. Finding them is fast."""
    words = []
    for branch in _branches(pattern):
        outside = _GROUP.sub("|", _ESCAPE_OR_CLASS.sub("|", branch))
        if "(" in outside or ")" in outside:
            return ()
        pieces = re.split(r"\w?[?*{][^|]*|[^\w/=-]", outside)  # what is before ? or * may be missing
        longest = max(pieces, key=len)
        if len(longest) < _SHORTEST_WORD:
            return ()
        words.append(longest.lower())
    return tuple(words)


_SHORTEST_WORD = 3
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?\]?[^\]]*\]")
_GROUP = re.compile(r"\([^()]*\)[?*]?")


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern, outside groups and classes."""
    branches, depth, in_class, is_escaped = [""], 0, False, False
    for char in pattern:
        if is_escaped:
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and not depth:
            branches.append("")
            continue
        branches[-1] += char
    return branches


@lru_cache(maxsize=16)
def work_commands(script: Script) -> tuple[WorkCommand, ...]:
    """The commands that do the work, in the order of the text; commands of a shell inside a step are not repeated."""
    return tuple(_work_commands(script))


def _work_commands(script: Script) -> Iterator[WorkCommand]:
    for command in script.commands:
        if command.parent is not None and script.chain(command.parent):
            continue
        chain = script.chain(command)
        if _does_work(script, command, chain):
            step = next((launch for launch in chain if launch.tool == "srun"), None)
            yield WorkCommand(command=command, chain=chain, step=step)


def _does_work(script: Script, command: Command, chain: tuple[Launch, ...]) -> bool:
    """Whether a command runs for long: not a shell built-in, a copy or a query."""
    if not chain:
        return _is_program(command.words, command.name)
    last = chain[-1]
    if last.tool == "python":
        return python_does_work(last.program)
    if not last.program:
        return last.tool in DISTRIBUTED
    first = PurePosixPath(last.program[0].text).name
    if first in ("bash", "sh", "zsh") and any(word.text.startswith("-") for word in last.program[1:2]):
        inner = [other for other in script.commands if other.parent is command]
        return not inner or any(_does_work(script, other, script.chain(other)) for other in inner)
    return first not in _TRIVIAL


def python_does_work(arguments: tuple[Word, ...]) -> bool:
    """Whether `python ARGUMENTS` runs a program, and not a one-liner, a version query or an installation."""
    texts = [word.text for word in arguments if word.text not in ("-u", "-O", "-B", "-s", "-E", "-I")]
    if not texts or texts[0] in ("-c", "-", "-V", "--version", "-h"):
        return False
    return not (texts[0] == "-m" and len(texts) > 1 and texts[1] in _QUICK_MODULES)


def _is_program(words: tuple[Word, ...], name: str) -> bool:
    first = words[0].text
    if name in ("bash", "sh"):
        return len(words) > 1 and (words[1].text.endswith((".sh", ".bash")) or words[1].text.startswith("$"))
    if name in _PROGRAMS or (first.startswith("./") and not first.endswith((".env",))):
        return True
    if name in _WITH_VERB:
        return len(words) > 1 and words[1].text in _WITH_VERB[name]
    return ("train" in name or "nnUNet" in name) and _NAMED_TRAINING.search(name) is not None


def step_of(launch: Launch) -> Launch | None:
    """The srun that a launcher runs under, also across `bash -c`; None: it runs without srun."""
    return next((outer for outer in reversed(launch.outer) if outer.tool == "srun"), None)


def started_by(script: Script, launch: Launch) -> list[Launch]:
    """The launchers that run inside this one, also across `bash -c`."""
    return _inner_launches(script).get((id(launch.command), launch.start, launch.tool), [])


@lru_cache(maxsize=16)
def _inner_launches(script: Script) -> dict[tuple[int, int, str], list[Launch]]:
    inner: dict[tuple[int, int, str], list[Launch]] = {}
    for launch in script.launches:
        for outer in launch.outer:
            inner.setdefault((id(outer.command), outer.start, outer.tool), []).append(launch)
    return inner


@lru_cache(maxsize=1024)
def has_unknown_options(launch: Launch) -> bool:
    """Whether a variable that the script does not set may hold options of a launcher: `srun $FLAGS python`."""
    for word in launch.command.words:
        if word.text[:1] != "$" or word.is_static or not (launch.start <= word.start and word.end <= launch.end):
            continue
        if base_name(word.text)[:1] != "$":
            continue  # `$(which torchrun)` or `$ENV/bin/torchrun`: the launcher itself
        if all(option.end != word.end for option in launch.options):
            return True
    first = launch.program[0] if launch.program else None
    return first is not None and not first.is_static and base_name(first.text).startswith("$")


def own_words(launch: Launch) -> list[Word]:
    """The launcher's name and options, without the program that it starts."""
    return [w for w in launch.command.words if launch.start <= w.start and w.end <= launch.end]


def number(script: Script, text: str | None) -> int | None:
    """A whole number as the job sees it: `4`, `$NGPUS`, `$SLURM_NNODES`, `$((SLURM_NNODES * 4))`; None: unknown."""
    if text is None:
        return None
    text = script.resolve(text).strip()
    if text.isdecimal():
        return int(text) if len(text) < 100 else None
    inner = re.fullmatch(r"\$\(\((.{1,80})\)\)", text)
    expression = inner.group(1) if inner else text
    job_numbers = _job_numbers(script)

    def value(match: re.Match[str]) -> str:
        return str(job_numbers.get(match.group(1) or match.group(2), match.group()))

    expression = _REFERENCE.sub(value, expression)
    if inner:
        expression = re.sub(r"\b([A-Za-z_]\w*)\b", lambda m: _value_of(script, m.group(1), job_numbers), expression)
    return _calculated(expression) if len(expression) < 100 else None


def _value_of(script: Script, name: str, job_numbers: dict[str, int]) -> str:
    """Value of a variable that is written without `$` in an arithmetic expression; the name itself if it is unknown."""
    words = script.body.variables.get(name)
    return str(job_numbers[name]) if name in job_numbers else words[0].text if words and len(words) == 1 else name


@lru_cache(maxsize=16)
def _job_numbers(script: Script) -> dict[str, int]:
    """Variables that Slurm sets from the header."""
    per_task = script.number("cpus-per-task")
    variables = {
        "SLURM_NNODES": script.num_nodes,
        "SLURM_JOB_NUM_NODES": script.num_nodes,
        "SLURM_NTASKS": script.num_tasks,
        "SLURM_NPROCS": script.num_tasks,
        "SLURM_NTASKS_PER_NODE": script.number("ntasks-per-node"),
        "SLURM_GPUS_PER_NODE": script.gpus_per_node,
        "SLURM_GPUS_ON_NODE": script.gpus_per_node,
        "SLURM_GPUS": script.num_gpus,
        "SLURM_CPUS_PER_TASK": per_task,
    }
    return {name: value for name, value in variables.items() if value is not None}


def _calculated(expression: str) -> int | None:
    if not re.fullmatch(r"[\d\s+\-*/%()]+", expression):
        return None
    try:
        return _folded(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _folded(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_folded(node.left), _folded(node.right))
    raise ValueError("not a sum of whole numbers")


@lru_cache(maxsize=1024)
def step_nodes(script: Script, step: Launch) -> int | None:
    """Nodes of a step; None: unknown."""
    if step.has("nodes"):
        return number(script, step.value("nodes"))
    tasks = number(script, step.value("ntasks")) if step.has("ntasks") else None
    if tasks == 1:
        return 1
    return None if has_unknown_options(step) else script.num_nodes


@lru_cache(maxsize=1024)
def step_tasks_per_node(script: Script, step: Launch) -> int | None:
    """Tasks of a step on each node; None: unknown."""
    if step.has("ntasks-per-node"):
        return number(script, step.value("ntasks-per-node"))
    if step.has("ntasks"):
        tasks, nodes = number(script, step.value("ntasks")), step_nodes(script, step)
        return None if tasks is None or not nodes else -(-tasks // nodes)
    if has_unknown_options(step) or step.has("ntasks-per-gpu", "ntasks-per-socket"):
        return None
    return script.tasks_per_node


def step_total(script: Script, step: Launch) -> int | None:
    """All tasks of a step; None: unknown."""
    nodes, per_node = step_nodes(script, step), step_tasks_per_node(script, step)
    return nodes * per_node if nodes and per_node else None


@lru_cache(maxsize=1024)
def ranks_per_launcher(script: Script, launch: Launch) -> int | None:
    """Processes that one call of torchrun, deepspeed or accelerate starts; None: unknown."""
    option = launch.option(*PER_NODE)
    if launch.tool == "accelerate":
        total = number(script, launch.value("num-processes"))
        machines = number(script, launch.value("num-machines") or "1")
        return total // machines if total and machines else None
    if option is None:
        return 1 if launch.tool == "torchrun" and not has_unknown_options(launch) else None
    if option.value in ("gpu", "auto"):
        return script.gpus_per_node
    return number(script, option.value)


def trains(script: Script) -> bool:
    """Whether the job requests GPUs or uses a launcher of ranks."""
    return script.asks_for_gpus or bool(script.launched(*DISTRIBUTED))


def runs_whole_nodes(script: Script, site: Site | None) -> bool:
    """Whether no other job can be on the nodes: --exclusive, or a partition that allocates whole nodes."""
    if script.has("exclusive") and script.value("exclusive") in (None, "", "exclusive"):
        return True
    return any(partition.whole_node for partition in partitions_of(script, site))


def shares_nodes(script: Script, site: Site | None) -> bool:
    """Whether other jobs may be on the nodes, according to the profile."""
    partitions = partitions_of(script, site)
    return bool(partitions) and not any(partition.whole_node for partition in partitions)


def partitions_of(script: Script, site: Site | None) -> list[SitePartition]:
    """Partitions of the profile that the job may run in: those it names, or the default."""
    if site is None:
        return []
    names = (script.value("partition") or site.select.partition).split(",")
    return [partition for name in names if (partition := site.partition(name.strip())) is not None]


def gpus_of_node(site: Site | None) -> int | None:
    """GPUs of a node, according to the profile; None: unknown."""
    return site.gpus_per_node.value if site and site.gpus_per_node else None


def cpus_of_gpu(site: Site | None) -> int | None:
    """CPUs that come with each GPU, according to the profile; None: unknown."""
    return site.cpus_per_gpu.value if site and site.cpus_per_gpu else None


def memory_gb_of_gpu(site: Site | None) -> int | None:
    """Host memory that comes with each GPU, according to the profile; None: unknown."""
    return site.memory_gb_per_gpu.value if site and site.memory_gb_per_gpu else None


def add_option(script: Script, launch: Launch, text: str, *, title: str, is_safe: bool) -> ScriptFix | None:
    """A fix that adds an option right after a launcher's name; None: its name comes from a variable."""
    first = next((word for word in launch.command.words if word.start == launch.start), None)
    if first is None or first.is_expanded or script.text[first.start : first.end] != first.text:
        return None
    return insert_text(first.end, f" {text}", title=title, is_safe=is_safe)


def is_fill_in(text: str) -> bool:
    """Whether a value is a placeholder that a person fills in: `<account>`, `{{ time }}`, `YOUR_PROJECT`."""
    return (
        re.search(
            r"\{\{|\{[A-Za-z_]\w*\}|<[^<>]*>|YOUR|your_|X{3}|x{3}|CHANGE_?ME|TO_?DO|\.\.\.|@[A-Z_]+@|\b__[A-Z][A-Z0-9_]*__\b",
            text,
        )
        is not None
    )


def has_job_id(text: str) -> bool:
    """Whether a path differs from job to job: it holds an id, a time, a random part, or the array index."""
    return (
        re.search(
            r"SLURM_JOB_?ID|SLURM_ARRAY|JOB_?ID|jobid|\$\(date|`date|TIMESTAMP|\bnow\b|RANDOM|mktemp|\$\$|EPOCHSECONDS|"
            r"UUID|uuid|RUN_?ID|run_id|TMPDIR|SLURM_TMPDIR|\$[A-Za-z]*(?i:date|time|stamp)",
            text,
        )
        is not None
    )
