"""What hostile jobs aim at, and whether it is as it was."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.data.sandbox.types import SandboxOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A folder, two sockets, a process and a secret of the user."""

    folder: Path
    listeners: tuple[socket.socket, ...]
    bystander: subprocess.Popen[bytes]
    secret: str
    marker: str

    def arguments(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder), "port": self.listeners[0].getsockname()[1],
            "socket_path": str(self.folder / "socket"), "process": self.bystander.pid, "worker": os.getpid(),
            "secret": self.secret, "marker": self.marker, "home": str(Path.home()),
        }  # fmt: skip

    def damages(self, outcomes: Sequence[SandboxOutcome] = ()) -> list[str]:
        """What an attack reached; empty where all is as it was."""
        problems = []
        names = sorted(path.name for path in self.folder.iterdir())
        if names != ["kept", "socket"] or (self.folder / "kept").read_text() != self.secret:
            problems.append(f"the folder holds {names}")
        for place in (Path("/"), Path("/etc"), Path("/usr"), Path("/var/tmp"), Path.home()):
            if (place / "made").exists():
                problems.append(f"{place}/made was written")
        for listener in self.listeners:
            try:
                listener.accept()
                problems.append("somebody connected")
            except BlockingIOError:
                continue
        state = Path(f"/proc/{self.bystander.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if self.bystander.poll() is not None or state not in "SR":
            problems.append(f"the bystander is {state}")
        problems += [f"process {pid} goes on" for pid in self.left_processes()]
        for outcome in outcomes:
            if self.secret in f"{outcome.value}{outcome.stdout_tail}{outcome.stderr_tail}{outcome.why}":
                problems.append(f"{outcome.id} knows the secret")
        return problems

    def left_processes(self) -> list[int]:
        """Processes of attacks: they carry the marker as their name, or sleep for 98765 s."""
        left = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                name, command = (path / "comm").read_text().strip(), (path / "cmdline").read_bytes()
            except OSError:
                continue
            if name == self.marker[:15] or b"\x0098765\x00" in command:
                left.append(int(path.name))
        return left


@contextmanager
def open_canary(folder: Path) -> Iterator[Canary]:
    """A canary below a folder; its secret is in this process's environment too."""
    secret, marker = secrets.token_hex(16), f"attack-{secrets.token_hex(4)}"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    (folder / "kept").write_text(secret)
    os.environ["CANARY_SECRET"] = secret
    sleeper = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"]
    listeners = (
        socket.create_server(("127.0.0.1", 0)),
        _unix(str(folder / "socket")),
        _unix(f"\0{marker}"),
    )
    for listener in listeners:
        listener.setblocking(False)
    try:
        with subprocess.Popen(sleeper, stdin=subprocess.DEVNULL) as bystander:
            try:
                yield Canary(folder=folder, listeners=listeners, bystander=bystander, secret=secret, marker=marker)
            finally:
                bystander.kill()
    finally:
        del os.environ["CANARY_SECRET"]
        for listener in listeners:
            listener.close()


def _unix(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    return listener
