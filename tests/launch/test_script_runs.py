"""What a rendered script does when it runs: exit codes, requeue, signals, images, transports."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from sandbox import Ran, environment, execute, make

from scalewright.errors import ConfigError
from scalewright.launch.script.render import render
from scalewright.launch.script.request import Container
from script_cases import SITES, request_for

GENERIC = SITES["generic"]


def run(folder: Path, site: str = "generic", /, env: dict[str, str] | None = None, **changes: object) -> Ran:
    changes = {"command": ("probe",), "run_dir": folder / "run", "work_dir": folder, "notice_s": 10, **changes}
    text = render(request_for(SITES[site], **changes), SITES[site]).text.replace("RANDOM % 15", "0")
    return execute(folder, text, **(env or {}))


@pytest.mark.parametrize(("code", "requeued", "reason"), [(0, False, "finished"), (7, False, "exit code 7"),
                                                          (75, True, "queued again")])  # fmt: skip
def test_exit_code_decides_whether_it_is_queued_again(tmp_path: Path, code: int, requeued: bool, reason: str) -> None:
    ran = run(make(tmp_path / "s"), env={"PROBE_EXIT": str(code)})
    assert (ran.code, ran.requeued) == (code, requeued), ran.stderr
    assert reason in str(ran.exit_info["reason"])
    assert ran.exit_info["code"] == code
    if requeued:
        assert (ran.folder / "scontrol.calls").read_text() == "requeue 4242 "


def test_job_that_was_queued_again_too_often_stops(tmp_path: Path) -> None:
    ran = run(make(tmp_path / "s"), env={"PROBE_EXIT": "75", "SLURM_RESTART_COUNT": "100"})
    assert (ran.code, ran.requeued) == (75, False)
    assert "queued again 100 times" in str(ran.exit_info["reason"])


def test_without_requeue_the_script_says_how_to_resume(tmp_path: Path) -> None:
    ran = run(make(tmp_path / "s"), env={"PROBE_EXIT": "75"}, requeue=False)
    assert (ran.code, ran.requeued) == (75, False)
    assert "submit the script again" in str(ran.exit_info["reason"])


def test_reason_that_the_run_itself_left_stays(tmp_path: Path) -> None:
    folder = make(tmp_path / "s")
    (folder / "bin" / "probe").write_text('#!/bin/bash\necho \'{"mine": 1}\' >"$SANDBOX/run/exit_info.json"\nexit 3\n')
    ran = run(folder)
    assert (ran.code, ran.exit_info) == (3, {"mine": 1})


RECORDED = """#!/bin/bash
cat >"$SANDBOX/run/exit_info.json" <<'END'
{
  "schema": "scalewright.exit-info/1",
  "code": CODE,
  "reason": "no step for 10.2 s after step 5 (limit 10.0 s): see stacks/",
  "job": "4242",
  "lost_another": LOST
}
END
echo 'SAYS' >&2
exit 137
"""
KILLED = "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0. Some of the step tasks have been OOM Killed."


@pytest.mark.parametrize(
    ("code", "lost", "says", "ends", "requeued", "words"),
    [
        (75, "false", "", 75, True, "no step for 10.2 s"),
        (3, "false", "", 3, False, "no step for 10.2 s"),
        (3, "true", "", 137, False, "no step for"),
        (3, "true", KILLED, 137, False, "out of memory"),
        (75, "false", KILLED, 75, True, "no step for 10.2 s"),
    ],
)
def test_the_code_and_reason_of_a_job_are_those_of_the_cause(
    tmp_path: Path, code: int, lost: str, says: str, ends: int, requeued: bool, words: str
) -> None:
    """srun says 137 for the rank that it killed; the rank that left first wrote why, or Slurm did."""
    folder = make(tmp_path / "s")
    text = RECORDED.replace("CODE", str(code)).replace("LOST", lost).replace("SAYS", says)
    (folder / "bin" / "probe").write_text(text)
    ran = run(folder)
    assert (ran.code, ran.requeued) == (ends, requeued), ran.stderr
    assert words in str(ran.exit_info["reason"])
    assert ran.exit_info["code"] == (ends if words == "out of memory" else code)


def test_a_port_that_somebody_listens_at_is_not_taken(tmp_path: Path) -> None:
    folder = make(tmp_path / "s")
    (folder / "bin" / "probe").write_text('#!/bin/bash\nprintf %s "$MASTER_PORT" >"$SANDBOX/run/port"\n')
    with free_listener(20500, 21000) as listener:
        port = int(listener.getsockname()[1])
        assert run(folder, env={"SLURM_JOB_ID": str(port - 20000)}).code == 0
    assert int((folder / "run" / "port").read_text()) == 20000 + (port - 20000 + 4177) % 10000


def free_listener(first: int, last: int) -> socket.socket:
    for port in range(first, last):
        listener = socket.socket()
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            listener.close()
            continue
        return listener
    raise AssertionError("no free port")


@pytest.mark.parametrize(("name", "code", "requeued"), [("USR1", 75, True), ("TERM", 75, False)])
def test_signal_reaches_the_ranks_while_the_shell_waits(tmp_path: Path, name: str, code: int, requeued: bool) -> None:
    folder = make(tmp_path / "s")
    (folder / "bin" / "probe").write_text(
        '#!/bin/bash\ntrap \'touch "$SANDBOX/run/saved"; exit 75\' USR1 TERM\ntouch "$SANDBOX/run/up"\n'
        "while :; do sleep 0.05; done\n"
    )
    request = request_for(GENERIC, command=("probe",), run_dir=folder / "run", work_dir=folder, notice_s=10)
    script = folder / "job.sh"
    script.write_text(render(request, GENERIC).text)
    with subprocess.Popen(["bash", str(script)], cwd=folder, env=environment(folder), stderr=subprocess.DEVNULL) as job:
        deadline = time.monotonic() + 30
        while not (folder / "run" / "up").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        job.send_signal(getattr(signal, f"SIG{name}"))
        assert job.wait(30) == code
    assert (folder / "run" / "saved").exists()
    assert (folder / "scontrol.calls").exists() == requeued


# Two ranks, after as long a start as it is given; it ends with 1 when one of them fails, and ends the other at once.
TORCHRUN = """#!/usr/bin/python3
import os, pathlib, subprocess, sys, time
if sys.argv[1] == "-c":
    os.execv("/usr/bin/python3", ["python3", *sys.argv[1:]])
words = sys.argv[sys.argv.index("--no-python") + 1 :]
pathlib.Path(os.environ["SANDBOX"], "run", "agent").touch()
time.sleep(float(os.environ.get("STARTS_FOR_S", "0")))
ranks = [subprocess.Popen(words, env={**os.environ, "RANK": str(rank)}) for rank in (1, 9)]
while all(rank.poll() is None for rank in ranks):
    time.sleep(0.01)
for rank in ranks:
    rank.kill()
sys.exit(1)
"""


@pytest.mark.parametrize(("starts_for_s", "awaited"), [("0", "up-*"), ("2", "agent")])
def test_torchrun_outlives_the_notice_and_its_ranks_save(tmp_path: Path, starts_for_s: str, awaited: str) -> None:
    """The notice comes to ranks that work, or to a torchrun that has none yet."""
    folder = make(tmp_path / "s")
    (folder / "bin" / "probe").write_text(
        '#!/bin/bash\ntrap \'sleep "0.$RANK"; echo saved >>"$SANDBOX/run/saved-$RANK"; exit 75\' USR1\n'
        'touch "$SANDBOX/run/up-$RANK"\nwhile :; do sleep 0.05; done\n'
    )
    (folder / "bin" / "python").write_text(TORCHRUN)
    (folder / "bin" / "python").chmod(0o755)
    request = request_for(
        GENERIC, command=("probe",), launcher="torchrun", run_dir=folder / "run", work_dir=folder, notice_s=60
    )
    (folder / "job.sh").write_text(render(request, GENERIC).text.replace("RANDOM % 15", "0"))
    env = environment(folder) | {"STARTS_FOR_S": starts_for_s}
    with subprocess.Popen(["bash", "job.sh"], cwd=folder, env=env, stderr=subprocess.DEVNULL) as job:
        deadline = time.monotonic() + 60
        while len(list((folder / "run").glob(awaited))) < (2 if awaited == "up-*" else 1):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(job.pid, signal.SIGUSR1)
        assert job.wait(60) == 75
    assert (folder / "scontrol.calls").read_text() == "requeue 4242 "
    if awaited == "up-*":  # one that cannot save yet only ends, and nobody trains on until the time is over
        saved = {path.name: path.read_text() for path in (folder / "run").glob("saved-*")}
        assert saved == {"saved-1": "saved\n", "saved-9": "saved\n"}


CHECKED = """#!/bin/bash
case "$*" in
*' -m scalewright.run preflight '*)
    [[ " $* " == *" --spares 1 "* && " $* " == *" --nodes=2 "* ]] || exit 9
    mkdir -p "$SANDBOX/run/preflight"
    printf '{\\n  "code": 0,\\n}\\n' >"$SANDBOX/run/preflight/result.json"
    echo n2 >"$SANDBOX/run/preflight/nodes.txt"
    exit 0
    ;;
esac
printf '%s\\n' "$@" >"$SANDBOX/run/srun.words"
while [[ ${1-} == --* ]]; do shift; done
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8 SLURMD_NODENAME=n2
exec "$@"
"""


@pytest.mark.parametrize(("srun", "node"), [(CHECKED, "n2"), ("", "n1")])
def test_spares_leave_the_run_to_the_nodes_that_the_check_keeps(tmp_path: Path, srun: str, node: str) -> None:
    """Where no check ran, the first nodes are as good as any."""
    folder = make(tmp_path / "s")
    if srun:
        (folder / "bin" / "srun").write_text(srun)
    (folder / "bin" / "probe").write_text(
        '#!/bin/bash\nprintf "%s" "$MASTER_ADDR" >"$SANDBOX/probe.env"; : >"$SANDBOX/probe.argv"\n'
    )
    ran = run(folder, num_nodes=1, num_spares=1)
    assert (ran.code, ran.chosen) == (0, node), ran.stderr
    words = (folder / "run/srun.words" if srun else folder / "srun.argv").read_text().replace("\0", "\n").split("\n")
    assert {"--nodes=1", f"--nodelist={node}"} <= set(words)
    assert f"running on {node}" in ran.stderr


@pytest.mark.parametrize(("words", "code"), [("srun: error: Task launch failed on node n2: no route", 75), ("", 7)])
def test_ranks_that_fail_are_queued_again_only_if_a_node_is_gone(tmp_path: Path, words: str, code: int) -> None:
    folder = make(tmp_path / "s")
    (folder / "bin" / "sinfo").write_text("#!/bin/bash\n")
    (folder / "bin" / "sinfo").chmod(0o755)
    (folder / "bin" / "sleep").write_text("#!/bin/bash\n")  # nobody waits for a Slurm that is not there
    (folder / "bin" / "sleep").chmod(0o755)
    text = (folder / "bin" / "srun").read_text()
    probing = 'case "$*" in *' + f"""' true') echo '{words}' >&2; exit {1 if words else 0} ;; esac\n"""
    (folder / "bin" / "srun").write_text(text.replace("printf", probing + "printf", 1))
    ran = run(folder, env={"PROBE_EXIT": "7"})
    assert (ran.code, ran.requeued) == (code, bool(words)), ran.stderr
    if words:
        assert ran.exit_info["reason"] == "n2 is lost: queued again to resume"
        assert "ExcNodeList=n2" in (folder / "scontrol.calls").read_text()


def test_image_that_is_not_the_pinned_one_is_not_run(tmp_path: Path) -> None:
    folder = make(tmp_path / "s")
    image = folder / "run" / "torch.sif"
    image.parent.mkdir()
    image.write_bytes(b"image")
    good = hashlib.sha256(b"image").hexdigest()
    assert run(folder, container=Container(image=str(image), sha256="0" * 64)).argv is None
    ran = run(folder, container=Container(image=str(image), sha256=good), command=("probe", "x"))
    assert (ran.code, ran.argv) == (0, ["x"]), ran.stderr
    words = (folder / "runtime.argv").read_bytes().decode().split("\0")
    assert words[:4] == ["exec", "--cleanenv", "--no-eval", "--nv"]
    assert run(folder, container=Container(image=str(folder / "no.sif"))).code == 3


def test_variables_are_handed_over_to_an_image_by_name(tmp_path: Path) -> None:
    folder = make(tmp_path / "s")
    (folder / "run").mkdir()
    (folder / "run" / "torch.sif").touch()
    (folder / "bin" / "probe").write_text(
        '#!/bin/bash\nenv | grep ENV_ | sort >"$SANDBOX/probe.env"; : >"$SANDBOX/probe.argv"\n'
    )
    ran = run(
        folder, "lumi", {"SECRET": "x"}, container=Container(image=str(folder / "run" / "torch.sif")),
        variables={"MINE": "1"},
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    for line in ("RANK=0", "MASTER_ADDR=n1", "NCCL_NET_GDR_LEVEL=PHB", "MINE=1", "SLURM_JOB_ID=4242"):
        assert f"SINGULARITYENV_{line}\n" in ran.chosen
    assert "SECRET" not in ran.chosen


def test_references_need_a_registry_that_the_nodes_reach() -> None:
    image = Container(image="docker://org/image:1")
    with pytest.raises(ConfigError, match="have no internet access"):
        render(request_for(SITES["leonardo"], container=image), SITES["leonardo"])
    assert "docker://org/image:1" in render(request_for(GENERIC, container=image), GENERIC).text
    image = Container(image="/a.sif", runtime="shifter")
    with pytest.raises(ConfigError, match="has apptainer"):
        render(request_for(SITES["lumi"], container=image), SITES["lumi"])


@pytest.mark.parametrize("site", ["frontier", "meluxina", "karolina"])
def test_rank_that_sees_one_device_has_local_rank_zero(tmp_path: Path, site: str) -> None:
    folder = make(tmp_path / "s")
    (folder / "bin" / "probe").write_text(
        '#!/bin/bash\nprintf "%s %s %s" "$LOCAL_RANK" "$LOCAL_WORLD_SIZE" "$SCALEWRIGHT_DEVICE" >"$SANDBOX/probe.env"\n'
        ': >"$SANDBOX/probe.argv"\n'
    )
    assert run(folder, site).chosen == "0 1 0"


@pytest.mark.parametrize(
    ("site", "transport", "set_variables", "unset_variables"),
    [
        ("leonardo", "rdma", "NCCL_NET=IB UCX_TLS=^tcp", "NCCL_SOCKET_IFNAME"),
        ("jupiter", "ipoib", "NCCL_NET=Socket NCCL_SOCKET_IFNAME=ib0 NCCL_IB_DISABLE=1", "NCCL_IB_HCA"),
        ("marenostrum5", "tcp", "NCCL_NET=Socket NCCL_SOCKET_IFNAME=^ib,hsn,lo,docker", "NCCL_IB_HCA"),
        ("frontier", "tcp", "NCCL_NET=Socket NCCL_NET_PLUGIN=none FI_PROVIDER=tcp", "FI_CXI_RDZV_PROTO"),
        ("frontier", "ofi-plugin", "FI_PROVIDER=cxi FI_CXI_RDZV_PROTO=alt_read", "NCCL_IB_DISABLE"),
        ("lumi", "auto", "NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3", "NCCL_NET FI_PROVIDER"),
    ],
)
def test_transport_is_forced_by_its_variables(
    tmp_path: Path, site: str, transport: str, set_variables: str, unset_variables: str
) -> None:
    folder = make(tmp_path / "s")
    (folder / "bin" / "probe").write_text('#!/bin/bash\nenv >"$SANDBOX/probe.env"; : >"$SANDBOX/probe.argv"\n')
    ran = run(folder, site, transport=transport, launcher="srun")
    environment = ran.chosen.splitlines()
    assert set(set_variables.split()) <= set(environment)
    assert not {line.partition("=")[0] for line in environment} & set(unset_variables.split())
    assert ("NCCL_NET=AWS Libfabric" in environment) == (transport == "ofi-plugin")


def test_staging_that_does_not_fit_ends_the_job_before_the_ranks(tmp_path: Path) -> None:
    folder = make(tmp_path / "s")
    (folder / "bin" / "df").write_text("#!/bin/bash\necho Avail; echo 3\n")
    (folder / "bin" / "df").chmod(0o755)
    (folder / "run").mkdir()
    (folder / "run" / "data").write_text("four")
    ran = run(folder, copied_paths=(str(folder / "run" / "data"),))
    assert (ran.code, ran.argv) == (3, None)
    assert "4 bytes do not fit into the 3 free" in ran.stderr
