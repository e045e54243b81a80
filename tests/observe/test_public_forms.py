"""Ends in the forms that public reports show: wrapped, cut, without a traceback, of other launchers and libraries.

The forms are those of public issue threads; names and numbers are made up.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.observe.findings.order import explain
from scalewright.observe.findings.rule import Explained

from .readers.log_cases import read_text

FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 12, in <module>\n    main()\n'
STEP = " iteration {0}/ 100 | elapsed time per iteration (ms): 500.1 | lm loss: {1:.3f} |\n"


def loud(folder: Path, text: str) -> list[Explained]:
    return [one for one in explain(read_text(folder, text)) if one.severity != "info"]


CASES = {
    "a watchdog line that a terminal broke": (
        "[rank2]:[E424 01:11:21.16 ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=4, OpTy\npe=BROADCAST, NumelIn=9, NumelOut=9, Timeout(ms)=900000) ran for 900010 milliseconds "
        "before timing out.\n",
        "hang", "broadcast"),
    "gloo's own timeout": (
        f"{FRAMES}RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 900000ms for recv "
        "operation to complete\n", "hang", "15.0 min"),
    "a store that waits for rank 0": (
        f"{FRAMES}RuntimeError: [1] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: Timeout waiting for key: default_pg/0/0 after "
        "900000 ms\n", "hang", "rank 0"),
    "the notify register of HCCL": (
        "EI0002: [PID: 40] The wait execution of the Notify register times out. Reason: The Notify register has not "
        "received the Notify record from remote rank [5].\n", "hang", "rank 5"),
    "an RDMA completion with an error": (
        "n1:34:39 [4] net_ib.cc:16 NCCL WARN NET/IB : Got completion from peer 10.2.2.2<54862> with status=12 opcode=0 "
        "len=0 vendor err 129 (Recv)\n", "network-error", "status 12"),
    "the older form of a completion": (
        "n2:19:20 [1] transport/net_ib.cc:12 NCCL WARN NET/IB : Got completion from peer fe80::1%ib0<5> with error 4, "
        "opcode 3, len 3, vendor err 81 (Send)\n", "network-error", "status 4"),
    "libfabric": (
        "[1,13]<stdout>:w1:35:89 [5] ofi_process_cq:1039 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 20. "
        "Error: unknown error\n", "network-error", "OFI"),
    "a connection that NCCL refuses, and its echo": (
        "n1:9:9 [0] include/socket.h:390 NCCL WARN Connect to 10.3.1.2<217> failed : Connection refused\n"
        f"{FRAMES}RuntimeError: NCCL error in: /x/ProcessGroupNCCL.cpp:410, unhandled system error, NCCL 2.4.8\n",
        "rendezvous-refused", "MASTER_ADDR"),
    "an echo alone": (
        f"{FRAMES}torch.distributed.DistBackendError: NCCL error in: /x/ProcessGroupNCCL.cpp:22, unhandled cuda error, "
        "NCCL version 2.21.5\n", "cause-not-shown", "NCCL_DEBUG=WARN"),
    "shared memory of a container": (
        f"{FRAMES}RuntimeError: DataLoader worker (pid 75) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory.\n", "host-out-of-memory", "/dev/shm"),
    "shared memory of NCCL": (
        "n1:96:97 [6] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-f to 5967876 bytes\n",
        "host-out-of-memory", "/dev/shm"),
    "a killed loader": (
        f"{FRAMES}RuntimeError: DataLoader worker (pid 41) is killed by signal: Killed. \n",
        "host-out-of-memory", "loader workers"),
    "the memory monitor of Ray": (
        "Memory on the node (IP: 10.1.1.2) where the task was running was 12.49GB / 13.15GB (0.95), which exceeds the "
        "memory usage threshold of 0.95. Ray killed this worker\n", "host-out-of-memory", "memory"),
    "a worker of Ray that died": (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tpid: 27\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2.\n", "rank-killed", "dmesg"),
    "frames of Ray without a header": (
        "(main_task pid=17) Unhandled error: ray::WorkerDict.generate() (pid=17)\n"
        '(main_task pid=17)   File "/v/cumem.py", line 75, in create_and_map\n'
        "(main_task pid=17)     python_create_and_map(*handle)\n"
        "(main_task pid=17) RuntimeError: CUDA Error: out of memory at /w/cumem_allocator.cpp:62\n",
        "device-out-of-memory", ""),
    "memory of a TPU": (
        f"{FRAMES}jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile error. Ran out of "
        "memory in memory space hbm. Used 17.3G of 15.4G hbm.\n", "device-out-of-memory", ""),
    "a pod": ("      Reason:       OOMKilled\n      Exit Code:    137\n", "cgroup-memory-kill", ""),
    "a cut log": (
        "torch.distributed.DistBackendError: NCCL error in: x.hpp:27, invalid usage\nncclInvalidUsage: This usually "
        "reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA "
        "device 10\n", "ranks-share-device", ""),
    "the error handler of torchelastic": (
        '  "message": {\n    "message": "RendezvousConnectionError: The connection to the C10d store has failed.",\n',
        "rendezvous-refused", ""),
    "loss scaling": (
        f"{FRAMES}Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"
        "  4%|4   | 17/387 [05:25<1:57:56, 19.13s/it]\n", "loss-nan", "BF16"),
    "gradient norms": (
        "".join(
            f" iteration {step}/ 100 | elapsed time per iteration (ms): 500.1 | loss scale: 1.0 | grad norm: nan |\n"
            for step in range(5)
        ), "loss-nan", "gradient norm"),
    "a checkpoint of another size": (
        f"{FRAMES}RuntimeError: Error(s) in loading state_dict for Model:\n\tsize mismatch for a.weight: copying a "
        "param with shape torch.Size([2]) from checkpoint, the shape in current model is torch.Size([4]).\n",
        "wrong-checkpoint", "model size"),
    "a device that is not there": (
        f"{FRAMES}RuntimeError: CUDA error: invalid device ordinal\n", "device-not-visible", "nvidia-smi -L"),
    "a fabric manager that does not run": (
        f"{FRAMES}RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized\n",
        "device-error", "fabricmanager"),
    "parameters without a gradient": (
        f"{FRAMES}RuntimeError: Expected to have finished reduction in the prior iteration before starting.\n",
        "rank-failed", "find_unused_parameters"),
    "a driver that was updated": (
        "Failed to initialize NVML: Driver/library version mismatch\n", "version-mismatch", "driver"),
    "Hydra": (
        "Could not override 'trainer.max_step'.\nKey 'max_step' is not in struct\n",
        "wrong-configuration-key", "max_step"),
    "a disk that fills while torch saves": (
        f"{FRAMES}RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file "
        "data/41: file write failed\n", "disk-full", ""),
    "nodes without internet": (
        f"{FRAMES}OSError: We couldn't connect to 'https://huggingface.co' to load this file\n",
        "missing-file", "login node"),
    "Composer": ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\n", "rank-killed", "/dev/shm"),
    "the launcher of DeepSpeed": (
        "[launch.py:325:sigkill_handler] ['python', 'train.py', '--local_rank=7'] exits with return code = -9\n",
        "rank-killed", "OOM killer"),
    "Open MPI": (
        "mpirun noticed that process rank 3 with PID 0 on node g07 exited on signal 9 (Killed).\n",
        "rank-killed", "rank 3 on g07"),
    "MPICH": ("=   RANK 5 PID 23 RUNNING AT n3\n=   KILLED BY SIGNAL: 9 (Killed)\n", "rank-killed", "rank 5 on n3"),
    "accelerate": (
        "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.\n",
        "rank-killed", "OOM killer"),
    "the coordination service of JAX": (
        "coordination_service.cc:954] /job:jax_worker/replica:0/task:37 has been set to ERROR in coordination service: "
        "UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout.\n", "rank-killed", "rank 37"),
    "a device of Intel that is lost": (
        f"{FRAMES}RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)\n",
        "device-error", ""),
    "PBS": ("=>> PBS: job killed: walltime 3621 exceeded limit 3600\n", "time-limit", ""),
    "LSF": ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n", "time-limit", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_cause_comes_first(name: str, tmp_path: Path) -> None:
    text, rule, words = CASES[name]
    first = loud(tmp_path, text)[0]
    assert first.rule.id == rule
    assert words.lower() in f"{first.seen.message} {first.seen.next_step}".lower()


HEALTHY = {
    "an error that was handled": "".join(STEP.format(10 * i, 3 - i / 10) for i in range(1, 4))
    + FRAMES + "requests.exceptions.ConnectionError: HTTPSConnectionPool: Max retries exceeded\n"
    + "".join(STEP.format(10 * i, 3 - i / 10) for i in range(4, 10)),
    "a communicator that leaves": "n1:1:1 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1b - Abort COMPLETE\n",
    "a first norm that loss scaling skips": "".join(
        f"Epoch [1][{i}00/900] time: 0.7, loss: {2 - i / 10}, grad_norm: {'nan' if i == 1 else 3.1}\n"
        for i in range(1, 6)
    ),
    "sockets without IPv6": "[W socket.cpp:697] [c10d] The client socket has failed to connect to [n1]:29500.\n"
    + "".join(STEP.format(10 * i, 3 - i / 10) for i in range(1, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_logs_alarm_nobody(name: str, tmp_path: Path) -> None:
    assert [one.rule.id for one in loud(tmp_path, HEALTHY[name])] == []


def test_the_last_end_counts_after_a_restart(tmp_path: Path) -> None:
    text = (
        f"{FRAMES}RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
        + "".join(STEP.format(i, 3 - i / 10) for i in range(1, 9))
        + f"{FRAMES}OSError: [Errno 28] No space left on device\n"
    )
    assert loud(tmp_path, text)[0].rule.id == "disk-full"


def test_a_lost_peer_comes_before_what_the_network_says(tmp_path: Path) -> None:
    text = (
        "[2025-01-01 10:00:00] srun: error: n7: task 9: Killed\n"
        "[2025-01-01 10:00:09] n1:3:9 [4] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.2.2.7<5> with "
        "status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
    )
    assert loud(tmp_path, text)[0].rule.id == "rank-killed"
