"""Launches: programs that start other programs, such as srun, mpirun, torchrun, deepspeed, accelerate and containers.

A command such as `srun -n 4 apptainer exec --nv x.sif torchrun train.py` is a chain of launches. Each has its own
options, the launches around it, and the words that it starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalewright.lint.header.options import SRUN_TABLE, Argument, read_options
from scalewright.lint.shell.syntax import Command, Word
from scalewright.lint.shell.words import base_name

CONTAINERS = ("apptainer", "singularity", "shifter", "podman", "podman-hpc", "docker", "enroot")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOption:
    """One option of a launcher."""

    name: str
    """Without dashes, underscores as dashes: `nproc-per-node`."""
    value: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launch:
    """One program that starts another; two launches are never equal, so that what is known of one can be cached."""

    tool: str
    """srun, mpirun, torchrun, deepspeed, accelerate, apptainer, singularity, python, ..."""
    options: tuple[LaunchOption, ...]
    command: Command
    outer: tuple[Launch, ...]
    """The launches around this one, outermost first."""
    program: tuple[Word, ...]
    """The program that it starts, with its arguments."""
    image: Word | None = None
    """Image of a container; None: not a container."""
    start: int = 0
    end: int = 0

    @property
    def line(self) -> int:
        return self.command.line

    def value(self, name: str) -> str | None:
        """Value of an option, the last if it is given twice; None: not given, or without a value."""
        return next((o.value for o in reversed(self.options) if o.name == name), None)

    def option(self, *names: str) -> LaunchOption | None:
        return next((o for o in reversed(self.options) if o.name in names), None)

    def has(self, *names: str) -> bool:
        return any(option.name in names for option in self.options)

    def is_inside(self, *tools: str) -> bool:
        return any(launch.tool in tools for launch in self.outer)


_MPI = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "ibrun", "aprun", "jsrun"}
_MPI_FLAGS = """allow-run-as-root report-bindings oversubscribe nooversubscribe display-map display-allocation
tag-output timestamp-output bind-to-core bind-to-none bind-to-socket bynode byslot bycore bysocket v verbose q quiet l
prepend-rank print-all-exitcodes nolocal use-hwthread-cpus display-topo enable-recovery version help
genvall genvnone envall envnone localroot"""
_MPI_PAIRS = ("mca", "gmca", "genv", "env")
_TORCHRUN_FLAGS = "standalone no-python m module run-path use-env virtual-local-rank use-agent-store"
_DEEPSPEED_FLAGS = (
    "no-local-rank no-python module force-multi no-ssh no-ssh-check save-pid elastic-training bind-cores-to-rank"
)
_ACCELERATE_FLAGS = """multi-gpu cpu tpu mps xpu quiet q m module no-python use-deepspeed use-fsdp use-megatron-lm
use-parallelism-config debug same-network tpu-use-cluster no-tpu-cluster use-xpu ipex use-tpu h help
use-mps-device dynamo-use-fullgraph dynamo-use-dynamic fp8-override-linear-precision"""
_APPTAINER_FLAGS = """nv nvccli rocm e cleanenv c contain C containall no-home writable w writable-tmpfs f fakeroot u
userns p pid i ipc uts net compat no-init no-privs keep-privs allow-setuid disable-cache no-https unsquash
no-umask no-eval vm s passphrase underlay sharens d debug q quiet v verbose silent nocolor"""
_CONTAINER_FLAGS = """rm replace it i t d gpu gpus-all nv privileged detach interactive tty init root rw read-only init
no-container-entrypoint mpi cuda-mpi nccl scratch cvmfs openmpi-pmi2 openmpi-pmix shared-run enable-sshd home cvmfs"""
_NUMACTL_FLAGS = "l localalloc all a show hardware s H"
_PYTHON = re.compile(r"^python(\d(\.\d+)?)?t?$")
_WRAPPER_FLAGS = {
    "time": "p v", "exec": "c l", "nohup": "", "command": "", "env": "i", "nice": "", "stdbuf": "", "sudo": "E H",
    "timeout": "preserve-status foreground v verbose", "numactl": _NUMACTL_FLAGS, "taskset": "a p", "setsid": "w f c",
    "nsys": "", "ncu": "", "rocprof": "", "ionice": "", "chrt": "", "strace": "f", "xargs": "0 r", "uv": "",
    "poetry": "", "conda": "no-capture-output live-stream", "pixi": "", "micromamba": "", "mamba": "",
}  # fmt: skip
_STARTED = {"srun", "torchrun", "deepspeed", "accelerate", "bash", "sh"}
_SUBCOMMAND = {
    "nsys": "profile",
    "uv": "run",
    "poetry": "run",
    "conda": "run",
    "pixi": "run",
    "micromamba": "run",
    "mamba": "run",
}
_WRAPPER_POSITIONALS = {"timeout": 1}


_STARTS_PYTHON = ("torchrun", "deepspeed", "accelerate", "mpirun")
"""Launchers whose program is a Python file anyway."""
_MAX_CHAIN = 16
"""Launchers inside launchers that are followed. Nobody writes more, and thousands must not take forever."""


def launches_of(command: Command) -> Iterator[Launch]:
    """The chain of launches in one command, outermost first; empty for a program that starts no other."""
    words = list(command.words)
    outer: list[Launch] = []
    if command.parent is not None:
        parent_chain = list(launches_of(command.parent))
        outer = [*parent_chain[-1].outer, parent_chain[-1]] if parent_chain else []
    while words and len(outer) < _MAX_CHAIN:
        launch_and_program = _first_launch(words, command, tuple(outer))
        if launch_and_program is None:
            return
        launch, words = launch_and_program
        if launch is not None:
            outer.append(launch)
            yield launch


def _first_launch(
    words: list[Word], command: Command, outer: tuple[Launch, ...]
) -> tuple[Launch | None, list[Word]] | None:
    """The launch that the words begin with (None: a wrapper such as `time`) and the words after it; None: no launch."""
    name = base_name(words[0].text)
    if name == "srun":
        return _srun(words, command, outer)
    if name in _MPI:
        return _generic("mpirun", words, 1, _MPI_FLAGS, command, outer, pairs=_MPI_PAIRS)
    if name == "torchrun":
        return _generic(name, words, 1, _TORCHRUN_FLAGS, command, outer)
    if name == "deepspeed":
        return _generic(name, words, 1, _DEEPSPEED_FLAGS, command, outer)
    if name == "accelerate" and len(words) > 1 and words[1].text == "launch":
        return _generic(name, words, 2, _ACCELERATE_FLAGS, command, outer)
    if _PYTHON.match(name):
        return _python(words, command, outer)
    if name in CONTAINERS:
        return _container(name, words, command, outer)
    if name in _WRAPPER_FLAGS:
        return _wrapper(name, words)
    if name.endswith(".py") and not any(launch.tool in _STARTS_PYTHON for launch in outer):
        return _python_file(words, command, outer)
    return None


def _python_file(words: list[Word], command: Command, outer: tuple[Launch, ...]) -> tuple[Launch, list[Word]]:
    """`./train.py` or `uv run train.py`: a program in Python that is called by its name."""
    first = words[0]
    launch = Launch(
        tool="python",
        options=(),
        command=command,
        outer=outer,
        program=tuple(words),
        start=first.start,
        end=first.end,
    )
    return launch, []


def _srun(words: list[Word], command: Command, outer: tuple[Launch, ...]) -> tuple[Launch, list[Word]]:
    arguments = [Argument(text=word.text, start=word.start, end=word.end) for word in words[1:]]
    launch_options: list[LaunchOption] = []
    num_used = 0
    while True:
        options, num_read = read_options(arguments[num_used:], SRUN_TABLE)
        launch_options += [LaunchOption(name=o.name, value=o.value, start=o.start, end=o.end) for o in options]
        num_used += num_read
        unread = arguments[num_used:]
        if len(unread) < 2 or not _may_hold_options(unread[0].text) or not _follows_options(unread[1].text):
            break
        num_used += 1
    program = words[1 + num_used :]
    return _launch("srun", launch_options, command, outer, words, program), program


def _launch(
    tool: str,
    options: Sequence[LaunchOption],
    command: Command,
    outer: tuple[Launch, ...],
    words: list[Word],
    program: list[Word],
    image: Word | None = None,
) -> Launch:
    own_words = words[: len(words) - len(program)]
    return Launch(
        tool=tool,
        options=tuple(options),
        command=command,
        outer=outer,
        program=tuple(program),
        image=image,
        start=own_words[0].start,
        end=own_words[-1].end,
    )


def _read(
    words: Sequence[Word], flags: set[str], pairs: tuple[str, ...] = (), *, has_image: bool = False
) -> tuple[list[LaunchOption], int]:
    """Options of a tool and the number of their words. `flags` take no value, `pairs` two, all others one.

    If the tool takes an image after its options, a variable before the program is the image.
    """
    options: list[LaunchOption] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word.text == "--":
            return options, index + 1
        if _may_hold_options(word.text) and not word.is_static:
            following = words[index + 1].text if index + 1 < len(words) else ""
            if not _follows_options(following) or (has_image and following[:1] not in ("-", "$")):
                break
            index += 1
            continue
        if len(word.text) < 2 or not word.text.startswith("-"):
            break
        name, has_value, value = word.text.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if has_value or name in flags:
            options.append(LaunchOption(name=name, value=value if has_value else None, start=word.start, end=word.end))
            index += 1
            continue
        num_values = 2 if name in pairs else 1
        values = [w.text for w in words[index + 1 : index + 1 + num_values]]
        last = words[min(index + num_values, len(words) - 1)]
        options.append(LaunchOption(name=name, value=" ".join(values) or None, start=word.start, end=last.end))
        index += 1 + num_values
    return options, min(index, len(words))


def _may_hold_options(text: str) -> bool:
    """Whether an unknown variable may hold options: `$FLAGS`, not `$ENV/bin/python` or `$(which python)`."""
    return text.startswith("$") and base_name(text).startswith("$")


def _follows_options(text: str) -> bool:
    """Whether an unknown variable right before this word can only hold options."""
    name = base_name(text)
    if text.startswith(("-", "$")) or name.endswith((".py", ".sh")) or _PYTHON.match(name):
        return True
    return name in _MPI or name in CONTAINERS or name in _WRAPPER_FLAGS or name in _STARTED


def _generic(
    tool: str,
    words: list[Word],
    skip: int,
    flags: str,
    command: Command,
    outer: tuple[Launch, ...],
    pairs: tuple[str, ...] = (),
) -> tuple[Launch, list[Word]]:
    """A launcher whose options follow its first `skip` words."""
    options, num_read = _read(words[skip:], set(flags.split()), pairs)
    program = words[skip + num_read :]
    return _launch(tool, options, command, outer, words, program), program


def _python(words: list[Word], command: Command, outer: tuple[Launch, ...]) -> tuple[Launch | None, list[Word]] | None:
    """`python -m torch.distributed.run` is torchrun; any other python runs a program and ends the chain."""
    index = 1
    while index < len(words) and words[index].text.startswith("-") and words[index].text != "-m":
        index += 2 if words[index].text in ("-W", "-X") else 1
    if index + 1 < len(words) and words[index].text == "-m":
        module = words[index + 1].text
        if module in ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"):
            return _generic("torchrun", words, index + 2, _TORCHRUN_FLAGS, command, outer)
        if module in ("accelerate.commands.launch", "accelerate.launch"):
            return _generic("accelerate", words, index + 2, _ACCELERATE_FLAGS, command, outer)
        if module in ("deepspeed.launcher.runner", "deepspeed.launcher.launch"):
            return _generic("deepspeed", words, index + 2, _DEEPSPEED_FLAGS, command, outer)
    return _launch("python", (), command, outer, words, words[1:]), []


def _container(
    name: str, words: list[Word], command: Command, outer: tuple[Launch, ...]
) -> tuple[Launch, list[Word]] | None:
    apptainer = name in ("apptainer", "singularity")
    flags = set((_APPTAINER_FLAGS if apptainer else _CONTAINER_FLAGS).split())
    index = 1
    before: list[LaunchOption] = []
    if name != "shifter":
        before, num_read = _read(words[1:], flags)
        index += num_read
        if index >= len(words) or words[index].text not in ("exec", "run", "shell", "start"):
            return None
        index += 1
    options, num_read = _read(words[index:], flags, has_image=name != "shifter")
    index += num_read
    image = None
    if name == "shifter":
        option = next((o for o in options if o.name in ("image", "i")), None)
        image = Word(text=option.value or "", start=option.start, end=option.end, is_static=True) if option else None
    elif index < len(words):
        image = words[index]
        index += 1
    program = words[index:]
    tool = "apptainer" if apptainer else name
    return _launch(tool, [*before, *options], command, outer, words, program, image), program


def _wrapper(name: str, words: list[Word]) -> tuple[None, list[Word]] | None:
    """`time`, `env A=1`, `numactl -l` and the like: skip them and their options."""
    index = 1
    if name in _SUBCOMMAND:
        if len(words) < 2 or words[1].text != _SUBCOMMAND[name]:
            return None
        index = 2
    _, num_read = _read(words[index:], set(_WRAPPER_FLAGS[name].split()))
    index += num_read
    while name == "env" and index < len(words) and "=" in words[index].text:
        index += 1
    index += _WRAPPER_POSITIONALS.get(name, 0)
    return None, words[index:]
