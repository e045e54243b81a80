"""Where instances live: names and ports that nobody else has, and processes that are ended only if they are ours."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError, UnknownNameError
from scalewright.lab.cluster import Lab, remove_instance
from scalewright.lab.configuration import cluster_nodes, gres_conf, slurm_conf, topology_conf
from scalewright.lab.daemon import start_ticks
from scalewright.lab.processes import Daemons
from scalewright.lab.spec import LabSpec
from scalewright.lab.state import LabPaths, LabState, claim, find_instance, instances

SMALL = LabSpec(num_nodes=2)


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Not pytest's own folder: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="lab-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        yield Path(directory, "scalewright")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no instance started."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def ports(state: LabState) -> set[int]:
    return set(range(state.first_port, state.first_port + state.num_ports))


def test_instances_get_names_folders_and_ports_of_their_own(root: Path) -> None:
    claims = [claim(None, SMALL, "polling"), claim("mine", SMALL, "polling"), claim(None, SMALL, "polling")]
    assert [paths.id for paths, _ in claims] == ["lab1", "mine", "lab2"]
    assert {paths.directory.parent for paths, _ in claims} == {root}
    assert len(set.union(*(ports(state) for _, state in claims))) == 3 * claims[0][1].num_ports
    assert [paths.id for paths in instances()] == ["lab1", "lab2", "mine"]
    paths, state = claims[1]
    assert LabState.load(paths) == state
    addresses = {node.address for paths, state in claims for node in cluster_nodes(paths, state)}
    assert len(addresses) == 6


def test_a_port_in_use_is_passed_over() -> None:
    paths, free = claim(None, SMALL, "polling")
    remove_instance(paths)
    with socket.create_server(("127.0.0.1", free.first_port + 1)):
        _, state = claim(None, SMALL, "polling")
    assert free.first_port + 1 not in ports(state)


@pytest.mark.parametrize("name", ["Lab", "1st", "a-b", "../x", "a" * 13])
def test_a_name_that_could_not_be_a_host_or_a_folder_is_refused(root: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="letter"):
        claim(name, SMALL, "polling")
    assert not root.exists()


def test_a_name_that_is_taken_is_refused_and_a_folder_of_another_kind_is_left_alone(root: Path) -> None:
    claim("mine", SMALL, "polling")
    with pytest.raises(ConfigError, match="exists already"):
        claim("mine", SMALL, "polling")
    foreign = root / "scalewright-lab-other" / "thesis.tex"
    foreign.parent.mkdir()
    foreign.write_text("years of work")
    with pytest.raises(EnvironmentFailedError, match="choose another id"):
        claim("other", SMALL, "polling")
    assert foreign.read_text() == "years of work"


def test_a_folder_too_deep_for_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("d" * 100)))
    with pytest.raises(ConfigError, match="too long for a socket"):
        claim(None, SMALL, "polling")


def test_an_unknown_instance_is_named_with_its_neighbours() -> None:
    claim("mine", SMALL, "polling")
    with pytest.raises(UnknownNameError, match="mine"):
        find_instance("mime")


def test_an_instance_whose_document_is_broken_can_still_be_removed() -> None:
    paths, _ = claim("mine", SMALL, "polling")
    paths.document.write_text('{"schema": "scalewright.lab/1"}')
    with pytest.raises(DocumentError, match="lab down mine"):
        Lab(paths)
    remove_instance(paths)
    assert instances() == []


def test_a_process_that_took_over_a_recorded_id_is_not_touched(stranger: subprocess.Popen[bytes]) -> None:
    paths, _ = claim("mine", SMALL, "polling")
    ticks = start_ticks(stranger.pid)
    assert ticks is not None
    paths.record("slurmctld").write_text(json.dumps({"pid": stranger.pid, "start_ticks": ticks - 1}))
    daemons = Daemons(paths)
    assert daemons.pid("slurmctld") is None
    remove_instance(paths)
    assert stranger.poll() is None
    assert not paths.directory.exists()


def test_a_recorded_process_is_ended(stranger: subprocess.Popen[bytes]) -> None:
    paths, _ = claim("mine", SMALL, "polling")
    record = {"pid": stranger.pid, "start_ticks": start_ticks(stranger.pid)}
    paths.record("slurmctld").write_text(json.dumps(record))
    remove_instance(paths)
    assert stranger.wait(timeout=10) != 0


def test_configuration_follows_the_size() -> None:
    paths = LabPaths(directory=Path("/x/scalewright-lab-a"))
    state = LabState(spec=LabSpec(num_nodes=3, num_gpus_per_node=1), first_port=12000, memory_control="polling")
    text = slurm_conf(paths, state, "host")
    assert text.count("NodeName=") == 3
    assert "Gres=gpu:a100:1" in text
    assert "OverMemoryKill" in text
    assert "preempt/qos" in text
    assert "nvidia0\n" in gres_conf(paths, state)
    assert topology_conf(paths, state).splitlines() == [
        "SwitchName=leaf1 Nodes=a-n1,a-n2",
        "SwitchName=leaf2 Nodes=a-n3",
        "SwitchName=spine Switches=leaf1,leaf2",
    ]
    bare = LabSpec(num_nodes=3, num_gpus_per_node=0, accounting=False)
    text = slurm_conf(paths, LabState(spec=bare, first_port=12000, memory_control="cgroup"), "host")
    assert [word for word in ("Gres", "preempt/qos", "slurmdbd", "OverMemoryKill") if word in text] == []
    assert "task/cgroup" in text


def test_a_link_without_a_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a network"):
        LabSpec(link_rate_bytes_per_s=1e6)
