"""`Lab`: one practice cluster, from start to removal, and the faults that can be caused in it.

lab = Lab.up(LabSpec(num_nodes=4))
lab.run("sbatch", "--wait", "job.sh")
lab.kill_node("lab1-n2")
lab.down()
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from scalewright.errors import DocumentError, EnvironmentFailedError, UnknownNameError
from scalewright.lab import configuration
from scalewright.lab.accounting import start_accounting
from scalewright.lab.cgroups import memory_control, remove_groups
from scalewright.lab.configuration import Node, cluster_nodes
from scalewright.lab.ending import ended_by_exceptions, ignored_signals
from scalewright.lab.network import ShapedNetwork
from scalewright.lab.processes import Daemons, client_env
from scalewright.lab.spec import LabSpec, check_host
from scalewright.lab.state import LabPaths, LabState, claim, find_instance, lab_root

START_TIMEOUT_S = 180.0
"""Long, because a loaded host is slow. A daemon that ends is noticed at once."""
CLIENT_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 20.0
USABLE = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned"})


class Lab:
    """An existing practice cluster. Create one with `Lab.up`, open one with `Lab.open`."""

    def __init__(self, paths: LabPaths) -> None:
        self.paths = paths
        self.state = LabState.load(paths)
        self.daemons = Daemons(paths)

    @classmethod
    def up(cls, spec: LabSpec, id: str | None = None) -> Lab:
        """Start a cluster. If a part fails or a signal ends it, everything is stopped and only the logs remain."""
        check_host(spec)
        try:
            paths, _ = claim(id, spec, memory_control())
            lab = cls(paths)
            with ended_by_exceptions():
                try:
                    lab._start()
                except BaseException:
                    with ignored_signals():
                        lab._stop_all()
                        lab._remove(keep_logs=True)
                    raise
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentFailedError(
                f"the cluster could not be set up: {error}; its folder is in {lab_root()}"
            ) from error
        return lab

    @classmethod
    def open(cls, id: str) -> Lab:
        return cls(find_instance(id))

    @property
    def id(self) -> str:
        return self.paths.id

    @property
    def directory(self) -> Path:
        return self.paths.directory

    @property
    def conf(self) -> Path:
        return self.paths.slurm_conf

    @property
    def env(self) -> dict[str, str]:
        """The environment of this process, with Slurm's commands directed to this cluster only."""
        return client_env(os.environ, self.paths)

    @property
    def nodes(self) -> list[str]:
        return [node.name for node in self._nodes]

    @property
    def network(self) -> ShapedNetwork | None:
        """The network of the nodes, to change rates or get addresses; None: all nodes share the host's network."""
        spec = self.state.spec
        if not spec.network:
            return None
        index = self.state.network_index
        return ShapedNetwork(self.nodes, spec.link_rate_bytes_per_s, spec.link_latency_s, index=index)

    @property
    def summary(self) -> str:
        return configuration.spec_summary(self.state.spec)

    def run(self, *argv: str, timeout_s: float = CLIENT_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run a client command to its end."""
        return subprocess.run(
            argv, env=self.env, cwd=self.directory, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def node_states(self) -> dict[str, str]:
        """State of every node in Slurm's words: idle, mixed, down, ...; empty if no controller answers.

        A star after the state means that the node has not answered recently.
        """
        pairs = (line.split() for line in self._answer("sinfo", "-h", "-N", "-o", "%N %T").splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def wait_for_nodes(
        self, names: Iterable[str], states: Iterable[str], *, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Wait until each node is in one of `states`."""
        node_names, allowed = list(names), set(states)
        deadline = time.monotonic() + timeout_s
        while any(self.node_states().get(name) not in allowed for name in node_names):
            if time.monotonic() > deadline:
                current = self.node_states()
                shown = ", ".join(f"{name} is {current.get(name, 'unknown')}" for name in node_names)
                raise EnvironmentFailedError(f"after {timeout_s:g} s {shown}, not {' or '.join(sorted(allowed))}")
            time.sleep(0.2)

    def kill_node(self, name: str) -> None:
        """Cut the power of a node: its slurmd and all processes of its jobs end at once."""
        self.daemons.kill([self._slurmd(name)])

    def start_node(self, name: str, *, wait: bool = True) -> None:
        """Switch a node on again. It returns to service by itself."""
        node = self._node(name)
        self._start_node(node)
        if wait:
            self.wait_for_nodes([name], USABLE)

    def kill_controller(self) -> None:
        """Kill slurmctld before it can save its state. The changes of its last seconds may be lost."""
        self.daemons.kill(["slurmctld"])

    def stop_controller(self) -> None:
        self.daemons.stop("slurmctld")

    def start_controller(self) -> None:
        self.daemons.start("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])
        self.daemons.wait(self._controller_answers, "slurmctld", timeout_s=START_TIMEOUT_S)

    def restart_controller(self) -> None:
        """Stop slurmctld as an administrator does, and start it again. Running jobs continue."""
        self.stop_controller()
        self.start_controller()

    def down(self) -> None:
        """Stop every daemon and job of this instance, and remove everything that it created."""
        self._stop_all()
        self._remove()

    @property
    def _nodes(self) -> list[Node]:
        return cluster_nodes(self.paths, self.state)

    def _node(self, name: str) -> Node:
        for node in self._nodes:
            if node.name == name:
                return node
        raise UnknownNameError(f"node of {self.id}", name, self.nodes)

    def _slurmd(self, name: str) -> str:
        return f"slurmd-{self._node(name).name}"

    def _start(self) -> None:
        if network := self.network:
            network.up(on_claim=self._joined)
        host = socket.gethostname().partition(".")[0]
        self._write_files(host)
        self._start_munge()
        if self.state.spec.accounting:
            start_accounting(self.paths, self.state, self.daemons, self.run, host)
        self.start_controller()
        for node in self._nodes:
            self._start_node(node)
        for node in self._nodes:
            self.daemons.wait(
                lambda name=node.name: self.node_states().get(name) in USABLE,  # type: ignore[misc]
                self._slurmd(node.name),
                timeout_s=START_TIMEOUT_S,
            )
        if self.state.spec.accounting:
            self.daemons.wait(self._is_registered, "slurmctld", timeout_s=START_TIMEOUT_S)

    def _joined(self, index: int) -> None:
        self.state = self.state.on_network(index)
        self.state.save(self.paths)

    def _write_files(self, host: str) -> None:
        paths, state = self.paths, self.state
        for folder in ("state", "spool"):
            (paths.directory / folder).mkdir()
        paths.munge_key.touch(mode=0o600)
        paths.munge_key.write_bytes(secrets.token_bytes(128))
        self._make_devices()
        paths.slurm_conf.write_text(configuration.slurm_conf(paths, state, host))
        (paths.etc / "gres.conf").write_text(configuration.gres_conf(paths, state))
        (paths.etc / "cgroup.conf").write_text(configuration.cgroup_conf(state))
        (paths.etc / "topology.conf").write_text(configuration.topology_conf(paths, state))
        paths.hosts.write_text(configuration.hosts_file(paths, state, Path("/etc/hosts").read_text()))

    def _make_devices(self) -> None:
        try:
            for i in range(self.state.spec.num_gpus_per_node):
                os.mknod(self.paths.devices / f"nvidia{i}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        except PermissionError as error:
            raise EnvironmentFailedError(
                f"device files cannot be created in {self.paths.devices}: start without GPUs (--gpus 0)"
            ) from error

    def _start_munge(self) -> None:
        paths = self.paths
        files = [
            f"--key-file={paths.munge_key}",
            f"--socket={paths.munge_socket}",
            f"--pid-file={paths.run}/munged.pid",
            f"--log-file={paths.log('munged')}",
            f"--seed-file={paths.run}/munge.seed",
        ]
        # --force: the folder may be below one that others can write to, such as /tmp. With it, munged only warns.
        self.daemons.start("munged", ["munged", "--foreground", "--force", *files])
        self.daemons.wait(paths.munge_socket.is_socket, "munged", timeout_s=START_TIMEOUT_S)

    def _start_node(self, node: Node) -> None:
        (self.directory / "spool" / node.name).mkdir(exist_ok=True)
        self.daemons.start(
            self._slurmd(node.name),
            ["slurmd", "-D", "-N", node.name, "-f", str(self.conf)],
            hostname=node.name,
            hosts=self.paths.hosts,
            network=self.network.namespace(node.name) if self.network else "",
        )

    def _answer(self, *argv: str) -> str:
        """Output of a client command; empty if it failed or hung."""
        try:
            done = self.run(*argv, timeout_s=ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout if done.returncode == 0 else ""

    def _controller_answers(self) -> bool:
        return "UP" in self._answer("scontrol", "ping")

    def _is_registered(self) -> bool:
        """Whether slurmdbd knows the controller. Jobs that run before that reach the accounting late."""
        port = self._answer("sacctmgr", "-n", "-P", "show", "cluster", self.id, "format=controlport").strip()
        return port not in ("", "0")

    def _stop_all(self) -> None:
        self.daemons.kill(self.daemons.names())

    def _remove(self, *, keep_logs: bool = False) -> None:
        if self.network:
            self.network.down()
        remove_groups(self.nodes)
        for entry in self.directory.iterdir():
            if keep_logs and entry == self.paths.logs:
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if not keep_logs:
            self.directory.rmdir()


def remove_instance(paths: LabPaths) -> None:
    """Remove an instance, even if its start failed or its document cannot be read."""
    try:
        lab = Lab(paths)
    except DocumentError:
        daemons = Daemons(paths)
        daemons.kill(daemons.names())
        shutil.rmtree(paths.directory)
    else:
        lab.down()
