"""What a command and all its descendants took: wall time, processor time, and the largest sum of their memory.

python benchmarks/process_tree.py -- scalewright data run p.toml
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
INTERVAL_S = 0.25


def measured(command: list[str], label: Callable[[], str] | None = None) -> tuple[dict[str, Any], str]:
    """Seconds and bytes, the most memory under each name that `label` gave, and what the command wrote to stdout.

    Descendants that outlive their parents become ours, so that their time is counted too.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = _MemoryWatch(process.pid, label)
    watch.start()
    output, errors = process.communicate()
    wall_s = time.perf_counter() - began_s
    watch.is_over.set()
    watch.join()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}: {errors[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    by_label = {"pss_bytes_by_label": watch.by_label} if label is not None else {}
    return {"wall_s": wall_s, "cpu_s": cpu_s, **watch.most, **by_label}, output


class _MemoryWatch(threading.Thread):
    """Adds up the memory of a process and its descendants a few times a second."""

    def __init__(self, pid: int, label: Callable[[], str] | None) -> None:
        super().__init__(daemon=True)
        self.label, self.by_label = label, dict[str, float]()
        self.pid, self.is_over = pid, threading.Event()
        self.most = {"pss_bytes": 0.0, "anonymous_bytes": 0.0}

    def run(self) -> None:
        while not self.is_over.wait(INTERVAL_S):
            sums = {"pss_bytes": 0.0, "anonymous_bytes": 0.0}
            for pid in descendants(self.pid):
                sizes = _rollup(pid)
                sums["pss_bytes"] += 1024.0 * sizes.get("Pss:", 0)
                sums["anonymous_bytes"] += 1024.0 * sizes.get("Anonymous:", 0)
            if self.label is not None:
                name = self.label()
                self.by_label[name] = max(self.by_label.get(name, 0.0), sums["pss_bytes"])
            self.most = {key: max(self.most[key], value) for key, value in sums.items()}


def descendants(pid: int) -> list[int]:
    """A process and all below it, also those whose parent has ended and that this process has taken over."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid, *children.get(os.getpid(), [])]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.append(one)
            waiting += children.get(one, [])
    return found


def _rollup(pid: int) -> dict[str, int]:
    """Sums over the mappings of a process in kB; shared pages count by their share."""
    try:
        rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        return {row[0]: int(row[1]) for row in rows}
    except OSError:
        return {}


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[sys.argv.index("--") + 1 :])[0], indent=2))
