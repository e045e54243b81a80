"""The state of an instance: its folder, id and ports, and the document that describes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError, UnknownNameError
from scalewright.lab.spec import LabSpec
from scalewright.records.documents import document, read_document, write_document

PREFIX = "scalewright-lab-"
ID = re.compile(r"[a-z][a-z0-9]{0,11}")
# Below the ports that Linux gives to clients and those of ranks (20000 and up).
FIRST_PORT, LAST_PORT = 12000, 19000
MAX_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPaths:
    """Every file name of an instance."""

    directory: Path

    @property
    def id(self) -> str:
        return self.directory.name.removeprefix(PREFIX)

    @property
    def document(self) -> Path:
        return self.directory / "lab.json"

    @property
    def etc(self) -> Path:
        return self.directory / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def hosts(self) -> Path:
        return self.etc / "hosts"

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.socket"

    @property
    def munge_key(self) -> Path:
        return self.etc / "munge.key"

    @property
    def database(self) -> Path:
        return self.directory / "mysql"

    @property
    def database_scratch(self) -> Path:
        return self.directory / "mysql-scratch"

    @property
    def devices(self) -> Path:
        return self.directory / "dev"

    @property
    def logs(self) -> Path:
        return self.directory / "log"

    def log(self, daemon: str) -> Path:
        return self.logs / f"{daemon}.log"

    def record(self, daemon: str) -> Path:
        return self.run / f"{daemon}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabState:
    """An instance as its document describes it."""

    spec: LabSpec
    first_port: int
    memory_control: str
    """Who enforces memory limits: `cgroup` (the kernel) or `polling` (slurmd, every two seconds)."""
    network_index: int = 0
    """X of the links' 10.X.0.0/16; 0: the nodes share the host's network."""

    @property
    def controller_port(self) -> int:
        return self.first_port

    @property
    def accounting_port(self) -> int:
        return self.first_port + 1

    @property
    def database_port(self) -> int:
        return self.first_port + 2

    def node_port(self, index: int) -> int:
        return self.first_port + 3 + index

    @property
    def num_ports(self) -> int:
        return 3 + self.spec.num_nodes

    def save(self, paths: LabPaths) -> None:
        body = {"id": paths.id, **asdict(self)}
        write_document(paths.document, document("lab", body))

    @classmethod
    def load(cls, paths: LabPaths) -> LabState:
        doc = read_document(paths.document, "lab")
        values = {field.name: _value(doc, field.name, paths) for field in fields(cls)}
        try:
            return cls(**(values | {"spec": LabSpec(**values["spec"])}))
        except TypeError as error:
            raise DocumentError(f"{paths.document}: {error}: remove it with scalewright lab down {paths.id}") from error

    def on_network(self, index: int) -> LabState:
        return replace(self, network_index=index)


def _value(doc: dict[str, Any], name: str, paths: LabPaths) -> Any:
    if name not in doc:
        raise DocumentError(f"{paths.document}: has no {name!r}: remove it with scalewright lab down {paths.id}")
    return doc[name]


def lab_root() -> Path:
    """The folder of all instances."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    return Path(state_home, "scalewright") if state_home else Path("/tmp")


def instances() -> list[LabPaths]:
    """The instances of this user, sorted by id. Folders of other users are ignored."""
    return [
        LabPaths(directory=directory)
        for directory in sorted(lab_root().glob(f"{PREFIX}*"))
        if ID.fullmatch(directory.name.removeprefix(PREFIX)) and not directory.is_symlink() and _is_own(directory)
    ]


def find_instance(name: str) -> LabPaths:
    by_id = {paths.id: paths for paths in instances()}
    if name not in by_id:
        hint = f"instances in {lab_root()}: {', '.join(by_id) or 'none'}; start one with scalewright lab up"
        raise UnknownNameError("practice cluster", name, by_id, hint=hint)
    return by_id[name]


def claim(name: str | None, spec: LabSpec, memory_control: str) -> tuple[LabPaths, LabState]:
    """Reserve a folder and a block of ports. Without a name the instance is called lab1, lab2, ..."""
    if name is not None and not ID.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a name for a cluster: use a lower-case letter, then up to 11 letters or digits"
        )
    root = lab_root()
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root):
        taken = {paths.id: paths for paths in instances()}
        id = name or next(f"lab{i}" for i in range(1, len(taken) + 2) if f"lab{i}" not in taken)
        paths = LabPaths(directory=root / f"{PREFIX}{id}")
        if len(os.fsencode(paths.munge_socket)) > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(f"{paths.munge_socket} is too long for a socket: set XDG_STATE_HOME to a shorter path")
        if paths.document.exists():
            raise ConfigError(f"{id} exists already: choose another id, or remove it with scalewright lab down {id}")
        _make_folders(paths)
        state = LabState(spec=spec, first_port=0, memory_control=memory_control)
        state = replace(state, first_port=_free_block(state.num_ports, list(taken.values())))
        state.save(paths)
    return paths, state


def _make_folders(paths: LabPaths) -> None:
    try:
        paths.directory.mkdir(mode=0o755)
    except FileExistsError:
        # A failed start leaves only its logs. A folder with other files is not reused.
        if not _is_own(paths.directory) or {p.name for p in paths.directory.iterdir()} - {paths.logs.name}:
            raise EnvironmentFailedError(f"{paths.directory} has other files: choose another id") from None
    paths.directory.chmod(0o755)
    for folder in (paths.etc, paths.run, paths.logs, paths.devices):
        folder.mkdir(mode=0o755, exist_ok=True)


def _is_own(directory: Path) -> bool:
    try:
        return directory.lstat().st_uid == os.geteuid()
    except OSError:
        return False


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _free_block(num_ports: int, others: list[LabPaths]) -> int:
    claimed: set[int] = set()
    for paths in others:
        with contextlib.suppress(DocumentError):  # its ports may still be in use; `_is_free` checks that below
            state = LabState.load(paths)
            claimed |= set(range(state.first_port, state.first_port + state.num_ports))
    first = FIRST_PORT
    while first + num_ports <= LAST_PORT:
        busy = [port for port in range(first, first + num_ports) if port in claimed or not _is_free(port)]
        if not busy:
            return first
        first = busy[-1] + 1
    raise EnvironmentFailedError(f"no {num_ports} free ports in a row between {FIRST_PORT} and {LAST_PORT}: free some")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
