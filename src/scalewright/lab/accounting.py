"""Accounting of an instance: MariaDB, slurmdbd, and the account, users and QOS in them."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path

from scalewright.errors import EnvironmentFailedError
from scalewright.lab.configuration import ACCOUNT, DATABASE, DATABASE_USER, QOS_HIGH, QOS_LOW, slurmdbd_conf
from scalewright.lab.processes import Daemons, client_env
from scalewright.lab.state import LabPaths, LabState

SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
TABLE_FOLDERS = (Path("/usr/share/mysql"), Path("/usr/share/mariadb"))
START_TIMEOUT_S = 60.0
LOW_GRACE_S = 5
"""Time between the signal to a preempted job and its end. slurmctld checks only every 30 s."""

Client = Callable[..., subprocess.CompletedProcess[str]]


def start_accounting(paths: LabPaths, state: LabState, daemons: Daemons, client: Client, host: str) -> None:
    password = secrets.token_hex(16)
    conf = paths.etc / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(slurmdbd_conf(paths, state, host, password))
    _make_database(paths)
    _start_database(paths, state, daemons, password)
    daemons.start("slurmdbd", ["slurmdbd", "-D"])
    daemons.wait(lambda: client("sacctmgr", "-n", "show", "qos").returncode == 0, "slurmdbd", timeout_s=START_TIMEOUT_S)
    if problem := _fill(client, paths.id):
        log = paths.log("slurmdbd")
        raise EnvironmentFailedError(f"slurmdbd could not be set up: {problem}; its log is {log}")


def _server_options(paths: LabPaths) -> list[str]:
    # The data need not survive a crash of the host. Not waiting for the disk makes the start fast.
    return [
        "--no-defaults",
        "--user=root",
        f"--datadir={paths.database}",
        f"--tmpdir={paths.database_scratch}",  # in a shared folder, starting servers would delete each other's tables
        "--innodb-flush-method=nosync",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=0",
        "--innodb-log-file-size=16M",
        "--innodb-buffer-pool-size=64M",
        "--innodb-lock-wait-timeout=900",
    ]


def _make_database(paths: LabPaths) -> None:
    """Create only the system tables, in a second. mariadb-install-db also creates help and reports, in ten seconds."""
    folder = next((f for f in TABLE_FOLDERS if all((f / name).is_file() for name in SYSTEM_TABLES)), None)
    if folder is None:
        raise EnvironmentFailedError(f"no {SYSTEM_TABLES[0]} in {TABLE_FOLDERS[0]}: reinstall mariadb-server-core")
    paths.database.mkdir(mode=0o700)
    paths.database_scratch.mkdir(mode=0o700)
    tables = "".join((folder / name).read_text() + "\n" for name in SYSTEM_TABLES)
    done = subprocess.run(
        ["mariadbd", *_server_options(paths), "--bootstrap", "--max-allowed-packet=8M", "--net-buffer-length=16K"],
        # root of the host is root of the database, through the socket only
        input=f"create database mysql;\nuse mysql;\nset @auth_root_socket='root';\n{tables}",
        env=client_env(os.environ, paths),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    paths.log("mariadbd-bootstrap").write_text(done.stdout + done.stderr)
    if done.returncode:
        log = paths.log("mariadbd-bootstrap")
        raise EnvironmentFailedError(f"mariadbd could not create its system tables; its log is {log}")


def _start_database(paths: LabPaths, state: LabState, daemons: Daemons, password: str) -> None:
    account = f"{DATABASE_USER}@'127.0.0.1'"
    statements = paths.run / "init.sql"
    statements.touch(mode=0o600)
    statements.write_text(
        f"create database {DATABASE};\n"
        f"create user {account} identified by '{password}';\n"
        f"grant all on {DATABASE}.* to {account};\n"
    )
    socket = paths.run / "mariadb.socket"
    network = ["--bind-address=127.0.0.1", f"--port={state.database_port}", "--skip-name-resolve"]
    files = [f"--socket={socket}", f"--pid-file={paths.run}/mariadbd.pid", f"--init-file={statements}"]
    daemons.start("mariadbd", ["mariadbd", *_server_options(paths), *network, *files])
    # The socket appears after the statements have run.
    daemons.wait(socket.is_socket, "mariadbd", timeout_s=START_TIMEOUT_S)


def _fill(client: Client, cluster: str) -> str:
    """Enter the cluster, QOS, account and user into slurmdbd. Returns the first error; empty: none."""
    commands = (
        ("add", "cluster", cluster),
        ("add", "qos", QOS_LOW, "Priority=10", "PreemptMode=requeue", f"GraceTime={LOW_GRACE_S}"),
        ("add", "qos", QOS_HIGH, "Priority=1000", f"Preempt={QOS_LOW}"),
        ("modify", "qos", "normal", "set", "Priority=100", f"Preempt={QOS_LOW}"),
        ("add", "account", ACCOUNT, f"Description={ACCOUNT}", f"Organization={ACCOUNT}"),
        ("add", "user", "root", f"account={ACCOUNT}", f"DefaultAccount={ACCOUNT}"),
        ("modify", "user", "root", "set", f"DefaultAccount={ACCOUNT}"),
        ("modify", "user", "root", "set", f"qos=normal,{QOS_LOW},{QOS_HIGH}", "DefaultQOS=normal"),
    )
    for command in commands:
        done = client("sacctmgr", "-i", "-Q", *command)
        if done.returncode:
            return " ".join((done.stdout + done.stderr).split()) or f"sacctmgr {' '.join(command)} failed"
    return ""
