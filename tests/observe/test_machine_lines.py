"""Lines of Slurm, kernels, NCCL and PyTorch's watchdog in a job's log."""

# ruff: noqa: E501 - lines are as long as programs write them

from __future__ import annotations

import pytest

from scalewright.observe.readers.devices.xid import XIDS

from .machine_text import happenings, read_text


@pytest.mark.parametrize(
    ("line", "kind", "expected"),
    [
        ("slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2024-01-02T03:04:05 DUE TO TIME LIMIT ***", "time_limit",
         {"host": "n1", "at_s": 1704164645.0}),
        ("slurmstepd: error: *** STEP 124.0 ON n1 CANCELLED AT 2024-01-02T03:04:05 ***", "cancelled", {"host": "n1"}),
        ("slurmstepd: error: *** JOB 125 ON n2 CANCELLED AT 2024-01-02T03:04:05 DUE TO PREEMPTION ***", "preempted", {}),
        ("slurmstepd: error: *** JOB 126 ON n3 CANCELLED AT 2024-01-02T03:04:05 DUE TO NODE FAILURE, SEE SLURMCTLD LOG "
         "FOR DETAILS ***", "node_failed", {"host": "n3"}),
        ("slurmstepd: error: Detected 3 oom_kill events in StepId=2.0. Some of the step tasks have been OOM Killed.",
         "cgroup_kill", {}),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in step 1234.batch cgroup.", "cgroup_kill", {}),
        ("srun: error: n1: task 3: Killed", "killed", {"rank": 3, "host": "n1"}),
        ("srun: error: n4: task 7: Out Of Memory", "cgroup_kill", {"rank": 7}),
        ("srun: error: Node failure on n3", "node_failed", {"host": "n3"}),
        ("/var/spool/slurmd/job1/slurm_script: line 12: 99 Killed                  python train.py", "killed", {}),
        ("/var/spool/slurmd/job1/slurm_script: line 3: modul: command not found", "missing_file", {}),
        ("slurmstepd: error: execve(): python3: No such file or directory", "missing_file", {}),
        ("srun: error: Unable to create step for job 1: More processors requested than permitted", "bad_configuration",
         {}),
        ("[  9.1] Memory cgroup out of memory: Killed process 12 (python) total-vm:20kB, anon-rss:16kB", "cgroup_kill", {}),
        ("[  9.1] Out of memory: Killed process 12 (python) total-vm:20kB, anon-rss:16kB", "host_out_of_memory", {}),
        ("[  9.1] INFO: task python:123 blocked for more than 120 seconds.", "stalled", {}),
        ("  what():  std::bad_alloc", "host_out_of_memory", {}),
        ("Killed", "killed", {}),
        ("srun: Terminating job step 3495064.0", "signal", {}),
        ("[rank62]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 19.14 GiB. GPU 6 has a total capacity of "
         "79.33 GiB of which 8.35 GiB is free.", "device_out_of_memory", {"rank": 62}),
        ("Fatal Python error: Segmentation fault", "killed", {}),
        ("train.py: error: unrecognized arguments: --micro-batchsize 4", "bad_configuration", {}),
    ],
)  # fmt: skip
def test_a_line_says_why_something_ended(line: str, kind: str, expected: dict[str, object]) -> None:
    (one,) = happenings(line + "\n")
    assert one.kind == kind
    assert {name: getattr(one, name) for name in expected} == expected
    assert one.spot.line == 1


def test_every_task_of_a_list_is_named() -> None:
    ranks = [one.rank for one in happenings("srun: error: n[1-2]: tasks 0-2,5: Exited with exit code 1\n", "exited")]
    assert ranks == [0, 1, 2, 5]


@pytest.mark.parametrize(
    ("line", "number", "origin", "is_benign"),
    [
        ("[Mon Nov 16 19:00:00 2026] NVRM: Xid (PCI:0000:10:1c): 79, pid=18, name=python, GPU has fallen off the bus.",
         79, "bus", False),
        ("[12.6] NVRM: Xid (PCI:0000:10:1c): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked", 63,
         "memory", True),
        ("Nov 22 18:29:55 n7 kernel: [  966.5] NVRM: Xid (0000:01:00): 31, Ch 0000000b, intr 10000000", 31, "program",
         False),
        ("NVRM: Xid (PCI:0001:01:00): 9999, something new", 9999, None, False),
    ],
)  # fmt: skip
def test_xid_numbers_have_a_meaning(line: str, number: int, origin: str | None, is_benign: bool) -> None:
    (one,) = happenings(line + "\n", "device_error")
    assert one.values["xid"] == number
    assert one.values.get("origin") == origin
    assert one.is_benign is is_benign


def test_every_xid_that_hardware_raises_asks_for_action() -> None:
    for number in (48, 64, 74, 79, 95, 119):
        assert not XIDS[number].is_benign
        assert "drain" in XIDS[number].action


NCCL = """n1:57:57 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
NCCL version 2.21.5+cuda12.4
n1:57:58 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
n1:57:58 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
n1:57:58 [0] NCCL INFO Using network IB
n2:49:51 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.
n2:49:51 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 8 nranks 16 cudaDev 0 nvmlDev 0 busId 61000 commId 0x1 - Init START
n1:57:58 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
n1:57:58 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
n1:57:58 [0] NCCL INFO Channel 01/0 : 8[0] -> 0[0] [receive] via NET/IB/1/GDRDMA
4: n1:57:58 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM/read
n1:57:58 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer
n1:57:58 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""


def test_transports_networks_and_ranks_of_a_debug_log() -> None:
    evidence = read_text(NCCL)
    net, peer = sorted(evidence.transports, key=lambda one: one.way)
    assert (net.way, net.between, net.num_channels, net.is_direct, net.interfaces) == (
        "NET/IB", "nodes", 2, True, ("mlx5_0", "mlx5_3"),
    )  # fmt: skip
    assert (peer.way, peer.between, peer.is_direct) == ("P2P", "node", None)
    assert evidence.versions["NCCL"] == "2.21.5+cuda12.4"
    assert evidence.environment["NCCL_IB_GID_INDEX"] == "3"
    assert {name: evidence.settings[name][0] for name in ("num_ranks", "num_nodes", "nccl_channels")} == {
        "num_ranks": "16", "num_nodes": "2", "nccl_channels": "16",
    }  # fmt: skip
    assert {one.rank: one.host for one in evidence.of_kind("started")} == {0: "n1", 8: "n2"}
    assert not evidence.of_kind("network_fallback", "warning", "connection_lost")


def test_tcp_between_nodes_is_a_fallback_and_on_one_node_it_is_not() -> None:
    text = NCCL.replace("Using network IB", "Using network Socket").replace("NET/IB/0/GDRDMA", "NET/Socket/0")
    text = text.replace("NET/IB/1/GDRDMA", "NET/Socket/0").replace("NET/IB : Using", "NET/IB : No device found. #")
    kinds = {str(one.values["what"]) for one in read_text(text).of_kind("network_fallback")}
    assert kinds == {"no InfiniBand device", "TCP between nodes"}
    single = text.replace("nNodes 2", "nNodes 1").replace("n2:", "n1:")
    assert not read_text(single).of_kind("network_fallback")


@pytest.mark.parametrize(
    ("message", "kind", "is_benign"),
    [
        ("MSCCL++: Cannot enable MSCCL++ on gfx90a", "warning", True),
        ('Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!', "warning", True),
        ("NET/IB : Got completion from peer 10.2.2.2<5> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
         "network_error", False),
        ("NET/IB : Got completion from peer 10.2.2.2<5> with status=5 opcode=0 len=0 vendor err 249 (Recv)",
         "connection_lost", False),
        ("Call to ibv_modify_qp failed with error Connection timed out", "network_error", False),
        ("socketProgress: Connection closed by remote peer n3<3>", "connection_lost", False),
        ("Cuda failure 2 'out of memory'", "device_out_of_memory", False),
        ("Cuda failure 700 'an illegal memory access was encountered'", "device_error", False),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "warning", False),
        ("Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)", "host_out_of_memory", False),
    ],
)  # fmt: skip
def test_warnings_of_nccl(message: str, kind: str, is_benign: bool) -> None:
    one = happenings(f"n1:1:2 [4] init.cc:19 NCCL WARN {message}\n")[0]
    assert (one.kind, one.is_benign) == (kind, is_benign)


WATCHDOG = (
    "[rank4]:[E321 02:07:08.414640780 ProcessGroupNCCL.cpp:607] [Rank 4] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600067 "
    "milliseconds before timing out.\n"
)


def test_a_watchdog_names_rank_collective_and_time() -> None:
    (one,) = happenings(WATCHDOG + WATCHDOG)
    assert (one.kind, one.rank) == ("collective_timeout", 4)
    assert one.values == pytest.approx({
        "collective": "all_reduce", "sequence": 1580.0, "num_elements": 466119168.0, "timeout_s": 600.0,
        "waited_s": 600.067,
    })  # fmt: skip


@pytest.mark.parametrize("who", ["[PG 1 Rank 2]", "[PG ID 0 PG GUID 0(default_pg) Rank 2]", "[Rank 2]"])
def test_how_far_a_rank_came(who: str) -> None:
    line = (
        f"[rank2]:[E321 02:07:08.5 ProcessGroupNCCL.cpp:1664] {who} Exception (either an error or timeout) detected by "
        "watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.\n"
    )
    (one,) = happenings(line)
    assert one.rank == 2
    assert (one.values["sequence"], one.values["last_enqueued"], one.values["last_completed"]) == (1580, 1582, 1579)


def test_nccl_tests_rows_with_other_output_between_them() -> None:
    text = """# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid   4940 on n1 device  0 [0x61] NVIDIA L40
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    18.18    0.00    0.00      0    18.11    0.00    0.00      0
n1:57:58 [0] NCCL INFO Connected all trees
[1,0]<stdout>:   536870912     134217728     float     sum      -1   2900.1  185.12  347.10      0   2899.0  185.19  347.23    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 178.078
"""
    evidence = read_text(text)
    sizes = [(one.name, one.num_bytes, one.time_s, one.bytes_per_s) for one in evidence.collectives]
    assert sizes == [
        ("all_reduce", 8.0, pytest.approx(18.18e-6), 0.0),
        ("all_reduce", 536870912.0, pytest.approx(2900.1e-6), pytest.approx(347.10e9)),
    ]
    assert evidence.settings["accelerator"][0] == "NVIDIA L40"


def test_old_nccl_tests_without_a_root() -> None:
    text = """# all_gather_perf
#       size         count    type     time   algbw   busbw    error     time   algbw   busbw    error
     1048576         16384   float    99.10   10.58   19.84    0e+00    98.50   10.65   19.96    0e+00
"""
    (one,) = read_text(text).collectives
    assert (one.name, one.time_s, one.bytes_per_s) == ("all_gather", pytest.approx(99.1e-6), pytest.approx(19.84e9))


def test_inspector_lines() -> None:
    text = (
        '{"header":{"id":"0x7f","rank":3,"n_ranks":8,"nnodes":1},"metadata":{"dump_timestamp_us":1},"coll_perf":'
        '{"coll":"AllReduce","coll_sn":1407,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,'
        '"coll_algobw_gbs":277.2,"coll_busbw_gbs":485.1}}\n'
        'nccl_bus_bandwidth_gbs{slurm_job_id="1",comm_name="DP Group 0",collective="AllGather"} 212.5\n'
        '{"coll_perf": [1, 2\n'
    )
    one, other = read_text(text).collectives
    assert (one.name, one.rank, one.sequence, one.time_s, one.bytes_per_s) == (
        "all_reduce", 3, 1407, pytest.approx(0.061974), pytest.approx(485.1e9),
    )  # fmt: skip
    assert (other.name, other.group, other.bytes_per_s) == ("all_gather", "DP Group 0", pytest.approx(212.5e9))
