"""The command line as a process of its own per call, without starting Python for each.

`ForkedCli` starts this file as a server that has imported what the commands import and forks for every call. The
child has the folder, environment and files of the call, and ends as `python -m scalewright` does. What Python itself
reads when it starts (PYTHONPATH, the locale) cannot be given to it: such a call needs a fresh process.

A server with ranks has imported PyTorch as well, and a command that starts ranks forks them too: importing PyTorch
takes longer than most ranks work. Ranks that torchrun, Slurm or a test starts itself are fresh processes.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_")
NUM_FILES = 3
MOST_BYTES = 1 << 20
SERVER_S = 600.0
"""How long the server may take to answer, which at first imports everything."""
PLOTS = ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.figure")
EXTRAS = (*PLOTS, "jinja2", "numpy", "rich.table", "tree_sitter", "tree_sitter_bash")
"""Slow imports that several commands make when they are called."""
RANKS = "scalewright.run."
KEPT_OUT = (RANKS, "scalewright.__main__")
"""What no command imports: the ranks, with torch, and the door that this file stands in for."""
WITH_RANKS = "with-ranks"


class ForkedCli:
    """The client: `run` does what `subprocess.run` does with `python -m scalewright`."""

    def __init__(self, env: Mapping[str, str], *, with_ranks: bool = False) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno()), *([WITH_RANKS] if with_ranks else [])]
        self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=dict(env), stdin=subprocess.DEVNULL)
        theirs.close()
        self._read_at_start = _read_at_start(env)
        self._call = 0
        self._calling = threading.Lock()

    def can_run_in(self, env: Mapping[str, str]) -> bool:
        """Whether Python would have started as the server did."""
        return _read_at_start(env) == self._read_at_start

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Take the server for a call; false where another thread has it, since it makes one call at a time."""
        is_mine = self._calling.acquire(blocking=False)
        try:
            yield is_mine
        finally:
            if is_mine:
                self._calling.release()

    def close(self) -> None:
        self._socket.close()
        self._server.wait(timeout=30)

    def run(
        self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], input: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        call = self.start(args, cwd=cwd, env=env, input=input)
        try:
            streams = call.communicate(timeout)
        except TimeoutError:
            call.kill()
            raise subprocess.TimeoutExpired(list(args), timeout) from None
        return subprocess.CompletedProcess(list(args), call.returncode or 0, *streams)

    def start(self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], input: str | None = None) -> StartedCall:
        """A call that goes on, to be signalled and waited for before the next one."""
        self._call += 1
        request = json.dumps({"call": self._call, "args": list(args), "cwd": str(cwd), "env": dict(env)}).encode()
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed with the call
        with tempfile.TemporaryFile() as given:
            given.write((input or "").encode())
            given.seek(0)
            files = array.array("i", [given.fileno(), out.fileno(), err.fileno()])
            self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        return StartedCall(self, self._answer(SERVER_S), out, err)

    def has_answer(self) -> bool:
        return bool(select.select([self._socket], [], [], 0.0)[0])

    def _answer(self, timeout: float) -> int:
        """The next answer to this call; one to a call that was given up may come before it."""
        self._socket.settimeout(timeout)
        while True:
            answer = self._socket.recv(64).split()
            assert answer, "the server of the command line has ended"
            if int(answer[0]) == self._call:
                return int(answer[1])


class StartedCall:
    """A command that runs: what `subprocess.Popen` offers, as far as tests use it."""

    def __init__(self, server: ForkedCli, pid: int, out: IO[bytes], err: IO[bytes]) -> None:
        self.pid, self.returncode = pid, None
        self._server, self._files = server, (out, err)

    returncode: int | None

    def poll(self) -> int | None:
        if self.returncode is None and self._server.has_answer():
            self._wait(SERVER_S)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, if it runs, and wait for that."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait(SERVER_S)
        for file in self._files:
            file.close()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it printed until its end, stdout and stderr."""
        if self.returncode is None:
            self._wait(timeout)
        out, err = (_text(file.fileno()) for file in self._files)
        for file in self._files:
            file.close()
        return out, err

    def _wait(self, timeout: float) -> None:
        self.returncode = self._server._answer(timeout)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


def _text(file: int) -> str:
    size = os.fstat(file).st_size
    return os.pread(file, size, 0).decode().replace("\r\n", "\n")


def _serve(server: socket.socket) -> None:
    """Until the client goes. Returns in the children only, where the call is set up and is to be made."""
    while True:
        request, files, _, _ = socket.recv_fds(server, MOST_BYTES, NUM_FILES)
        if not request:
            sys.exit(0)
        call = json.loads(request)
        pid = os.fork()
        if pid == 0:
            server.close()
            _become(call, files)
            return
        for file in files:
            os.close(file)
        server.send(f"{call['call']} {pid}".encode())
        server.send(f"{call['call']} {_code_of(pid, server)}".encode())


def _code_of(pid: int, server: socket.socket) -> int:
    """The exit code of the child; without a client nobody waits for it, and it is killed."""
    child = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([child, server], [], [])
        if child not in ready:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(child)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(call: Mapping[str, object], files: Sequence[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(str(call["cwd"]))
    os.environ.clear()
    os.environ.update(call["env"])  # type: ignore[call-overload]
    time.tzset()
    sys.argv = ["scalewright", *call["args"]]  # type: ignore[misc]


def _end(command: Callable[[], object]) -> NoReturn:
    """As Python ends, but without taking apart what was imported: that takes longer than most calls."""
    code: object = 0
    try:
        command()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 1)


class ForkingPopen(subprocess.Popen[Any]):
    """Starts a rank by a fork of this process, which has imported what it needs; anything else as ever."""

    def _execute_child(self, args: Any, *options: Any) -> None:
        if not isinstance(args, list) or args[1:3] != ["-m", "scalewright.run"]:
            super()._execute_child(args, *options)  # type: ignore[misc]
            return
        cwd, env, pipes, is_session = options[4], options[5], options[9:15], options[20]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become_rank(args[3:], cwd, env, pipes, is_session=is_session)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _become_rank(
    args: list[str], cwd: str | None, env: Mapping[str, str] | None, pipes: tuple[int, ...], *, is_session: bool
) -> NoReturn:
    from scalewright.run.__main__ import main as run_rank

    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):  # of the launcher: a fresh process would not have it
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if is_session:
        os.setsid()
    for number, file in enumerate((pipes[0], pipes[3], pipes[5])):
        if file != -1:
            os.dup2(file, number)
    for file in (pipes[1], pipes[2], pipes[4]):  # the launcher's ends
        if file != -1:
            os.close(file)
    if cwd is not None:
        os.chdir(cwd)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    sys.argv = ["-m", *args]
    _end(lambda: sys.exit(run_rank(args)))


def _import_commands(*, with_ranks: bool) -> None:
    import scalewright

    names = [module.name for module in pkgutil.walk_packages(scalewright.__path__, "scalewright.")]
    kept_out = tuple(name for name in KEPT_OUT if not (with_ranks and name == RANKS))
    for name in (*EXTRAS, *names):
        if not name.startswith(kept_out):
            with suppress(ImportError, SyntaxError):  # the call that needs it tells
                import_module(name)


def _read_catalogue() -> None:
    """Parse the files of the package once for all calls. A call that finds another text in a file parses it anew."""
    from scalewright.catalog.library import Catalog, packaged_data
    from scalewright.catalog.types import KINDS
    from scalewright.sites.loader import load_site, packaged_sites

    catalog = Catalog((packaged_data(),))
    for kind in KINDS:
        catalog.readable(kind)
    for path in packaged_sites().glob("*.toml"):
        load_site(path)


def keep_commands() -> None:
    """Build Typer's tree of commands once: it depends on the code alone and takes most of the time of a short call."""
    import typer

    from scalewright.cli.main import app

    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)


if __name__ == "__main__":
    from scalewright.cli.main import main

    is_with_ranks = sys.argv[2:] == [WITH_RANKS]
    _import_commands(with_ranks=is_with_ranks)
    keep_commands()
    _read_catalogue()
    if is_with_ranks:
        subprocess.Popen = ForkingPopen  # type: ignore[misc]
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _end(main)
