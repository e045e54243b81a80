"""Roles of a run: what each gets, and what the supervisor does when one dies, fails or is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.errors import ConfigError
from scalewright.launch.roles.division import (
    Role,
    check_engines_fit,
    divided_cores,
    divided_gpus,
    divided_nodes,
    roles_of,
    visible_devices,
)
from scalewright.launch.roles.leftovers import end_leftovers, write_processes
from scalewright.launch.roles.supervisor import RoleObserver, Supervisor
from scalewright.launch.roles.worlds import code_of, step_command, step_environment
from scalewright.records.documents import document
from scalewright.records.hybrid import read_timeline
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.run.world import World

FOREVER = "import time; time.sleep(60)"


def run_of(path: Path) -> RunDirectory:
    return RunDirectory.create_or_resume(path, document("some-run", {}))


def roles(path: Path, *, trainer: int = 1, engines: tuple[int, ...] = (1, 1)) -> list[Role]:
    return roles_of(run_of(path), num_trainer_ranks=trainer, engine_ranks=engines)


class PlainWorld:
    """A role that is one small program."""

    def __init__(self, role: Role, code: str) -> None:
        self._role = role
        self._process = subprocess.Popen([sys.executable, "-S", "-c", code])

    @property
    def pids(self) -> list[int]:
        return [self._process.pid]

    def poll(self) -> int | None:
        code = self._process.poll()
        return None if code is None else code_of(self._role, code)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Programs:
    """Which program a role runs at each of its starts; the last one stays."""

    def __init__(self, **programs: list[str]) -> None:
        self.programs = programs
        self.worlds: list[tuple[str, PlainWorld]] = []

    def __call__(self, role: Role, attempt: int) -> PlainWorld:
        chosen = self.programs.get(role.name.replace("-", "_"), [FOREVER])
        world = PlainWorld(role, chosen[min(attempt, len(chosen) - 1)])
        self.worlds.append((role.name, world))
        return world

    def assert_all_ended(self) -> None:
        assert [name for name, world in self.worlds if world.poll() is None] == []

    def num_starts(self, name: str) -> int:
        return sum(one == name for one, _ in self.worlds)


def supervised(path: Path, programs: Programs, **options: object) -> tuple[int, Supervisor, list[str]]:
    notes: list[str] = []
    supervisor = Supervisor(
        RunDirectory(path), roles(path), start=programs, observer=RoleObserver(on_note=notes.append), **options,  # type: ignore[arg-type]
    )  # fmt: skip
    code = supervisor.supervise()
    programs.assert_all_ended()
    return code, supervisor, notes


def test_it_ends_with_the_trainer_and_leaves_no_process(tmp_path: Path) -> None:
    programs = Programs(trainer=["import time; time.sleep(0.5)"])
    code, supervisor, _ = supervised(tmp_path / "run", programs)
    assert code == 0
    assert supervisor.num_restarts == {"controller": 0, "trainer": 0, "engine-0": 0, "engine-1": 0}
    assert [one for one, _ in programs.worlds] == ["controller", "trainer", "engine-0", "engine-1"]
    assert not list((tmp_path / "run").rglob("processes.json"))


def test_a_role_that_died_is_started_again_and_counted(tmp_path: Path) -> None:
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    programs = Programs(
        trainer=[killed, "import time; time.sleep(1)"],
        engine_1=["raise SystemExit(3)", FOREVER],
        controller=[killed, FOREVER],
    )
    code, supervisor, notes = supervised(tmp_path / "run", programs)
    assert code == 0
    assert supervisor.num_restarts == {"controller": 1, "trainer": 1, "engine-0": 0, "engine-1": 1}
    restarts = {span.of: span.detail for span in read_timeline(RunDirectory(tmp_path / "run"))}
    assert restarts["trainer"] == "was killed by SIGKILL; start 2"
    assert restarts["engine-1"] == "ended with exit code 3; start 2"
    assert "controller was killed by SIGKILL: started again" in notes


def test_an_engine_that_dies_again_and_again_is_left_out(tmp_path: Path) -> None:
    programs = Programs(engine_0=["raise SystemExit(3)"], trainer=["import time; time.sleep(1.5)"])
    code, _, notes = supervised(tmp_path / "run", programs, most_in_a_row=2)
    assert code == 0
    assert programs.num_starts("engine-0") == 3
    assert any(note.startswith("engine-0 is left out: ended with exit code 3 3 times in a row") for note in notes)


@pytest.mark.parametrize("name", ["trainer", "controller"])
def test_a_run_whose_trainer_or_controller_cannot_start_ends(tmp_path: Path, name: str) -> None:
    code, _, _ = supervised(tmp_path / "run", Programs(**{name: ["raise SystemExit(3)"]}), most_in_a_row=1)
    info = RunDirectory(tmp_path / "run").read_exit_info()
    assert (code, info is not None and info.code) == (3, 3)
    assert info is not None
    assert f"the {name} ended with exit code 3 2 times in a row" in info.reason


def test_without_any_engine_the_run_ends(tmp_path: Path) -> None:
    programs = Programs(engine_0=["raise SystemExit(3)"], engine_1=["raise SystemExit(3)"])
    code, _, _ = supervised(tmp_path / "run", programs, most_in_a_row=0)
    info = RunDirectory(tmp_path / "run").read_exit_info()
    assert info is not None
    assert (code, info.reason[:20]) == (3, "no engine is left; e")


def test_bad_input_of_any_role_is_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "run"
    roles(path)
    engine = RunDirectory(RunDirectory(path).role("engine-0"))
    info = {"reason": "the scores are not finite", "job": "", "attempt": 0, "rank": 0, "last_checkpoint": None}
    doc = document("exit-info", {"code": 2, "time": 0.0, **info})
    write = f"import pathlib; pathlib.Path({str(engine.exit_info)!r}).write_text({json.dumps(doc)!r})"
    script = f"{write}; raise SystemExit(2)"
    programs = Programs(engine_0=[script])
    code, _, _ = supervised(path, programs)
    end = RunDirectory(path).read_exit_info()
    assert end is not None
    assert (code, end.code, end.reason) == (2, 2, "engine-0: the scores are not finite")
    assert programs.num_starts("engine-0") == 1


def test_a_lost_node_takes_its_engine_but_not_the_run(tmp_path: Path) -> None:
    programs = Programs(engine_1=["raise SystemExit(1 + 128)"], trainer=["import time; time.sleep(0.8)"])
    code, _, notes = supervised(tmp_path / "run", programs, is_lost=lambda role: role.name == "engine-1")
    assert (code, programs.num_starts("engine-1")) == (0, 1)
    assert any("engine-1 is left out: its node" in note for note in notes)


def test_a_lost_node_of_the_trainer_asks_for_another_attempt(tmp_path: Path) -> None:
    programs = Programs(trainer=["raise SystemExit(137)"])
    code, _, _ = supervised(tmp_path / "run", programs, is_lost=lambda role: role.kind == "trainer")
    assert code == 75


def test_a_stop_goes_to_the_trainer_which_saves(tmp_path: Path) -> None:
    saves = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (time.sleep(0.3), sys.exit(75)))\n"
        "time.sleep(60)"
    )
    timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    timer.start()
    programs = Programs(trainer=[saves])
    code, _, _ = supervised(tmp_path / "run", programs)
    assert code == 75
    assert programs.num_starts("trainer") == 1


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_processes_of_a_killed_supervisor_are_ended_first(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    left = subprocess.Popen([sys.executable, "-S", "-c", stubborn], stdout=subprocess.PIPE)
    other = subprocess.Popen([sys.executable, "-S", "-c", FOREVER])
    try:
        assert left.stdout is not None
        left.stdout.readline()
        write_processes(directory, [left.pid, other.pid])
        doc = json.loads(directory.processes.read_text())
        doc["processes"][1]["started"] += 1
        directory.processes.write_text(json.dumps(doc))
        assert end_leftovers([directory], grace_s=0.3) == 1
        wait_until(lambda: left.poll() is not None)
        assert left.returncode == -signal.SIGKILL
        assert other.poll() is None, "a process with another start is somebody else"
        assert not directory.processes.exists()
        directory.processes.write_text("{torn")
        assert end_leftovers([directory]) == 0
    finally:
        for process in (left, other):
            process.kill()
            process.communicate()


def test_cores_are_divided_and_nobody_is_bound_if_they_do_not_suffice(tmp_path: Path) -> None:
    chosen = roles(tmp_path / "run", trainer=2, engines=(1, 1))
    shares = divided_cores(range(8), chosen)
    assert shares == {"trainer": (0, 1, 2, 3), "engine-0": (4, 5), "engine-1": (6, 7)}
    assert divided_cores(range(3), chosen) == {}


def test_each_rank_gets_a_gpu_of_its_own(tmp_path: Path) -> None:
    chosen = roles(tmp_path / "run", trainer=2, engines=(2, 1))
    assert divided_gpus(8, chosen) == {"trainer": (0, 1), "engine-0": (2, 3), "engine-1": (4,)}
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "4,5,6"}, (1, 2)) == "5,6"
    assert visible_devices({}, (1, 2)) == "1,2"


def test_nodes_are_divided_between_trainer_and_engines(tmp_path: Path) -> None:
    chosen = roles(tmp_path / "run", trainer=4, engines=(2, 2, 1))
    shares = divided_nodes(["a", "b", "c", "d"], chosen, most_ranks=2)
    assert shares == {
        "controller": ("a",), "trainer": ("a", "b"), "engine-0": ("c",), "engine-1": ("d",), "engine-2": ("c",)
    }  # fmt: skip
    alone = divided_nodes(["a"], roles(tmp_path / "one"), most_ranks=4)
    assert set(alone.values()) == {("a",)}
    with pytest.raises(ConfigError, match="engine-0 has 8 ranks, and 1 nodes with 2 each"):
        divided_nodes(["a", "b"], roles(tmp_path / "big", engines=(8,)), most_ranks=2)


def test_more_engines_than_devices_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="3 engines with 3 ranks on 2 cores: each needs a core of its own; give at most 2"
    ):
        check_engines_fit(num_trainer_ranks=1, engine_ranks=(1, 1, 1), num_gpus=0, num_cores=2)
    with pytest.raises(ConfigError, match=r"beside 6 of the trainer on 8 GPUs.*give at most 2 ranks of engines"):
        check_engines_fit(num_trainer_ranks=6, engine_ranks=(2, 2), num_gpus=8, num_cores=64)
    check_engines_fit(num_trainer_ranks=4, engine_ranks=(2, 2), num_gpus=8, num_cores=64)


def test_a_step_of_a_role_is_on_its_own_nodes_and_finds_its_rank(tmp_path: Path) -> None:
    (engine,) = [role for role in roles(tmp_path / "run", engines=(2,)) if role.kind == "engine"]
    engine = Role(kind="engine", num_ranks=2, path=engine.path, run_path=engine.run_path, nodes=("c",))
    command = step_command(engine, has_gpus=True)
    assert command[:3] == ["srun", "--exact", "--gpus-per-node=2"]
    assert {"--nodelist=c", "--ntasks=2", "--kill-on-bad-exit=1"} <= set(command)
    assert "--overlap" in step_command(engine, has_gpus=False)
    outer = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "RANK": "0", "A": "b"}
    env = step_environment(outer, engine, attempt=0)
    assert {"SLURM_JOB_ID", "A", "MASTER_PORT", "SCALEWRIGHT_HELD"} == set(env)
    inside = {"SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "c"}
    world = World.from_environment(env | inside, host="c")
    assert (world.rank, world.world_size, world.master_port) == (1, 2, int(env["MASTER_PORT"]))


def test_the_record_of_a_rank_decides_over_its_status(tmp_path: Path) -> None:
    (trainer,) = [role for role in roles(tmp_path / "run") if role.kind == "trainer"]
    info = ExitInfo(code=2, reason="no", job="", attempt=0, rank=0, last_checkpoint=None, time=0.0)
    trainer.directory.write_exit_info(info)
    assert [code_of(trainer, status) for status in (-9, 0, 1)] == [-9, 0, 2]
