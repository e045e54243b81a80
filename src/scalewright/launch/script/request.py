"""JobRequest: what the user wants to run, not yet checked against a site. `render(request, site)` makes a JobScript."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scalewright.errors import ConfigError
from scalewright.launch.script.quoting import one_line, writable
from scalewright.sites.types import Launcher
from scalewright.sites.walltime import format_walltime

MAX_REQUEUES = 100
LONGEST_NOTICE_S = 65535
"""The longest time that Slurm's --signal accepts."""
OWN_NAMES = frozenset({
    "run_dir", "attempt", "why", "log_bytes", "grace_s", "hold_s", "exit_requeue", "max_requeues", "step", "watcher",
    "interrupted",
    "noticed", "cancelled", "ended", "reason", "manifest", "lines", "item", "hosts", "image", "per_node", "copy_dir",
    "copied", "command", "torchrun", "step_flags", "status", "checked", "bad_nodes", "node_list",
    "excluded", "ray_dir", "ray_ip", "ray_port", "ray_workers", "ray_head_step", "ray_wait", "token_file",
    "head_flags", "worker_flags", "driver_flags", "pid", "tries",
    "UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO", "IFS",
})  # fmt: skip
"""Variables that the script uses, and those that bash does not allow to set."""
_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")
_NAMES = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:,[A-Za-z0-9_][A-Za-z0-9_.+-]*)*$")
_CONSTRAINT = re.compile(r"^[A-Za-z0-9_.:*()&|\[\]@-]+$")
_MODULE = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+/-]*$")
_MIG = re.compile(r"^[a-z0-9_]*[0-9]+g\.[0-9]+gb(\.me)?$")
_SWITCHES = re.compile(r"^[0-9]{1,4}(@[0-9:-]{1,12})?$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_DIRECTIVE = re.compile(r"^[a-z][a-z-]*$")
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
RuntimeKind = Literal["auto", "apptainer", "pyxis", "shifter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An image to run in: a file, or a reference if the runtime accepts one."""

    image: str
    runtime: RuntimeKind = "auto"
    sha256: str = ""
    """Expected hash of the image file; empty: the hash is not checked."""

    def __post_init__(self) -> None:
        one_line(self.image, "--container")
        if not self.image or self.image.startswith("-"):
            raise ConfigError(f"--container {self.image!r} is not an image: give a file or a reference")
        if self.sha256 and not _DIGEST.match(self.sha256):
            raise ConfigError(
                f"--container digest {self.sha256!r} is not 64 hexadecimal digits: write IMAGE@sha256:DIGEST"
            )

    @property
    def is_file(self) -> bool:
        return self.image.startswith("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTasks:
    """An array with one task for each line of the file `manifest`, at most `max_running` at a time."""

    manifest: Path
    num_items: int
    max_running: int

    def __post_init__(self) -> None:
        if self.num_items < 1:
            raise ConfigError(f"--array {str(self.manifest)!r} has no lines: write one work item per line")
        if self.max_running < 1:
            raise ConfigError(f"--width {self.max_running} must be 1 or more: it is the number of tasks at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job. An empty text or 0 means the default of the site's profile."""

    command: tuple[str, ...]
    num_nodes: int
    walltime_s: int
    run_dir: Path
    work_dir: Path
    name: str = "scalewright"
    num_spares: int = 0
    """Additional nodes, so that the job can leave out bad ones."""
    gpus_per_node: int = 0
    launcher: Launcher | Literal["auto"] = "auto"
    account: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    switches: str = ""
    """Largest number of leaf switches, and how long to wait for them: `1@12:00:00`."""
    mig: str = ""
    """Profile of a MIG slice, such as 1g.10gb; `gpus_per_node` then counts slices."""
    transport: str = "auto"
    """Catalogue id, or tcp for sockets over any network of the site; auto: the site's default, nothing forced."""
    container: Container | None = None
    modules: tuple[str, ...] = ()
    venv: str = ""
    copied_paths: tuple[str, ...] = ()
    """Files and folders that are first copied to every node; the command finds them in `{copy}`."""
    array: ArrayTasks | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    directives: Mapping[str, str] = field(default_factory=dict)
    """More sbatch options by name, such as exclude."""
    requeue: bool = True
    notice_s: int = 0
    """How long before the time limit the ranks are asked to save; 0: two minutes, less in short jobs."""
    finds_its_rank: bool = False
    """The command reads its rank from Slurm's variables and needs no RANK."""
    mounted_paths: tuple[str, ...] = ()
    """Files and folders that the command reads and an image has to show, beside the run and working folders."""
    once_per_node: bool = False
    """Start the command once on each node, which sees all its devices, instead of once for each device."""
    saves_with_zero: bool = False
    """After a notice the command saves and ends with 0, so a job that got one is queued again even then."""
    checks_nodes: bool = False
    """Run the pre-flight check in every task of an array too. Single jobs always run it."""
    ray: bool = False
    """Start Ray on all nodes, and run the command once, beside its head."""
    notes: tuple[str, ...] = ()
    """Notes to the user about this request. The script has them as comments."""

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ConfigError("there is nothing to run: give a plan, or a command after --")
        for word in self.command:
            writable(word, "the argument")
        if self.num_nodes < 1:
            raise ConfigError(f"--nodes {self.num_nodes} must be 1 or more")
        if self.num_spares < 0:
            raise ConfigError(f"--spares {self.num_spares} must be 0 or more")
        if self.num_spares and (self.array is not None or self.mig):
            raise ConfigError(
                f"--spares {self.num_spares}: arrays and MIG slices run no pre-flight check: leave --spares out"
            )
        if self.gpus_per_node < 0:
            raise ConfigError(f"--gpus-per-node {self.gpus_per_node} must be 1 or more")
        if self.notice_s and not 10 <= self.notice_s < min(self.walltime_s, LONGEST_NOTICE_S):
            raise ConfigError(
                f"--notice {self.notice_s} s does not fit into a job of {format_walltime(self.walltime_s)}: give 10 s "
                f"or more, less than the job and less than {LONGEST_NOTICE_S} s"
            )
        if self.ray:
            self._check_ray()
        if self.once_per_node and self.launcher == "srun":
            raise ConfigError("--launcher srun starts one process for each GPU, and this command is started per node: "
                              "leave --launcher out")  # fmt: skip
        self._check_names()
        self._check_paths()

    def _check_ray(self) -> None:
        """Refuse what the steps of a Ray job do not have."""
        for flag, is_given in (
            ("--array", self.array is not None), ("--spares", self.num_spares > 0), ("--mig", bool(self.mig)),
            ("--container", self.container is not None), ("--launcher", self.launcher != "auto"),
        ):  # fmt: skip
            if is_given:
                raise ConfigError(f"{flag} does not work with --ray, which starts one Ray on all nodes: leave it out")

    @property
    def all_nodes(self) -> int:
        """Nodes of the job, including the spares."""
        return self.num_nodes + self.num_spares

    def _check_names(self) -> None:
        for flag, value, pattern in (
            ("--name", self.name, _NAME),
            ("--account", self.account, _NAME),
            ("--partition", self.partition, _NAMES),
            ("--qos", self.qos, _NAME),
            ("--reservation", self.reservation, _NAME),
            ("--constraint", self.constraint, _CONSTRAINT),
            ("--switches", self.switches, _SWITCHES),
            ("--mig", self.mig, _MIG),
            ("--transport", self.transport, _NAME),
            *(("--module", name, _MODULE) for name in self.modules),
            *(("--env", name, _VARIABLE) for name in self.variables),
            *(("--directive", name, _DIRECTIVE) for name in self.directives),
        ):
            if (value or flag in ("--name", "--module", "--env", "--directive")) and not pattern.fullmatch(value):
                raise ConfigError(f"{flag} {value!r} is not a name that Slurm accepts: {_RULES.get(flag, _PLAIN_RULE)}")
        for name, value in self.variables.items():
            writable(value, f"--env {name}")
            if name in OWN_NAMES or name.startswith("SLURM_"):
                raise ConfigError(f"--env {name}: the script or Slurm sets that variable itself; choose another name")
        for name, value in self.directives.items():
            one_line(value, f"--directive {name}")

    def _check_paths(self) -> None:
        for what, path in (("--run-dir", str(self.run_dir)), ("working folder", str(self.work_dir))):
            one_line(path, what)
            odd = next((c for c in path if c in "'\\%"), "")
            if odd:
                raise ConfigError(f"{what} {path!r} has a {odd}, which Slurm's header cannot hold: choose another")
            if not path.startswith("/"):
                raise ConfigError(f"{what} {path!r} must be a full path")
        for path in (
            *self.copied_paths,
            *self.mounted_paths,
            *([self.venv] if self.venv else []),
            *([str(self.array.manifest)] if self.array else []),
        ):
            if not one_line(path, "the path").startswith("/"):
                raise ConfigError(f"{path!r} must be a full path: the job may start in another folder")
        names = [Path(path).name for path in self.copied_paths]
        if len(set(names)) != len(names) or "" in names:
            raise ConfigError("--copy has / or two paths with the same last name: rename one, or leave it out")


_PLAIN_RULE = "use letters, digits and . _ + -"
_RULES = {
    "--partition": "use letters, digits and . _ + -, and a comma between several: a100,h100",
    "--constraint": "use features joined by & and |, such as 'a100|h100&nvlink'",
    "--switches": "write a number, or number@time such as 1@12:00:00",
    "--mig": "write a profile such as 1g.10gb",
    "--env": "write NAME=VALUE with letters, digits and _ in the name",
    "--directive": "write NAME=VALUE, such as exclude=node7",
    "--module": "use letters, digits and . _ + - /",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScript:
    """The text of a job script, and its notes for the user."""

    text: str
    notes: tuple[str, ...]
    """All notes. The script has them as comments."""
    num_warnings: int = 0
    """The first `num_warnings` notes are about this request; the others say how well the profile is tested."""

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.notes[: self.num_warnings]
