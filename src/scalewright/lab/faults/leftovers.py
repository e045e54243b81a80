"""What a trial creates outside its folder: control groups, mounts, networks and processes, removed whatever happens.

Each is written down before it is created, in a folder that names the process that owns it. A trial removes its own at
its end. If that process was killed, the next trial, or `scalewright lab fault clean`, removes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scalewright.errors import EnvironmentFailedError
from scalewright.lab.cgroups import ROOT
from scalewright.lab.cluster import remove_instance
from scalewright.lab.daemon import start_ticks
from scalewright.lab.network import ShapedNetwork
from scalewright.lab.spec import search_path
from scalewright.lab.state import instances, lab_root

PREFIX = "scalewright-fault-"
_OWNER = re.compile(rf"{PREFIX}(\d+)-(\d+)-\w+")
COMMAND_TIMEOUT_S = 30.0
REMOVAL_S = 5.0
"""How long the kernel may take to let a group or a mount go after its processes ended."""


class Leftovers:
    """Everything that one trial created outside its folder. Use it as a context manager."""

    def __init__(self) -> None:
        root = lab_root()
        root.mkdir(parents=True, exist_ok=True)
        owner = f"{PREFIX}{os.getpid()}-{start_ticks(os.getpid()) or 0}-"
        self.folder = Path(tempfile.mkdtemp(prefix=owner, dir=root))
        """For files that the trial needs and nobody reads later, and for mounts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        release(self.folder)

    def note(self, what: str, value: Any) -> None:
        """Write something down before it is created."""
        with (self.folder / "created.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, "value": value}) + "\n")

    def process(self, pid: int) -> None:
        self.note("process", [pid, start_ticks(pid)])

    def group(self, controller: str) -> Path:
        """A new control group of version 1, inside of the group of this process."""
        path = _own_group(controller) / self.folder.name
        if not path.parent.is_dir():
            raise EnvironmentFailedError(f"{path.parent} does not exist: this fault needs control groups of version 1")
        self.note("group", str(path))
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise EnvironmentFailedError(f"{path}: {error.strerror}: control groups need root") from error
        return path

    def disk(self, num_bytes: int) -> Path:
        """A small file system in memory."""
        path = self.folder / "disk"
        path.mkdir()
        self.note("mount", str(path))
        done = _run("mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(path))
        if done.returncode:
            raise EnvironmentFailedError(f"a small disk cannot be mounted: {done.stderr.strip()}; it needs root")
        return path

    def network(self, names: tuple[str, ...], rate_bytes_per_s: float | None) -> ShapedNetwork:
        network = ShapedNetwork(names, rate_bytes_per_s)
        network.up(on_claim=lambda index: self.note("network", [index, list(names)]))
        return network


def sweep() -> list[Path]:
    """Remove what trials left behind whose process is gone; their folders."""
    swept = []
    for folder in sorted(lab_root().glob(f"{PREFIX}*")):
        owner = _OWNER.fullmatch(folder.name)
        if owner is None or folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            continue
        if start_ticks(int(owner.group(1))) == int(owner.group(2)):
            continue
        release(folder)
        swept.append(folder)
    return swept


def release(folder: Path) -> None:
    """Remove everything that is written down in a folder, the newest first, then the folder."""
    for what, value in reversed(_created(folder)):
        if what == "process":
            _end(*value)
        elif what == "group":
            _remove_group(Path(value))
        elif what == "mount":
            _run("umount", "--lazy", value)
        elif what == "network":
            ShapedNetwork(value[1], index=value[0]).down()
        elif what == "cluster":
            _remove_cluster(value)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_cluster(id: str) -> None:
    for paths in instances():
        if paths.id == id:
            remove_instance(paths)


def _own_group(controller: str) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        path = ROOT / controller / place.lstrip("/")
        if controller in controllers.split(",") and path.is_dir():
            return path
    return ROOT / controller  # in a container the path may be that of the host


def _created(folder: Path) -> list[tuple[str, Any]]:
    rows = []
    with contextlib.suppress(OSError):
        for line in (folder / "created.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                rows.append((str(row["what"]), row["value"]))
    return rows


def _end(pid: int, ticks: int | None) -> None:
    """Kill a process and everything below it, also what is stopped; not another process with the same id."""
    if ticks is None or start_ticks(pid) != ticks:
        return
    for one in [*descendants(pid), pid]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Processes below one, the nearest first."""
    below: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop(0)
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(word) for word in task.read_text().split()]
                below += children
                queue += children
    return below


def _remove_group(path: Path) -> None:
    """Move what is left to the parent group, then remove it; the kernel may need a moment."""
    until_s = time.monotonic() + REMOVAL_S
    while path.is_dir():
        with contextlib.suppress(OSError):
            for pid in (path / "cgroup.procs").read_text().split():
                (path.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            path.rmdir()
            return
        if time.monotonic() > until_s:
            return
        time.sleep(0.05)


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env={"PATH": search_path()}, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
