"""Files that a user names: a plain file is replaced whole, a link stays, a device or pipe is written, never replaced.

Device nodes are made in the test's own folder: a mistake must not touch the machine's /dev/null.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalewright.errors import DocumentError
from scalewright.records.documents import document, write_bytes, write_document, write_text

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
PREDICT = ("predict", "--model", "llama3-8b", "--system", "leonardo", "--layout", "tp=4,dp=2,mbs=1,gbs=16")


def make_device(path: Path, kind: int, numbers: tuple[int, int]) -> None:
    try:
        os.mknod(path, 0o666 | kind, os.makedev(*numbers))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")


@pytest.fixture
def null(tmp_path: Path) -> Path:
    """A null device of the test's own; a user other than root cannot make one, nor replace the machine's."""
    path = tmp_path / "null"
    if os.geteuid() == 0:
        make_device(path, stat.S_IFCHR, (1, 3))
    else:
        path.symlink_to(os.devnull)
    return path


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], bytes]]]:
    """A pipe with a name, and what its reader got once the writer has closed it."""
    path, received = tmp_path / "pipe", list[bytes]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()

    def read() -> bytes:
        reader.join(timeout=30)
        return received[0]

    yield path, read
    assert path.is_fifo()


def test_a_device_is_written_and_stays_a_device(null: Path) -> None:
    write_text(null, "gone")
    write_document(null, document("plan", {}))
    assert null.is_char_device()
    assert [path.name for path in null.parent.iterdir()] == ["null"]


def test_a_link_to_a_device_stays_and_so_does_the_device(null: Path) -> None:
    link = null.with_name("link")
    link.symlink_to("null")
    write_text(link, "gone")
    assert null.is_char_device()
    assert link.readlink() == Path("null")


def test_a_pipe_gets_all_of_it(pipe: tuple[Path, Callable[[], bytes]]) -> None:
    path, read = pipe
    content = bytes(range(256)) * 4096  # more than a pipe holds
    write_bytes(path, content)
    assert read() == content


def test_commands_write_to_devices_and_pipes(
    null: Path, pipe: tuple[Path, Callable[[], bytes]], tmp_path: Path, cli: Cli
) -> None:
    path, read = pipe
    assert cli(*PREDICT, "--out", str(path)).returncode == 0
    assert read().startswith(b'{\n  "schema": "scalewright.prediction/')
    plan = ("plan", "--model", "llama3-8b", "--system", "leonardo", "--gpus", "8", "--global-batch", "16")
    done = cli(*plan, "--emit", "torchtitan", "--emit-to", str(null), "--out", str(null))
    assert done.returncode == 0, done.stderr
    plot = tmp_path / "plot.png"
    plot.symlink_to(null)
    assert cli(*PREDICT, "--plot", str(plot)).returncode == 0
    assert null.is_char_device()
    assert plot.is_symlink()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_written_in_order(tmp_path: Path, name: str) -> None:
    """Into a file as the shell redirects it, where opening it again would cut it, and into a pipe."""
    code = (
        "import sys; from pathlib import Path; from scalewright.records.documents import write_text\n"
        f"print('before'); write_text(Path({name!r}), 'middle\\n'); print('after')"
    )
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    assert (tmp_path / "log").read_text() == "before\nmiddle\nafter\n"
    piped = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert piped.stdout == "before\nmiddle\nafter\n"


def test_a_link_to_a_file_stays_and_the_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_text("old")
    (tmp_path / "link").symlink_to("far/file")
    (tmp_path / "second").symlink_to("link")
    write_text(tmp_path / "second", "new")
    assert [str((tmp_path / name).readlink()) for name in ("second", "link")] == ["link", "far/file"]
    assert (tmp_path / "far" / "file").read_text() == "new"
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["file"]


def test_a_link_to_nothing_makes_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("far/file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_text() == "new"


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(DocumentError, match="cannot be written: Too many levels of symbolic links"):
        write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()


def test_folders_and_sockets_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, refused: Refused
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)  # the path of a socket may have 107 characters
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    for name, kind in (("folder", "is a folder; name a file in it"), ("socket", "is a socket, not a file")):
        assert f"{tmp_path / name}: {kind}" in refused(cli(*PREDICT, "--out", str(tmp_path / name)))
    assert (tmp_path / "socket").is_socket()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
@pytest.mark.parametrize(
    ("kind", "numbers", "reason"),
    [
        (stat.S_IFBLK, (7, 250), "is a block device, not a file; name another file"),
        (stat.S_IFCHR, (120, 250), "cannot be written: No such device or address; choose another place"),
    ],
)
def test_devices_that_cannot_take_a_file_are_refused(
    tmp_path: Path, kind: int, numbers: tuple[int, int], reason: str
) -> None:
    """A disk, and a device with a number for local use, which no driver has."""
    path = tmp_path / "device"
    make_device(path, kind, numbers)
    with pytest.raises(DocumentError, match=f"device: {reason}"):
        write_text(path, "new")
    assert stat.S_IFMT(path.stat().st_mode) == kind
